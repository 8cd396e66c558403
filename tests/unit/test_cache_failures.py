"""What a loader raised, as other processes get it: with all that it had, or as LoadFailed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from echomq_tasks.cache.failures import pack, unpack
from echomq_tasks.errors import JobCancelled, LoadFailed, LoadTimeout

MADE: list[object] = []


class ApiError(Exception):
    """Its default is not what it has; and to make one does something."""

    def __init__(self, text: str, status: int = 500) -> None:
        super().__init__(text)
        self.status = status
        MADE.append(self)


class Worded(ApiError, LookupError):
    """It takes other arguments than it keeps."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}", code)


class Slotted(ValueError):
    __slots__ = ("__hidden", "code", "unset")

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = self.__hidden = code

    def __str__(self) -> str:
        return f"{self.code} {self.__hidden}"


@dataclass
class Recorded(Exception):
    code: int
    reason: str = "none"


class Refused(OSError):
    def __init__(self, host: str) -> None:
        super().__init__(111, "refused", host)


class Made(Exception):
    """Made by code of its own."""

    def __new__(cls, *args: object) -> Made:
        MADE.append(cls)
        return super().__new__(cls, *args)


class Closed(Exception):
    """It does not tell what it has."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError


def raised(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError


def state(error: Exception) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if name != "__notes__"}


def changed(error: Exception, **attributes: object) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    "error",
    [
        ApiError("rate limited", status=429),
        changed(ValueError("bad"), field="name", position=None),
        Worded(404, "gone"),
        Slotted(7),
        Recorded(7, "late"),
        Refused("db"),
        raised(lambda: open("/nowhere/at/all")),
        raised(lambda: __import__("nothing_of_this_name")),
        raised(lambda: [].nothing),  # type: ignore[attr-defined]
        raised(lambda: nothing),  # type: ignore[name-defined] # noqa: F821
        raised(lambda: json.loads("{")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_with_all_its_attributes(error: Exception) -> None:
    error.add_note("a note")
    MADE.clear()
    found: Any = unpack(pack(error))
    assert type(found) is type(error)
    assert (str(found), found.args, state(found)) == (str(error), error.args, state(error))
    for name in ("errno", "filename", "name", "code"):
        assert getattr(found, name, None) == getattr(error, name, None)
    assert MADE == [], "code of the class ran"


@pytest.mark.parametrize(
    "error",
    [
        changed(ValueError("bad"), response=object()),
        changed(ValueError("bad"), where=("a", "b")),
        changed(Slotted(7), unset=object()),
        changed(ValueError("bad"), long="x" * 5000),
        changed(OSError(2, "x"), filename=b"y"),
        Made("bad"),
        Closed("bad"),
    ],
    ids=["object", "tuple", "slot", "long", "member", "new", "closed"],
)
def test_an_error_that_would_come_back_with_other_attributes_is_told_by_its_text(error: Exception) -> None:
    MADE.clear()
    found = unpack(pack(error))
    assert type(found) is LoadFailed
    assert str(error) in str(found)
    assert MADE == []


class Enough(JobCancelled):
    """Means to this package what its parent does."""


@pytest.mark.parametrize(
    "told",
    [
        {"type": "sys:version.x"},
        {"type": "echomq_tasks.errors:JobCancelled"},
        {"type": "echomq_tasks.errors:Undecodable"},
        {"type": "echomq_tasks.cache.reach:Away", "text": "", "args": []},
        {"type": "echomq_tasks.cache.flight:Abandoned", "text": "", "args": []},
        {"type": "echomq_tasks.cache.pilot:_Mine"},
        {"type": f"{__name__}:Enough"},
        {"type": "builtins:KeyboardInterrupt"},
        {"type": "builtins:ValueError", "state": {"add_note": 5}},
        {"type": "builtins:ValueError", "state": {"with_traceback": 5}},
        {"type": "builtins:ExceptionGroup", "args": ["x", 1]},
        {"type": "builtins:UnicodeDecodeError", "args": ["utf8", "x", 0, 1, "y"]},
        {"type": "a\ud800:b"},
        {"type": 5},
    ],
    ids=str,
)
def test_words_of_who_knows_what_are_told_as_the_failure_of_a_load(told: dict[str, Any]) -> None:
    assert type(unpack(json.dumps({"text": "x", "args": ["x"], "state": {}, **told}).encode())) is LoadFailed


@pytest.mark.parametrize("payload", [b"", b"\xff", b"[" * 100_000, b"null", b"9" * 9_000], ids=range(5))
def test_what_cannot_be_read_is_told_as_the_failure_of_a_load(payload: bytes) -> None:
    assert type(unpack(payload)) is LoadFailed


@pytest.mark.parametrize("kind", [LoadTimeout, LoadFailed])
def test_what_became_of_a_load_is_told_as_it_is(kind: type[Exception]) -> None:
    found = unpack(pack(kind("late")))
    assert (type(found), str(found)) == (kind, "late")
