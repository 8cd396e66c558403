"""Modules that a command line names: whether they are there, and what to say when they are not."""

from __future__ import annotations

import difflib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib.util import find_spec


def missing_module(name: str, path: Sequence[str]) -> str | None:
    """Say why a module cannot be found from ``path``, None when it can. Nothing is imported.

    A submodule is not looked for: only its package, once imported, knows where its modules are.
    """
    module = name.partition(":")[0]
    top = module.partition(".")[0]
    before, sys.path = sys.path, [*reversed(path), *sys.path]
    try:
        spec = find_spec(top) if top else None
        found = spec is not None
    except ValueError:
        # A module that is imported already and has no spec, as __main__.
        spec, found = None, True
    finally:
        sys.path = before
    if "/" in module or (module.endswith(".py") and (spec is None or spec.submodule_search_locations is None)):
        return f"{module!r} is a file, and a module is named as for import: write `{_module_of(module)}`"
    if found:
        return None
    nearest = difflib.get_close_matches(top, [info.name for info in pkgutil.iter_modules(path)], n=1)
    hint = f"did you mean {nearest[0]!r}? Else go" if nearest else "go"
    return (
        f"no module named {top!r} from here ({', '.join(path)}): {hint} to the directory it is in, "
        "or name that directory with --path"
    )


def _module_of(file: str) -> str:
    """What to write in place of a file's name."""
    path = os.path.normpath(file.removesuffix(".py"))
    if path.startswith(("/", "..")):
        directory, name = os.path.split(path)
        return f"{name} --path {directory}"
    return path.replace("/", ".")
