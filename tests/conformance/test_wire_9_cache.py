"""Wire §9, the second layer: rows, flights and coherence messages as other runtimes write and read them."""

from __future__ import annotations

import pytest
from conformance.scenarios import scenario
from support.tables import FAR, MINUTE, NEXT, OLD, OLDER_BY_CASE, A, B, C, Rows

from echomq_tasks.cache.claims import Follow, Hit, Lead
from echomq_tasks.cache.frames import coherence_message, newer, tag_id
from echomq_tasks.cache.store import ALWAYS, Store
from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidId
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.keyspace import cache_key


@pytest.fixture
def store(connection: Connection, queue_name: str) -> Store:
    """A table of the kind USR."""
    return Store(queue_name, "USR", connection)


@pytest.fixture
def rows(connection: Connection, queue_name: str) -> Rows:
    """The raw keys of the same table."""
    return Rows(connection, queue_name)


def lead(store: Store, row_id: str = A, owner: str = "me", **more: object) -> str:
    """Begin a flight; answers its version."""
    verdict = store.claim(row_id, owner, 5000, **more)  # type: ignore[arg-type]
    assert isinstance(verdict, Lead)
    return verdict.version


def flight(rows: Rows, row_id: str) -> tuple[str, str, str]:
    """The version, the mark of followers and the owner of a flight, whose lease must not have ended."""
    found = rows.read(f"{row_id}:flight")
    assert int(found[15:28]) > rows.now_ms() - 1000
    return found[:14], found[14], found[28:]


# -- the row ---------------------------------------------------------------------------------------------------------


@scenario("9.01.1", "L2 at `ecc:{table}:<id>`, string PX: 14-byte version, then the value; under one TTL")
def test_a_fill_and_a_put_write_the_frame_and_nothing_else_that_stays(
    store: Store, rows: Rows, queue_name: str
) -> None:
    version = lead(store)
    assert store.fill(A, "me", version, b"\x00value\xff", 90_000)
    put = store.put(B, None, b"", 3_600_000)
    assert rows.client.get(cache_key(queue_name, A)) == version.encode() + b"\x00value\xff"
    assert rows.frame(B) == put.encode()
    assert 0 < rows.left(A) <= 90_000 < rows.left(B) <= 3_600_000
    assert sorted(rows.keys()) == [A, B]


@scenario("9.01.2", "a row that another runtime wrote is a hit, with its version, its bytes and what it has left")
def test_a_row_of_another_runtime_is_read(store: Store, rows: Rows) -> None:
    rows.write(A, OLD.encode() + b"\x00\xff")
    rows.write(B, "EVT0NgWEfAEJfs")
    hit = store.claim(A, "me", 5000)
    assert isinstance(hit, Hit)
    assert (hit.version, hit.value) == (OLD, b"\x00\xff")
    assert 0 < hit.pttl_ms <= MINUTE
    peeked = store.peek(A)
    assert peeked is not None
    assert peeked._replace(pttl_ms=hit.pttl_ms) == hit
    assert store.peek(B) is not None
    assert (store.version(A), store.version(B)) == (OLD, "EVT0NgWEfAEJfs")
    assert sorted(rows.keys()) == [A, B]


@scenario("9.01.3", "a row without an end, as no runtime should write one, is a hit for as long as it is there")
def test_a_row_without_an_end_is_a_hit(store: Store, rows: Rows) -> None:
    rows.write(A, OLD + "v", px=None)
    hit = store.claim(A, "me", 5000, least_ms=3_600_000)
    assert isinstance(hit, Hit)
    assert hit.pttl_ms > 365 * 86_400_000


# -- a short frame ---------------------------------------------------------------------------------------------------


@scenario("9.02.1", "a short frame (< 14 bytes) is a miss, and so is one that begins with no version")
@pytest.mark.parametrize(
    "frame", [b"", b"USR0NgWEfAEKZ", b"usr0NgWEfAEKZzv", b"USR0NgWEfAE-Zzv", b"USRzzzzzzzzzzzv", b"\xff" * 20]
)
def test_a_short_or_damaged_frame_is_a_miss_and_is_written_over(store: Store, rows: Rows, frame: bytes) -> None:
    rows.write(A, frame)
    assert store.peek(A) is None
    assert store.version(A) is None
    version = lead(store)
    assert store.fill(A, "me", version, b"v", MINUTE)
    assert rows.frame(A) == version.encode() + b"v"


@scenario("9.02.2", "what is no string is a miss, too")
def test_a_key_of_another_type_is_a_miss_and_is_written_over(store: Store, rows: Rows) -> None:
    for row_id in (A, B, C):
        rows.do("HSET", row_id, "a", "b")
    assert store.peek(A) is None
    version = lead(store)
    assert store.fill(A, "me", version, b"v", MINUTE)
    put = store.put(B, None, b"v", 3_600_000)
    dropped = store.drop(C)
    assert rows.everything() == {A: f"{version}v", B: f"{put}v", f"{C}:dropped": dropped}


# -- one flight per key ----------------------------------------------------------------------------------------------


@scenario("9.03.1", "one flight per key: of many who miss, one loads, under a lease; the others follow")
def test_one_of_many_leads_and_the_others_follow_its_owner(store: Store, rows: Rows) -> None:
    version = lead(store, owner="first")
    assert flight(rows, A) == (version, "0", "first")
    for owner in ("second", "third"):
        verdict = store.claim(A, owner, 5000)
        assert isinstance(verdict, Follow)
        assert verdict.owner == "first"
        assert 0 < verdict.pttl_ms <= 5000
    assert flight(rows, A) == (version, "1", "first")
    assert rows.left(f"{A}:flight") > 5000  # known for longer than its lease
    assert isinstance(store.claim(B, "second", 5000), Lead)


@scenario("9.03.2", "one flight per key: its end wakes those who follow, and nobody else is told")
def test_the_end_of_a_flight_is_told_to_its_followers(store: Store, rows: Rows) -> None:
    with rows.listening("wake") as ear:
        for end, told in (
            (lambda version: store.fill(A, "me", version, b"v", MINUTE), b"filled me "),
            (lambda version: store.fail(A, "me", b"a\x00b c"), b"failed me a\x00b c"),
            (lambda version: store.release(A, "me", b"alone"), b"released me alone"),
        ):
            assert end(lead(store))
            assert ear.raw() == []
            store.drop(A)
            version = lead(store)
            store.claim(A, "you", 5000)
            assert end(version)
            assert ear.raw() == [A.encode() + b" " + told]
            assert rows.read(f"{A}:flight") is None
            store.drop(A)
            assert ear.raw() == []


@scenario("9.03.3", "one flight per key: the lease of a leader that is gone ends, and the next one leads")
def test_a_leader_that_is_gone_is_replaced(store: Store, rows: Rows) -> None:
    rows.write(f"{A}:flight", f"{FAR}1{rows.now_ms() - 1}dead")
    version = lead(store, owner="next")
    assert newer(version, FAR)
    assert flight(rows, A) == (version, "0", "next")
    assert not store.renew(A, "dead", 5000)
    assert store.renew(A, "next", 50_000)
    verdict = store.claim(A, "you", 5000)
    assert isinstance(verdict, Follow)
    assert 5000 < verdict.pttl_ms <= 50_000


@scenario("9.03.4", "one flight per key: a leader whose lease ended may still store what is newer than any row or drop")
def test_a_leader_that_was_late_is_not_dead(store: Store, rows: Rows) -> None:
    for row_id, dropped in ((A, False), (B, True)):
        version = store.mint()
        rows.write(f"{row_id}:flight", f"{version}0{rows.now_ms() - 1}late")
        if dropped:
            # By a machine whose clock is behind.
            assert newer(store.drop(row_id, OLD), version)
        assert store.renew(row_id, "late", 5000) is not dropped
        assert store.fill(row_id, "late", version, b"v", MINUTE) is not dropped


@scenario("9.03.5", "one flight per key: of a row that is there, too, when it has less left than is asked for")
def test_a_row_that_is_about_to_end_is_loaded_by_one(store: Store, rows: Rows) -> None:
    rows.write(A, OLD + "v")
    assert isinstance(store.claim(A, "me", 5000, least_ms=1000), Hit)
    version = lead(store, least_ms=ALWAYS)
    assert isinstance(store.claim(A, "you", 5000, least_ms=ALWAYS), Follow)
    assert isinstance(store.claim(A, "you", 5000), Hit)
    assert store.fill(A, "me", version, b"w", MINUTE)
    assert rows.frame(A) == version.encode() + b"w"


# -- the flight's version --------------------------------------------------------------------------------------------


@scenario("9.04.1", "with the flight's version, minted before the loader runs")
def test_the_version_is_minted_by_the_claim(store: Store, rows: Rows) -> None:
    version = lead(store)
    assert version.startswith("USR")
    assert abs(minted_at_ms(version) - rows.now_ms()) < 60_000
    assert newer(store.mint(), version)


@scenario("9.04.2", "and above whatever was there, also where a clock was ahead")
def test_the_version_is_above_a_row_and_a_dropped_one_from_a_clock_that_was_ahead(store: Store, rows: Rows) -> None:
    rows.write(A, FAR + "v")
    assert newer(lead(store, A, least_ms=ALWAYS), FAR)
    rows.write(f"{B}:dropped", FAR)
    version = lead(store, B)
    assert newer(version, FAR)
    assert store.fill(B, "me", version, b"v", MINUTE)


@scenario("9.04.3", "so that what is dropped or put while the loader runs is newer, also where a clock is behind")
def test_a_put_or_drop_is_above_the_flight_under_way(store: Store, rows: Rows) -> None:
    for row_id, settle in ((A, lambda: store.drop(A, OLD)), (B, lambda: store.put(B, OLD, b"new", MINUTE))):
        version = lead(store, row_id)
        settled = settle()
        assert newer(settled, version)
        assert not store.renew(row_id, "me", 5000)
        assert not store.fill(row_id, "me", version, b"stale", MINUTE)
    assert rows.frame(A) is None
    assert (rows.frame(B) or b"")[14:] == b"new"


# -- newer wins ------------------------------------------------------------------------------------------------------


@scenario("9.05.1", "newer wins everywhere: versions compare by their last 11 bytes, whatever their kinds")
@pytest.mark.parametrize(
    ("there", "mine", "stored"),
    [
        (OLD, OLDER_BY_CASE, True),
        (OLDER_BY_CASE, OLD, False),
        ("AAA" + OLDER_BY_CASE[3:], "ZZZ" + OLD[3:], False),
        ("ZZZ" + OLD[3:], "AAA" + OLDER_BY_CASE[3:], True),
        (NEXT, NEXT, False),
    ],
)
def test_a_fill_stores_only_above_the_row_that_is_there(
    store: Store, rows: Rows, there: str, mine: str, stored: bool
) -> None:
    rows.write(A, there + "theirs")
    # Its load began just now, as far as it can be told: an old one would have to show its flight.
    rows.write(f"{A}:flight", f"{mine}0{rows.now_ms() + MINUTE}me")
    assert store.fill(A, "me", mine, b"mine", MINUTE) is stored
    assert rows.frame(A) == (f"{mine}mine" if stored else f"{there}theirs").encode()
    assert rows.read(f"{A}:flight") is None


@scenario("9.05.2", "newer wins everywhere: a row that another runtime fills with what was dropped before is a miss")
def test_a_row_below_the_dropped_version_is_a_miss(store: Store, rows: Rows) -> None:
    before = store.mint()
    dropped = store.drop(A)
    rows.write(A, before + "stale")
    assert store.peek(A) is None
    assert store.version(A) is None
    assert newer(lead(store), dropped)
    rows.write(A, store.mint() + "fresh")
    assert isinstance(store.claim(A, "you", 5000), Hit)


@scenario("9.05.3", "newer wins everywhere: a put is above whatever was there, and so is a drop, just above if need be")
def test_a_put_and_a_drop_are_above_what_is_there(store: Store, rows: Rows) -> None:
    rows.write(A, FAR + "v")
    put = store.put(A, None, b"w", 3_600_000)
    assert newer(put, FAR)
    assert rows.frame(A) == put.encode() + b"w"
    dropped = store.drop(A)
    assert newer(dropped, put)
    assert rows.everything() == {f"{A}:dropped": dropped}
    assert 0 < rows.left(f"{A}:dropped") <= 600_000
    assert newer(store.put(A, OLD, b"x", 3_600_000), dropped)
    assert store.put(B, NEXT, b"x", 3_600_000) == NEXT


@scenario("9.05.4", "newer wins everywhere: what was loaded before a put does not come when the put's row has ended")
def test_a_row_that_was_put_for_a_moment_leaves_its_version(store: Store, rows: Rows) -> None:
    before = store.mint()
    put = store.put(A, None, b"v", 1000)
    assert isinstance(store.claim(A, "me", 5000), Hit)
    rows.do("DEL", A)  # as its end does
    assert not store.fill(A, "me", before, b"stale", MINUTE)
    assert rows.read(f"{A}:dropped") == put


# -- coherence messages ----------------------------------------------------------------------------------------------


@scenario("9.06.1", "`ecc:{table}:coh`: `<id>:<version>`, 29 bytes, for each put and each drop; none for a fill")
def test_a_put_and_a_drop_are_told_on_the_channel(store: Store, rows: Rows) -> None:
    with rows.listening() as ear:
        assert store.fill(A, "me", lead(store), b"v", MINUTE)
        assert ear.raw() == []
        put, dropped, others = store.put(A, None, b"v", MINUTE), store.drop(A), store.drop_many([B, C])
        told = [(A, put), (A, dropped), (B, others[0]), (C, others[1])]
        heard = ear.raw()
        assert heard == [coherence_message(*each) for each in told]
        assert {len(data) for data in heard} == {29}


@scenario(
    "9.06.2", "a fill that replaces a row before its end is told when that is asked for, and one that is old never"
)
def test_a_refresh_is_told_on_the_channel(store: Store, rows: Rows) -> None:
    rows.write(A, OLD + "v")
    with rows.listening() as ear:
        version = lead(store, least_ms=ALWAYS)
        assert store.fill(A, "me", version, b"w", MINUTE, announce=True)
        assert ear.raw() == [coherence_message(A, version)]
        # Whoever came before it may have told nobody.
        assert not store.fill(A, "me", OLD, b"x", MINUTE, announce=True)
        assert ear.raw() == [coherence_message(A, version)]


@scenario("9.06.3", "all rows of a table: each is told by its version, before a message that stands for all")
def test_clearing_a_table_drops_every_row_and_tells_of_each(store: Store, rows: Rows) -> None:
    rows.write(A, FAR + "v")
    version = lead(store, B)
    rows.write("ORD0NgWEfAEJ0A", OLD)  # of another kind: no row of this table
    with rows.listening() as ear:
        assert store.clear() == 2
        *told, everything = ear.raw()
        assert everything.startswith(b"TAG00000000000:")
        assert len(everything) == 29
        [version_of_a] = [each.decode()[15:] for each in told if each.startswith(A.encode())]
        assert newer(version_of_a, FAR)
        assert len(told) == 2
    assert rows.frame(A) is None
    assert not store.fill(B, "me", version, b"stale", MINUTE)
    assert rows.frame("ORD0NgWEfAEJ0A") == OLD.encode()


# -- the conditional drop --------------------------------------------------------------------------------------------


@scenario("9.07.1", "a conditional drop script: a row goes only if the message is newer, and it is told no further")
@pytest.mark.parametrize(
    ("there", "message", "dropped"),
    [
        (OLD, OLDER_BY_CASE, True),
        (OLDER_BY_CASE, OLD, False),
        (OLD, OLD, False),
        ("ZZZ" + OLD[3:], OLDER_BY_CASE, True),
    ],
)
def test_a_message_drops_an_older_row_only(store: Store, rows: Rows, there: str, message: str, dropped: bool) -> None:
    rows.write(A, there + "v")
    with rows.listening() as ear:
        assert store.apply(A, message) is dropped
        assert store.apply(A, message) is False
        assert ear.raw() == []
    assert rows.everything() == ({f"{A}:dropped": message} if dropped else {A: f"{there}v"})


@scenario("9.07.2", "nor does a load that is older than the message fill the row")
def test_a_message_ends_an_older_flight_and_leaves_a_newer_one(store: Store, rows: Rows) -> None:
    older = lead(store, A)
    store.claim(A, "you", 5000)
    message = store.mint()
    newer_one = lead(store, B)
    with rows.listening("wake") as ear:
        assert store.apply(A, message) is False
        assert store.apply(B, message) is False
        assert ear.raw() == [f"{A} dropped me ".encode()]
    assert not store.fill(A, "me", older, b"stale", MINUTE)
    assert store.fill(B, "me", newer_one, b"v", MINUTE, led=True)


# -- the kind --------------------------------------------------------------------------------------------------------


@scenario("9.08.1", "a table declares its kind; an id of another kind is refused before a byte is sent")
def test_an_id_of_another_kind_is_refused(store: Store, rows: Rows) -> None:
    before = rows.dumps()
    for bad in ("ORD0NgWEfAEJ0A", "USR0NgWEfAEJ0", "USRzzzzzzzzzzz", "", None):
        for verb in (
            lambda row_id: store.claim(row_id, "me", 5000),
            lambda row_id: store.fill(row_id, "me", NEXT, b"v", 1000),
            lambda row_id: store.put(row_id, None, b"v", 1000),
            lambda row_id: store.apply(row_id, NEXT),
            store.peek,
            store.version,
            store.drop,
        ):
            with pytest.raises(InvalidId):
                verb(bad)  # type: ignore[no-untyped-call]
    assert rows.dumps() == before == {}


# -- tags ------------------------------------------------------------------------------------------------------------


@scenario("9.09.1", "additive: rows of a tag are a miss when it was dropped since; others are untouched")
def test_dropping_a_tag_drops_its_rows(store: Store, rows: Rows) -> None:
    for row_id, tags in ((A, ["user:7"]), (B, ["user:8", "user:7"]), (C, ["user:8"])):
        assert store.fill(row_id, "me", lead(store, row_id, tags=tags), b"v", MINUTE, tags)
    with rows.listening() as ear:
        version = store.drop_tag("user:7")
        assert ear.raw() == [coherence_message(tag_id("user:7"), version)]
    assert rows.read(f"tag:{tag_id('user:7')}") == version
    assert store.peek(A, ["user:7"]) is None
    assert store.version(B, ["user:8", "user:7"]) is None
    assert isinstance(store.claim(C, "you", 5000, ["user:8"]), Hit)
    again = lead(store, A, tags=["user:7"])
    assert newer(again, version)
    assert store.fill(A, "me", again, b"w", MINUTE, ["user:7"])
    assert store.version(A, ["user:7"]) == again


@scenario("9.09.2", "additive: a tag is dropped above all of its rows and flights, also where a clock is behind")
def test_a_tag_is_dropped_above_what_has_it(store: Store, rows: Rows) -> None:
    flying = lead(store, A, tags=["t"])
    put = store.put(B, None, b"v", MINUTE, ["t"])
    dropped = store.drop_tag("t", OLD)
    assert newer(dropped, put)
    assert newer(dropped, flying)
    assert not store.fill(A, "me", flying, b"stale", MINUTE, ["t"])
    assert store.peek(B, ["t"]) is None
    assert store.peek(B) is not None


@scenario("9.09.3", "additive: a flight from before a tag was dropped is followed by nobody who comes later")
def test_whoever_comes_after_a_tag_was_dropped_loads_anew(store: Store, rows: Rows) -> None:
    lead(store, A, owner="first", tags=["t"])
    store.claim(A, "second", 5000, ["t"])
    store.drop_tag("t")
    with rows.listening("wake") as ear:
        lead(store, A, owner="third", tags=["t"])
        assert ear.raw() == [f"{A} dropped first ".encode()]
    assert isinstance(store.claim(A, "second", 5000, ["t"]), Follow)


@scenario("9.09.4", "additive: a message of a tag is applied only if it is newer")
def test_a_message_of_a_tag_is_applied(store: Store, rows: Rows) -> None:
    key = f"tag:{tag_id('t')}"
    with rows.listening() as ear:
        for message, after in ((OLD, OLD), (NEXT, NEXT), (OLD, NEXT), (NEXT, NEXT)):
            assert store.apply(tag_id("t"), message) is False
            assert rows.read(key) == after
        assert ear.raw() == []


@scenario("9.09.5", "additive: a tag is remembered for longer than any row that has it can live")
def test_a_row_with_tags_ends_before_its_tag(store: Store, rows: Rows) -> None:
    month = 30 * 86_400_000
    store.put(A, None, b"v", month, ["t"])
    store.put(B, None, b"v", month)
    assert store.fill(C, "me", lead(store, C, tags=["t"]), b"v", month, ["t"])
    store.drop_tag("t")
    assert max(rows.end(A), rows.end(C)) <= rows.end(f"tag:{tag_id('t')}") < rows.end(B)
    assert max(rows.end(A), rows.end(C)) <= rows.end("tag:top")
