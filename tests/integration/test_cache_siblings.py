"""Functions and tables of one name in one process: what one of them drops, none of the others gives any more."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.caches import Source
from support.children import in_child
from support.eventually import eventually

from echomq_tasks import Connection, cached
from echomq_tasks.cache import beat, coherence, owed, reach, siblings
from echomq_tasks.cache import table as table_module
from echomq_tasks.cache.table import Table
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.identity import brand

ROW = brand("ROW", 1)


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """No broadcast is heard in this process, and nothing is done in the background for long."""
    monkeypatch.setattr(beat, "EVERY", 600.0)
    monkeypatch.setattr(coherence.Coherence, "heard", lambda *_: None)


@pytest.fixture(params=["server", "alone"])
def options(request: pytest.FixtureRequest, queue_name: str, deaf: None) -> dict[str, Any]:
    """Those of functions that share a table, on a server or without one."""
    if request.param == "alone":
        return {"name": queue_name, "l2": False}
    return {"name": queue_name, "connection": request.getfixturevalue("standalone")}


class World:
    """What the functions look at."""

    def __init__(self) -> None:
        self.now = "old"

    def look(self, number: int) -> str:
        return self.now


VERBS: dict[str, Callable[[Any], Any]] = {
    "invalidate": lambda function: function.invalidate(1),
    "invalidate_tags": lambda function: function.invalidate_tags("number:1"),
    "cache_clear": lambda function: function.cache_clear(),
    "refresh": lambda function: function.refresh(1) == "new",
    "put": lambda function: function.put(1, "new"),
    "put that is not kept": lambda function: function.table.put(function.key_for(1), "new", ttl=0),
}


@pytest.mark.parametrize("verb", VERBS)
def test_what_one_drops_the_other_does_not_give_any_more(options: dict[str, Any], verb: str) -> None:
    world = World()
    one, two = (cached(tags=lambda number: [f"number:{number}"], **options)(world.look) for _ in range(2))
    assert one(1) == two(1) == "old"
    world.now = "new"
    assert VERBS[verb](one)
    assert two(1) == "new"


def test_a_tag_is_of_all_functions_of_the_table_whatever_their_kind(options: dict[str, Any]) -> None:
    world = World()

    @cached(tags=lambda customer: [f"customer:{customer}"], **options)
    def orders(customer: int) -> str:
        return world.now

    @cached(tags=lambda customer, year: [f"customer:{customer}"], kind="TRN", **options)
    def turnover(customer: int, year: int) -> str:
        return world.now

    assert orders(7) == turnover(7, 2026) == turnover(8, 2026) == "old"
    world.now = "new"
    assert orders.invalidate_tags("customer:7")
    assert (turnover(7, 2026), turnover(8, 2026)) == ("new", "old")
    world.now = "newer"
    assert turnover.invalidate_tags("customer:7")
    assert orders(7) == "newer"


def test_what_another_one_loads_while_it_is_dropped_is_not_kept(queue_name: str) -> None:
    one, two = (Table(queue_name, "ROW", l2=False) for _ in range(2))
    source = Source()
    source.hold()
    before: list[int] = []
    caller = threading.Thread(target=lambda: before.append(two.fetch(ROW, source)))
    caller.start()
    source.started()
    assert one.invalidate(ROW)
    source.go()
    caller.join()
    assert (before, two.fetch(ROW, source)) == ([1], 2)


def test_a_message_that_one_applies_is_for_all(standalone: Connection, queue_name: str, deaf: None) -> None:
    one, two = (Table(queue_name, "ROW", standalone) for _ in range(2))
    source = Source()
    assert two.fetch(ROW, source) == 1
    version = brand("ROW", 1 << 62)
    assert one.apply(f"{ROW}:{version}".encode())
    assert two.peek(ROW) is None


# While the server is away.


def away(table: Table) -> None:
    table._parts.reach.shared.breaker.failed(ServerUnavailable("as if"))  # type: ignore[union-attr]  # noqa: SLF001


def back(table: Table) -> None:
    """Wait until this table asks the server again."""

    def asks() -> bool:
        table.peek(brand(table.kind, 99))
        return not table.stats().away

    eventually(asks)


@pytest.mark.parametrize("kind", ["ROW", "TRN"])
@pytest.mark.parametrize("made", ["before", "later", "as-the-first-of-its-kind"])
@pytest.mark.parametrize("many", [False, True], ids=["one-tag", "more-than-are-kept"])
def test_what_one_could_not_drop_on_the_server_the_other_does_not_read_there(
    standalone: Connection,
    queue_name: str,
    deaf: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    made: str,
    many: bool,
) -> None:
    tags, other = ("all",), brand(kind, 1)
    one = Table(queue_name, "ROW", standalone)
    assert one.fetch(ROW, lambda: "old", tags=tags) == "old"
    # What was owed is paid by who asks, and by no thread besides.
    monkeypatch.setattr(reach.Reach, "pay", lambda _: False)
    with Connection(standalone.config) as elsewhere:
        # Another process's, which is nobody's sibling here.
        assert Table(queue_name, kind, elsewhere).fetch(other, lambda: "old", tags=tags) == "old"
    if made != "as-the-first-of-its-kind":
        first = Table(queue_name, kind, standalone)
        assert first.fetch(other, lambda: "none", tags=tags) == "old"
    away(one)
    if many:
        monkeypatch.setattr(owed, "_MOST", 0)
    assert not one.invalidate_tags("all")
    asks = first if made == "before" else Table(queue_name, kind, standalone)
    back(asks)
    assert asks.fetch(other, lambda: "new", tags=tags) == "new"


def test_a_row_that_one_could_not_drop_is_dropped_by_whoever_asks_next(
    standalone: Connection, queue_name: str, deaf: None
) -> None:
    one, two = (Table(queue_name, "ROW", standalone) for _ in range(2))
    assert two.fetch(ROW, lambda: "old") == one.fetch(ROW, lambda: "old") == "old"
    away(one)
    assert not one.invalidate(ROW)
    back(two)
    assert two.fetch(ROW, lambda: "new") == "new"


def test_the_lane_is_told_also_of_what_another_table_has_paid(
    standalone: Connection, queue_name: str, deaf: None
) -> None:
    sent: list[bytes] = []
    one = Table(queue_name, "ROW", standalone, coherence="lane", lane=sent.append)
    two = Table(queue_name, "ROW", standalone)
    two.fetch(ROW, lambda: "old")
    away(one)
    assert not one.invalidate(ROW)
    back(two)
    eventually(lambda: len(sent) == 2)
    assert {message[:15] for message in sent} == {f"{ROW}:".encode()}


# Who belongs together.


def test_functions_that_are_made_again_and_again_without_a_name_are_strangers() -> None:
    def make() -> Any:
        @cached
        def local(number: int) -> str:
            return "loaded"

        return local

    one, two = make(), make()
    two.put(1, "put")
    one.invalidate(1)
    one.cache_clear()
    assert two(1) == "put"


def test_a_table_on_a_server_and_one_without_are_strangers(standalone: Connection, queue_name: str) -> None:
    one, two = Table(queue_name, "ROW", standalone), Table(queue_name, "ROW", l2=False)
    two.put(ROW, "put")
    one.clear()
    assert two.peek(ROW) == "put"


def test_nobody_keeps_a_table_that_is_gone(queue_name: str) -> None:
    one, two = (Table(queue_name, "ROW", l2=False) for _ in range(2))
    gone, home = weakref.ref(two), weakref.ref(one._coherence._siblings)  # noqa: SLF001 - nothing tells
    del two
    gc.collect()
    assert gone() is None
    assert one.invalidate(ROW)
    del one
    gc.collect()
    assert home() is None


def test_a_child_of_a_fork_makes_tables_and_drops_in_all_of_them(queue_name: str) -> None:
    one = Table(queue_name, "ROW", l2=False)
    one.put(ROW, "old")

    def child() -> Any:
        two = Table(queue_name, "ROW", l2=False)
        told = two.invalidate(ROW)
        return told, one.peek(ROW)

    family = one._coherence._siblings  # noqa: SLF001
    # As by threads that the child does not have.
    with family._lock, siblings._LOCAL._lock, table_module._TABLES._lock:  # noqa: SLF001
        assert in_child(child) == (True, None)
    assert one.peek(ROW) == "old"
