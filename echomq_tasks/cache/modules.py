"""The module that something belongs to, by a name that is the same however the process was started."""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Any, Final

#: What a script is called that is run, and that runs again in a process which multiprocessing has spawned.
_MAIN: Final = ("__main__", "__mp_main__")


def module_of(thing: Any) -> str:
    """The module of a function or a class: a script that is run and imported is one. ``__main__`` when nothing tells,
    as at a prompt."""
    module = getattr(thing, "__module__", None) or _MAIN[0]
    if module not in _MAIN:
        return str(module)
    main = sys.modules.get(module)
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return PurePath(file).stem if isinstance(file, str) and not file.startswith("<") else _MAIN[0]
