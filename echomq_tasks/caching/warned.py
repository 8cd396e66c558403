"""What is said of a function when it is decorated that is allowed, and seldom meant."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any


class CacheWarning(UserWarning):
    """A function is cached in a way that is seldom meant."""


def warn_of_method(function: Callable[..., Any]) -> None:
    """Warn of a method whose calls are all one, for whatever object."""
    text = (
        f"{function.__qualname__}() has no argument but self, which does not count: all objects get one result, that "
        "of whichever is asked first. Say with key= what tells them apart, as key=lambda self: self.id; or, if nothing "
        "does, that all are alike: key=lambda self: None"
    )
    code = getattr(function, "__code__", None)
    if code is None:
        warnings.warn(text, CacheWarning, stacklevel=2)
    else:
        # At the method, for what is being run is the end of its class.
        warnings.warn_explicit(text, CacheWarning, code.co_filename, code.co_firstlineno, function.__module__)
