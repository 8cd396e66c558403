"""What a loader raised, told to the processes that wait for it.

An exception is made again as :mod:`copy` makes an object: its built-in part of its arguments, and its attributes as
they were. No ``__init__`` of a user's class runs for that, neither here nor there: it may do anything, and need not set
the attributes that this exception had.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import BuiltinFunctionType, MemberDescriptorType, WrapperDescriptorType
from typing import Any, Final

from echomq_tasks.errors import EchoMQError, LoadFailed, LoadTimeout

#: At most so many characters of an error's text travel, and so many of its arguments and attributes.
_MOST: Final = 4096
_MISSING: Final = object()
#: No attribute of an exception stands in the place of one of these.
_METHODS: Final = frozenset(dir(BaseException))
_PACKAGE: Final = __name__.partition(".")[0]
#: Of this package's own exceptions: those that say what became of a load. The others mean something to the code that
#: catches them, which no other process is to say.
_OURS: Final = (LoadFailed, LoadTimeout)


def pack(error: Exception) -> bytes:
    """The error as others are told it: its class and its text, and its arguments and attributes where these are plain
    and all that there is to it."""
    kind = type(error)
    told: dict[str, Any] = {"type": f"{kind.__module__}:{kind.__qualname__}", "text": _text(error)}
    # A class may answer anything when it is asked for its attributes.
    with contextlib.suppress(Exception):
        state = _state(error)
        # Only what comes out the same here can come out the same there.
        if _same(_made(kind, error.args, state), error):
            told |= {"args": error.args, "state": state}
    return json.dumps(told).encode()


def unpack(payload: bytes) -> Exception:
    """The error again: of its own type where that class is known here and can be made of what was told, else
    :class:`~echomq_tasks.errors.LoadFailed` with its text."""
    try:
        told = json.loads(payload)
        name, text, args, state = told["type"], told["text"], told.get("args"), told.get("state", {})
        if not isinstance(name, str) or not isinstance(text, str):
            raise TypeError
    except Exception:
        return LoadFailed("the loader failed in another process, which said nothing that can be read")
    if isinstance(args, list) and isinstance(state, dict):
        # Whatever these words make of a class that is known here must not come instead of an error.
        with contextlib.suppress(Exception):
            error = _made(_found(name), tuple(args), state)
            if error is not None and _text(error) == text:
                error.add_note("Raised by the loader of a cached value in another process")
                return error
    return LoadFailed(f"the loader failed in another process: {name.replace(':', '.')}: {text}")


def _text(error: Exception) -> str:
    try:
        return str(error)[:_MOST]
    except Exception:
        return ""


def _travels(args: tuple[Any, ...], state: dict[str, Any]) -> bool:
    values = (*args, *state.values())
    if any(type(name) is not str or name.startswith("__") or name in _METHODS for name in state):
        return False
    return all(each is None or type(each) in (str, int, float, bool) for each in values) and len(repr(values)) <= _MOST


def _state(error: Exception) -> dict[str, Any]:
    """The attributes of an exception beside its arguments."""
    found = {name: value for name, value in vars(error).items() if name != "__notes__"}
    for name, member in _members(type(error)).items():
        value = _value(member, error)
        if value is not _MISSING:
            found[name] = value
    return found


def _members(kind: type[Exception]) -> dict[str, Any]:
    """What is kept in places of its own: in slots, and what built-in classes have, as the file of an OSError."""
    found: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        for name, member in vars(each).items():
            # What an AttributeError was raised of is told by its text.
            if isinstance(member, MemberDescriptorType) and not name.startswith("__") and each is not AttributeError:
                found[name] = member
    if issubclass(kind, AttributeError):
        found["name"] = vars(AttributeError)["name"]
    return found


def _value(member: Any, error: Exception) -> Any:
    try:
        return member.__get__(error)
    except AttributeError:
        return _MISSING


def _same(copy: Exception | None, error: Exception) -> bool:
    return (
        copy is not None and copy.args == error.args and _text(copy) == _text(error) and _state(copy) == _state(error)
    )


def _made(kind: type[Exception] | None, args: tuple[Any, ...], state: dict[str, Any]) -> Exception | None:
    """An instance that has these arguments and attributes, if the class is one that can be made so."""
    if kind is None or not isinstance(kind.__new__, BuiltinFunctionType) or not _travels(args, state):
        return None
    begin = next(each.__dict__["__init__"] for each in kind.__mro__ if _begins(each))
    try:
        made = kind.__new__(kind, *args)
        begin(made, *args)
        members = _members(kind)
        for name, value in state.items():
            if name not in members:
                made.__dict__[name] = value
            elif value != _value(members[name], made):
                members[name].__set__(made, value)
    except Exception:
        return None
    return made if type(made) is kind else None


def _begins(kind: type) -> bool:
    """Whether a class has an ``__init__`` that is no code of a user's."""
    return isinstance(vars(kind).get("__init__"), WrapperDescriptorType)


def _found(name: str) -> type[Exception] | None:
    """The exception of this name, of a module that is loaded: a name from the wire imports nothing."""
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = None if found is None else vars(found).get(part)
    if not isinstance(found, type) or not issubclass(found, Exception):
        return None
    return found if found in _OURS or not _is_ours(found) else None


def _is_ours(kind: type) -> bool:
    return issubclass(kind, EchoMQError) or any(each.__module__.partition(".")[0] == _PACKAGE for each in kind.__mro__)
