"""One adapter per framework."""
