"""The ``echomq`` command."""
