"""The races of a table one by one, each played out step by step over a real server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.children import in_child
from support.stepping import Cache, Going, Overhearing, StraightDrive

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.drive import run
from echomq_tasks.cache.frames import tag_id
from echomq_tasks.cache.store import Store
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_key

KEY = brand("ROW", 1)
TAG = "tag"


class Two:
    """Two processes with one table; each write is told to both, who hear it when :meth:`hear` is called."""

    def __init__(self, connection: Connection) -> None:
        self.name = f"races-{secrets.token_hex(6)}"
        self.connection = connection
        self.store = Store(self.name, "ROW", connection)
        self.a, self.b = (Cache(self.name, connection, self.store) for _ in range(2))
        self.overhearing = Overhearing(connection, self.store)

    def close(self) -> None:
        self.overhearing.close()

    def hear(self, *caches: Cache) -> None:
        """All that was said until now."""
        for message in self.overhearing.look():
            for cache in (self.a, self.b):
                cache.said(*message)
        for cache in caches:
            while cache.hear():
                pass

    def call(self, value: Any) -> Call:
        return Call(KEY, b"", lambda: value, None, (TAG,), (tag_id(TAG),))

    def fetch(self, cache: Cache, value: Any) -> Any:
        """Ask at once; ``value`` is what a loader returns."""
        return run(cache.reader.value(self.call(value), StraightDrive()))

    def begin(self, cache: Cache, value: Any, until: str, *, refresh: bool = False) -> Going:
        """Ask, and stop once the call has its claim answered, has loaded, or has stored."""
        reader, call = cache.reader, self.call(value)
        drive = cache.drive()
        going = Going(reader.refresh(call, drive) if refresh else reader.value(call, drive))
        # Each of the three stops before and after what it does.
        for _ in range({"claimed": 2, "loaded": 4, "stored": 6}[until]):
            if not going.done:  # it has found what another one put there
                going.go_on()
        return going

    def end(self, going: Going) -> Any:
        for _ in range(50):
            if going.done:
                break
            going.go_on()
        assert going.done
        if going.error is not None:
            raise going.error
        return going.value


@pytest.fixture
def two(standalone: Connection) -> Iterator[Two]:
    made = Two(standalone)
    yield made
    made.close()


WRITES: dict[str, Callable[[Cache], Any]] = {
    "drop": lambda cache: cache.coherence.drop(KEY),
    "put": lambda cache: cache.coherence.put(KEY, b"", "put", None, (TAG,)),
    "tag": lambda cache: cache.coherence.drop_tag(TAG),
    "clear": lambda cache: cache.coherence.clear(),
}


@pytest.fixture(params=WRITES)
def write(request: pytest.FixtureRequest) -> Callable[[Cache], Any]:
    return WRITES[request.param]


def new(value: Any) -> bool:
    return value in ("new", "put")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("until", ["claimed", "loaded", "stored"])
@pytest.mark.parametrize("there", [False, True])
def test_who_asks_after_a_write_does_not_join_who_asked_while_it_was_told(
    two: Two, write: Callable[[Cache], Any], when: str, until: str, there: bool
) -> None:
    if there:
        two.fetch(two.b, "old")
        until = "claimed"
    begun: list[Going] = []
    calls = iter(("before", "after"))

    def between() -> None:
        if next(calls, None) == when:
            begun.append(two.begin(two.a, "old", until))

    two.a.reach.between = between
    write(two.a)
    two.a.reach.between = lambda: None
    (going,) = begun
    if when == "before":
        # A load that begins once the server was told is as new as the write.
        assert new(two.fetch(two.a, "new"))
    assert two.end(going) in ("old", "put")
    if when == "before":
        assert new(two.fetch(two.a, "new"))


@pytest.mark.parametrize("until", ["claimed", "loaded", "stored"])
@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("first", ["ends", "is-asked-again"])
def test_a_value_on_its_way_here_while_another_process_writes_is_not_kept(
    two: Two, write: Callable[[Cache], Any], until: str, there: bool, first: str
) -> None:
    if there:
        two.fetch(two.b, "old")
        until = "claimed"
    going = two.begin(two.a, "old", until)
    write(two.b)
    two.hear(two.a, two.b)
    if first == "ends":
        assert two.end(going) == "old"
        assert new(two.fetch(two.a, "new"))
    else:
        assert new(two.fetch(two.a, "new"))
        assert two.end(going) == "old"
    assert new(two.fetch(two.a, "new"))
    assert new(two.fetch(two.b, "new"))


def test_a_row_that_was_read_just_before_it_was_dropped_is_not_kept(two: Two, write: Callable[[Cache], Any]) -> None:
    two.fetch(two.b, "old")
    two.store.claim(KEY, "other", 1000)  # a hit, so that the next one is looked for first
    asked = iter(range(2))

    def between() -> None:
        if next(asked, None) == 1:  # it has its answer
            write(two.b)
            two.hear(two.a, two.b)

    two.a.reach.between = between
    assert two.fetch(two.a, "none") == "old"
    assert new(two.fetch(two.a, "new"))


@pytest.mark.parametrize("until", ["claimed", "loaded"])
def test_a_load_that_was_too_late_is_not_kept_before_its_process_hears_why(
    two: Two, write: Callable[[Cache], Any], until: str
) -> None:
    going = two.begin(two.a, "old", until)
    write(two.b)
    assert two.end(going) == "old"
    assert new(two.fetch(two.a, "new"))


def test_a_write_that_the_server_was_not_told_of_is_told_when_it_is_back(
    two: Two, write: Callable[[Cache], Any]
) -> None:
    assert two.fetch(two.a, "old") == two.fetch(two.b, "old") == "old"
    two.a.cut()
    write(two.a)
    assert new(two.fetch(two.a, "new"))
    two.hear(two.b)
    assert two.fetch(two.b, "new") == "old"  # which nobody could tell it
    two.a.heal()
    assert new(two.fetch(two.a, "new"))
    two.hear(two.a, two.b)
    assert new(two.fetch(two.b, "new"))
    assert not two.a.reach.owed


def test_a_write_whose_answer_was_lost_is_told_once_more(two: Two, write: Callable[[Cache], Any]) -> None:
    two.fetch(two.b, "old")
    two.a.reach.losing = True
    write(two.a)
    assert two.a.reach.owed
    two.a.reach.ask(lambda store: None)
    assert not two.a.reach.owed
    two.hear(two.a, two.b)
    assert new(two.fetch(two.a, "new"))
    assert new(two.fetch(two.b, "new"))


def test_more_writes_than_are_kept_drop_the_whole_table(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echomq_tasks.cache.owed._MOST", 3)
    two.fetch(two.b, "old")
    two.a.cut()
    two.a.coherence.drop(KEY)
    for number in range(2, 6):
        two.a.coherence.drop(brand("ROW", number))
    two.a.heal()
    assert two.fetch(two.a, "new") == "new"
    two.hear(two.a, two.b)
    assert two.fetch(two.b, "new") == "new"


def test_a_child_of_a_fork_gets_nothing_of_what_its_parent_could_not_drop(two: Two) -> None:
    two.fetch(two.b, "old")
    two.a.cut()
    two.a.coherence.drop(KEY)
    two.a.heal()

    def child() -> Any:
        return two.fetch(two.a, "new"), bool(two.a.reach.owed)

    assert in_child(child) == ("new", False)
    # Which does not know of it.
    assert two.a.reach.owed


def test_what_was_missed_is_found_out_by_a_look_at_the_version(two: Two, write: Callable[[Cache], Any]) -> None:
    assert two.fetch(two.a, "old") == "old"
    two.a.cut()
    write(two.b)
    two.a.heal()
    assert new(two.fetch(two.a, "new"))
    two.a.cut()
    two.a.heal()
    row = two.a.parts.l1.get(KEY)
    assert row is not None
    assert row.suspect
    assert new(two.fetch(two.a, "newest"))  # nothing was written, so it stands
    assert two.a.parts.l1.get(KEY) is row
    assert not row.suspect


def test_messages_that_are_missed_while_a_value_is_on_its_way_make_it_suspect(two: Two) -> None:
    two.fetch(two.b, "old")
    going = two.begin(two.a, "old", "claimed")
    two.a.cut()
    two.b.coherence.drop(KEY)
    two.a.heal()
    assert two.end(going) == "old"
    assert two.fetch(two.a, "new") == "new"


def test_a_value_that_cannot_be_checked_serves_on(two: Two) -> None:
    two.fetch(two.a, "old")
    two.a.cut()
    two.a.coherence.back()
    assert two.fetch(two.a, "new") == "old"
    assert two.a.parts.counters.read()["skipped"] == 1


@pytest.mark.parametrize("until", ["claimed", "loaded"])
@pytest.mark.parametrize("where", ["here", "there"])
def test_a_refresh_does_not_take_what_began_before_it(two: Two, until: str, where: str) -> None:
    going = two.begin(two.a if where == "here" else two.b, "old", until)
    refresh = two.begin(two.a, "new", "claimed", refresh=True)
    assert two.end(refresh)[1] == "new"
    assert two.end(going) in ("old", "new")
    two.hear(two.a, two.b)
    assert two.fetch(two.a, "newest") == "new"
    assert two.fetch(two.b, "newest") == "new"


def test_who_asks_after_a_refresh_does_not_join_who_has_read_the_old_value_meanwhile(two: Two) -> None:
    two.fetch(two.b, "old")
    refresh = two.begin(two.a, "new", "loaded", refresh=True)
    # As by the news of an earlier drop; else who asks meanwhile joins the refresh.
    two.a.parts.flights.detach(KEY)
    reading = two.begin(two.a, "none", "claimed")
    assert two.end(refresh)[1] == "new"
    assert two.fetch(two.a, "none") == "new"
    assert two.end(reading) == "old"
    assert two.fetch(two.a, "none") == "new"


def test_a_refresh_is_told_to_the_others_whether_the_server_is_there_or_not(two: Two) -> None:
    assert two.fetch(two.a, "old") == two.fetch(two.b, "old") == "old"
    for cut, value in ((False, "new"), (True, "newer")):
        if cut:
            two.a.cut()
        assert two.end(two.begin(two.a, value, "claimed", refresh=True))[1] == value
        if cut:
            two.a.heal()
            two.fetch(two.a, value)
        two.hear(two.a, two.b)
        assert two.fetch(two.b, value) == value
        assert two.fetch(two.a, value) == value


def test_a_refresh_that_was_dropped_over_leaves_no_older_value_here(two: Two) -> None:
    two.fetch(two.a, "old")
    refresh = two.begin(two.a, "new", "loaded", refresh=True)
    two.b.coherence.drop(KEY)
    assert two.end(refresh)[1] == "new"
    assert two.fetch(two.a, "newest") == "newest"


def test_a_value_of_the_server_replaces_one_that_was_loaded_without_it(two: Two) -> None:
    # By a clock that is ahead: what is there in the end is the server's, or it would be checked at every call.
    two.a.cut()
    assert two.fetch(two.a, "alone") == "alone"
    row = two.a.parts.l1.get(KEY)
    assert row is not None
    row.version = brand("ROW", 2**62)
    two.fetch(two.b, "shared")
    two.a.heal()
    assert two.fetch(two.a, "new") == "shared"
    assert two.a.parts.l1.get(KEY) is not row


def test_a_leader_that_could_not_be_heard_leaves_no_lease_behind(two: Two) -> None:
    two.a.reach.losing = True
    assert two.fetch(two.a, "alone") == "alone"
    client: Any = two.connection.client
    assert client.get(cache_key(two.name, KEY, "flight")) is None
