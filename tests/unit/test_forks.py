"""Fork hooks: run in the child only, for objects that still live, without keeping them alive."""

from __future__ import annotations

import gc
import weakref

import pytest
from support.children import in_child

from echomq_tasks.forks import after_fork

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


class Holder:
    """Remembers in which processes its hooks ran."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def first(self) -> None:
        self.calls.append("first")

    def second(self) -> None:
        self.calls.append("second")


def test_hooks_run_in_the_child_in_the_order_they_were_given() -> None:
    holder = Holder()
    after_fork(holder.first)
    after_fork(holder.second)
    assert in_child(lambda: holder.calls) == ["first", "second"]
    assert holder.calls == []


def test_a_grandchild_runs_them_too() -> None:
    holder = Holder()
    after_fork(holder.first)
    assert in_child(lambda: in_child(lambda: holder.calls)) == ["first", "first"]


def test_a_hook_does_not_keep_its_object_alive() -> None:
    holder = Holder()
    after_fork(holder.first)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None
    assert in_child(lambda: "alive") == "alive"


@pytest.mark.parametrize("hook", [print, lambda: None, Holder, Holder.first])
def test_what_is_not_a_bound_method_is_refused(hook: object) -> None:
    with pytest.raises(TypeError, match="bound method"):
        after_fork(hook)  # type: ignore[arg-type]
