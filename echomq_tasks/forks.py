"""Run a method in the child of a fork, for objects that hold locks, sockets or a node id."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

# Keyed by the object, weakly: registering does not keep it alive.
_methods: weakref.WeakKeyDictionary[Any, list[Callable[[Any], None]]] = weakref.WeakKeyDictionary()


def after_fork(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in the child after each fork, for as long as its object lives.

    Raises:
      TypeError: when ``method`` is not a bound method.
    """
    if not isinstance(method, MethodType):
        raise TypeError(f"after_fork takes a bound method, not {method!r}")
    _methods.setdefault(method.__self__, []).append(method.__func__)


def _run() -> None:
    for owner, functions in list(_methods.items()):
        for function in functions:
            function(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run)
