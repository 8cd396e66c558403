"""Errors: one root, a tree that its docstring draws truly, and a closed registry of refusals."""

from __future__ import annotations

import builtins
import copy
import inspect
import pickle
import re
from typing import Any

import pytest

from echomq_tasks import errors


def raised_types() -> dict[str, type[Exception]]:
    """Every exception class of the module."""
    members = inspect.getmembers(errors, inspect.isclass)
    return {name: kind for name, kind in members if issubclass(kind, Exception)}


def drawn() -> dict[str, tuple[str | None, str | None, str | None]]:
    """The tree of the docstring: name -> (parent, built-in it also is, code)."""
    tree: dict[str, tuple[str | None, str | None, str | None]] = {"EchoMQError": (None, None, None)}
    at_depth = {0: "EchoMQError"}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    (?P<indent>[│ ]*)[├└]── (?P<name>\w+)(?P<rest>.*)", line)
        if found is None:
            continue
        depth = len(found["indent"]) // 4 + 1
        also = re.search(r"\((?:also a )?(\w+Error)\)", found["rest"])
        code = re.match(r"\s+(EMQ[A-Z]+)\b", found["rest"])
        tree[found["name"]] = (at_depth[depth - 1], also and also[1], code and code[1])
        at_depth[depth] = found["name"]
    return tree


def test_the_docstring_names_every_error_and_no_other() -> None:
    assert set(drawn()) == set(raised_types())


@pytest.mark.parametrize("name", sorted(set(raised_types()) - {"EchoMQError"}))
def test_an_error_stands_where_the_docstring_draws_it(name: str) -> None:
    kind = raised_types()[name]
    parent, also, code = drawn()[name]
    assert parent is not None
    assert kind.__bases__[0] is raised_types()[parent]
    others = [base for base in kind.__bases__[1:] if base is not object]
    assert others == ([getattr(builtins, also)] if also else [])
    if code:
        assert issubclass(kind, errors.Refused)
        assert kind.code == code
        assert errors.REFUSALS[code] is kind


def test_the_registry_of_refusals_is_closed() -> None:
    assert set(errors.REFUSALS) == {"EMQKIND", "EMQSTALE", "EMQSTATE", "EMQLOCK", "EMQRATE"}
    assert set(errors.REFUSALS.values()) == set(errors.Refused.__subclasses__())


@pytest.mark.parametrize(
    "kind", sorted(set(raised_types().values()) - {errors.BatchError}, key=lambda kind: kind.__name__)
)
def test_an_error_has_a_docstring_and_survives_pickle_and_copy(kind: type[Exception]) -> None:
    assert inspect.getdoc(kind)
    error = kind("what happened")
    if isinstance(error, errors.ServerError):
        assert error.admitted == ()
        error.admitted = ("JOB0KHTOWnGLuC",)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert str(twin) == "what happened"
        assert vars(twin) == vars(error)


def test_a_batch_error_names_its_first_failure_and_survives_pickle_and_copy() -> None:
    error = errors.BatchError({7: KeyError("b"), 2: ValueError("bad")}, [None] * 8)
    assert str(error) == "2 failed; the first, member 2: ValueError: bad"
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert str(twin) == str(error)
        assert {index: repr(each) for index, each in twin.failures.items()} == {
            2: "ValueError('bad')",
            7: "KeyError('b')",
        }
        assert twin.results == [None] * 8


@pytest.mark.parametrize(
    ("failures", "text"),
    [
        ({}, "at least one failure"),
        ("all of them", "at least one failure"),
        ([ValueError("bad")], "at least one failure"),
        ({-1: ValueError("bad")}, "from 0 up, not -1"),
        ({True: ValueError("bad")}, "from 0 up, not True"),
        ({"0": ValueError("bad")}, "from 0 up, not '0'"),
        ({0: "bad"}, "needs the exception of member 0"),
        ({0: ValueError}, "needs the exception of member 0"),
    ],
)
def test_a_batch_error_that_names_no_failures_says_what_it_takes(failures: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        errors.BatchError(failures)
