"""An index of the identifiers in the Python standard library, built by background jobs."""
