"""``python -m echomq_tasks``: the same as the ``echomq`` command."""

from __future__ import annotations

import sys

from echomq_tasks.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
