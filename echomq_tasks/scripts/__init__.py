"""The executor: Lua files in, typed errors and one round trip out."""

from __future__ import annotations

from echomq_tasks.scripts.calls import Call
from echomq_tasks.scripts.executor import Scripts
from echomq_tasks.scripts.loader import Script, load_scripts

__all__ = ["Call", "Script", "Scripts", "load_scripts"]
