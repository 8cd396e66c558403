"""Which table a function has when it is given none, and whether other processes may share it."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final

from echomq_tasks.cache.modules import module_of

#: The longest name that leaves room for that of the queue of coherence messages.
_LONGEST: Final = 120
_OTHER: Final = re.compile(r"[^A-Za-z0-9._-]+")


def default_name(function: Callable[..., Any]) -> str:
    """The table of a function: its module and qualified name, in the letters that the wire allows.

    A name that had to be changed for that ends in a digest of what it was, so that no two functions share it.
    """
    full = f"{module_of(function)}.{function.__qualname__}"
    name = _OTHER.sub("-", full)
    if name == full and len(name) <= _LONGEST:
        return name
    digest = blake2b(full.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return f"{name[: _LONGEST - len(digest) - 1]}-{digest}"


def is_known_elsewhere(function: Callable[..., Any]) -> bool:
    """Whether another process that has a function of this name has this function.

    Not when it was made inside of another one, which may make many of that name, or has no name or no file.
    """
    return "<" not in function.__qualname__ and module_of(function) != "__main__"
