"""The second layer where things go wrong: lost requests and replies, restarts, forks, many at once, bad arguments."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from support.children import in_child
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from support.tables import FAR, MINUTE, NEXT, OLD, A, B, C, Rows

from echomq_tasks.cache.claims import Follow, Hit, Lead
from echomq_tasks.cache.frames import coherence_message, newer, tag_id
from echomq_tasks.cache.store import ALWAYS, Store
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.identity import EPOCH_MS, brand
from echomq_tasks.scripts import load_scripts


@dataclass(frozen=True)
class Faulty:
    """A table behind a proxy, and its raw keys around it."""

    proxy: DroppingProxy
    store: Store
    rows: Rows

    def lose(self, what: str, script: str, times: int = 1) -> None:
        """Lose the request or the reply of the next calls of a script."""
        sought = load_scripts()[script].sha.encode()
        (self.proxy.drop_reply if what == "reply" else self.proxy.drop_request)(sought, times)

    def lost(self) -> int:
        return self.proxy.counts.dropped_replies + self.proxy.counts.dropped_requests


@pytest.fixture
def faulty(proxy: DroppingProxy, standalone: Connection, queue_name: str) -> Iterator[Faulty]:
    # A request that finds its script missing is answered with an error, which no fault is meant for.
    for name, script in load_scripts().items():
        if name.startswith("cache_"):
            standalone.client.script_load(script.text)
    with connect(proxy.url) as connection:
        store = Store(queue_name, "USR", connection)
        store.mint()
        yield Faulty(proxy, store, Rows(standalone, queue_name))


@pytest.fixture
def store(connection: Connection, queue_name: str) -> Store:
    return Store(queue_name, "USR", connection)


@pytest.fixture
def rows(connection: Connection, queue_name: str) -> Rows:
    return Rows(connection, queue_name)


def lead(store: Store, row_id: str = A, owner: str = "me", tags: tuple[str, ...] = ()) -> str:
    verdict = store.claim(row_id, owner, MINUTE, tags)
    assert isinstance(verdict, Lead)
    return verdict.version


LOSSES = pytest.mark.parametrize("what", ["request", "reply"])

# -- sent again ------------------------------------------------------------------------------------------------------


@LOSSES
def test_a_claim_that_is_sent_again_does_not_follow_itself(faulty: Faulty, what: str) -> None:
    faulty.lose(what, "cache_claim")
    version = lead(faulty.store)
    assert faulty.lost() == 1
    assert faulty.rows.read(f"{A}:flight")[:15] == f"{version}0"
    faulty.lose(what, "cache_claim")
    assert isinstance(faulty.store.claim(A, "you", MINUTE), Follow)
    faulty.store.fill(A, "me", version, b"v", MINUTE)
    faulty.lose(what, "cache_claim")
    assert isinstance(faulty.store.claim(A, "you", MINUTE), Hit)
    assert faulty.lost() == 3


@LOSSES
def test_a_claim_that_is_sent_again_keeps_its_followers(faulty: Faulty, what: str) -> None:
    version = lead(faulty.store)
    assert isinstance(faulty.store.claim(A, "you", MINUTE), Follow)
    faulty.lose(what, "cache_claim")
    assert lead(faulty.store) == version
    with faulty.rows.listening("wake") as ear:
        faulty.store.release(A, "me")
        assert ear.raw() == [f"{A} released me ".encode()]


@LOSSES
def test_a_fill_that_is_sent_again_has_one_verdict(faulty: Faulty, what: str) -> None:
    version = lead(faulty.store)
    faulty.store.claim(A, "you", MINUTE)
    with faulty.rows.listening("wake") as ear:
        faulty.lose(what, "cache_fill")
        assert faulty.store.fill(A, "me", version, b"v", MINUTE) is True
        assert ear.raw() == [f"{A} filled me ".encode()] * (2 if what == "reply" else 1)
        faulty.lose(what, "cache_fill")
        assert faulty.store.fill(A, "me", OLD, b"v", MINUTE) is False
    assert faulty.lost() == 2
    assert faulty.rows.frame(A) == version.encode() + b"v"


@LOSSES
@pytest.mark.parametrize("end", ["fail", "release"])
def test_the_end_of_a_flight_that_is_sent_again_reaches_its_followers(faulty: Faulty, what: str, end: str) -> None:
    lead(faulty.store)
    faulty.store.claim(A, "you", MINUTE)
    told = {"fail": "failed", "release": "released"}[end]
    with faulty.rows.listening("wake") as ear:
        faulty.lose(what, "cache_release")
        getattr(faulty.store, end)(A, "me", b"x")
        assert set(ear.raw()) == {f"{A} {told} me x".encode()}
    assert faulty.lost() == 1
    assert list(faulty.rows.keys()) == []


@LOSSES
def test_a_put_a_drop_and_a_tag_that_are_sent_again_have_one_version(faulty: Faulty, what: str) -> None:
    with faulty.rows.listening() as ear:
        faulty.lose(what, "cache_put")
        put = faulty.store.put(A, None, b"v", MINUTE)
        faulty.lose(what, "cache_drop")
        dropped = faulty.store.drop(A)
        faulty.lose(what, "cache_tag")
        tag = faulty.store.drop_tag("t")
        # Whoever is told twice of a drop has been told once.
        told = [coherence_message(*each) for each in ((A, put), (A, dropped), (tag_id("t"), tag))]
        assert list(dict.fromkeys(ear.raw())) == told
    assert faulty.lost() == 3
    assert faulty.rows.read(f"{A}:dropped") == dropped
    assert faulty.rows.read(f"tag:{tag_id('t')}") == tag


@LOSSES
def test_what_only_looks_or_renews_is_sent_again(faulty: Faulty, what: str) -> None:
    lead(faulty.store, B)
    faulty.rows.write(A, OLD + "v")
    for script, verb in (
        ("cache_get", lambda: faulty.store.version(A) == OLD),
        ("cache_renew", lambda: faulty.store.renew(B, "me", MINUTE)),
        ("cache_apply", lambda: faulty.store.apply(A, NEXT) is (what == "request")),
        ("cache_clear", lambda: faulty.store.clear() == 1),
    ):
        faulty.lose(what, script)
        assert verb(), script
    assert faulty.lost() == 4
    assert faulty.rows.frame(A) is None


def test_a_connection_that_drops_twice_is_told_and_the_next_call_goes_on(faulty: Faulty) -> None:
    faulty.lose("reply", "cache_claim", 2)
    with pytest.raises(ServerUnavailable):
        faulty.store.claim(A, "me", MINUTE)
    assert isinstance(faulty.store.claim(A, "me", MINUTE), Lead)
    assert isinstance(faulty.store.claim(A, "you", MINUTE), Follow)


# -- restarts, forks, many at once -----------------------------------------------------------------------------------


def test_a_flight_outlives_a_server_that_keeps_its_data_and_ends_with_one_that_does_not(
    own_server: ServerProcess, queue_name: str
) -> None:
    with connect(own_server.url, timeout=5) as connection:
        store = Store(queue_name, "USR", connection)
        version, other = lead(store, A), lead(store, B)
        own_server.kill()
        for verb in (lambda: store.claim(A, "you", MINUTE), lambda: store.fill(A, "me", version, b"v", MINUTE)):
            with pytest.raises(ServerUnavailable):
                verb()
        own_server.start()
        assert isinstance(store.claim(A, "you", MINUTE), Follow)
        assert store.fill(A, "me", version, b"v", MINUTE)
        assert isinstance(store.claim(A, "you", MINUTE), Hit)
        own_server.flush()
        assert not store.renew(B, "me", MINUTE)
        assert store.fill(B, "me", other, b"v", MINUTE)
        assert isinstance(store.claim(B, "you", MINUTE), Hit)


def test_of_many_threads_one_leads_and_the_others_follow_it(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        for row_id in (A, B, C):
            verdicts = list(pool.map(lambda n, row_id=row_id: store.claim(row_id, f"{n}", MINUTE), range(16)))
            (leader,) = (n for n, verdict in enumerate(verdicts) if isinstance(verdict, Lead))
            followed = {verdict.owner for verdict in verdicts if isinstance(verdict, Follow)}
            assert followed == {str(leader)}
            assert sum(isinstance(verdict, Follow) for verdict in verdicts) == 15


def test_a_forked_child_claims_and_fills_on_its_own(standalone: Connection, queue_name: str) -> None:
    store = Store(queue_name, "USR", standalone)
    lead(store, A)

    def child() -> str:
        assert isinstance(store.claim(A, "child", MINUTE), Follow)
        version = lead(store, B, "child")
        assert store.fill(B, "child", version, b"of the child", MINUTE)
        return version

    version = in_child(child)
    hit = store.claim(B, "me", MINUTE)
    assert isinstance(hit, Hit)
    assert (hit.version, hit.value) == (version, b"of the child")


def test_clearing_reaches_rows_and_flights_beyond_one_step_and_no_other_table(
    store: Store, rows: Rows, connection: Connection, queue_name: str
) -> None:
    other = Store(f"{queue_name}.other", "USR", connection)
    other.put(A, None, b"v", MINUTE)
    for number in range(1100):
        rows.write(brand("USR", number), OLD + "v")
    version = lead(store, A)
    assert store.clear() == 1101
    assert {suffix.endswith(":dropped") for suffix in rows.keys()} == {True}
    assert not store.fill(A, "me", version, b"stale", MINUTE)
    assert other.peek(A) is not None
    assert store.clear() == 0


def test_many_are_dropped_in_order_and_beyond_one_step(store: Store, rows: Rows) -> None:
    ids = [brand("USR", number) for number in range(1100)]
    rows.write(ids[700], FAR + "v")
    versions = store.drop_many(ids)
    assert newer(versions[700], FAR)
    assert len(set(versions[:700] + versions[701:])) == 1
    assert len(versions) == 1100
    assert store.drop_many([]) == []


# -- late ------------------------------------------------------------------------------------------------------------


def minted_ago(seconds: float) -> str:
    return brand("USR", int((time.time() - seconds) * 1000 - EPOCH_MS) << 22)


def test_a_load_of_ten_minutes_stores_only_while_its_flight_stands(standalone: Connection, queue_name: str) -> None:
    # By then the version under which the row was dropped meanwhile may be forgotten.
    store, rows = Store(queue_name, "USR", standalone), Rows(standalone, queue_name)
    old = minted_ago(599)
    assert not store.fill(A, "me", old, b"v", MINUTE)
    assert store.fill(A, "me", minted_ago(500), b"v", MINUTE)
    for owner in ("you", "me"):
        rows.write(f"{B}:flight", f"{old}0{rows.now_ms() + MINUTE}{owner}")
        assert store.fill(B, "me", old, b"v", MINUTE) is (owner == "me")


# -- arguments -------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[Callable[[Store], object], type[Exception]]] = [
    (lambda store: store.claim(A, "", MINUTE), InvalidArgument),
    (lambda store: store.claim(A, "a b", MINUTE), InvalidArgument),
    (lambda store: store.claim(A, "x" * 65, MINUTE), InvalidArgument),
    (lambda store: store.claim(A, 7, MINUTE), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.claim(A, "me\n", MINUTE), InvalidArgument),
    (lambda store: store.claim(A, "me", 0), InvalidArgument),
    (lambda store: store.claim(A, "me", 1.5), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.claim(A, "me", True), InvalidArgument),
    (lambda store: store.claim(A, "me", MINUTE, least_ms=-1), InvalidArgument),
    (lambda store: store.claim(A, "me", MINUTE, "user:7"), InvalidName),
    (lambda store: store.claim(A, "me", MINUTE, [7]), InvalidName),  # type: ignore[list-item]
    (lambda store: store.claim(A, "me", MINUTE, [""]), InvalidName),
    (lambda store: store.fill(A, "me", "v1", b"v", MINUTE), InvalidId),
    (lambda store: store.fill(A, "me", NEXT, "v", MINUTE), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.fill(A, "me", NEXT, None, MINUTE), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.fill(A, "me", NEXT, b"v", 0), InvalidArgument),
    (lambda store: store.fail(A, "me", "text"), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.release(A, "me", None), InvalidArgument),  # type: ignore[arg-type]
    (lambda store: store.put(A, "", b"v", MINUTE), InvalidId),
    (lambda store: store.put(A, None, b"v", -1), InvalidArgument),
    (lambda store: store.drop(A, "USRzzzzzzzzzzz"), InvalidId),
    (lambda store: store.drop_many([A, "nobody"]), InvalidId),
    (lambda store: store.apply(A, ""), InvalidId),
    (lambda store: store.apply(f"tag:{A}", NEXT), InvalidId),
    (lambda store: store.drop_tag(""), InvalidName),
    (lambda store: store.drop_tag("a\ud800"), InvalidName),
]


@pytest.mark.parametrize(("verb", "error"), REFUSED)
def test_a_bad_argument_is_refused_before_a_byte_is_sent(
    faulty: Faulty, verb: Callable[[Store], object], error: type[Exception]
) -> None:
    before = faulty.proxy.counts.commands
    with pytest.raises(error):
        verb(faulty.store)
    assert faulty.proxy.counts.commands == before


@pytest.mark.parametrize("kind", ["TAG", "usr", "US", "USRS", "", "U-R", None, 7])
def test_a_table_needs_a_kind_of_its_own(standalone: Connection, kind: str) -> None:
    with pytest.raises(InvalidId):
        Store("table", kind, standalone)


@pytest.mark.parametrize("table", ["", "a b", "a:b", "{a}", "x" * 129, None])
def test_a_table_needs_a_name_of_the_wire(standalone: Connection, table: str) -> None:
    with pytest.raises(InvalidName):
        Store(table, "USR", standalone)


def test_a_message_that_stands_for_all_rows_drops_those_that_are_older(standalone: Connection, queue_name: str) -> None:
    store = Store(queue_name, "USR", standalone)
    store.put(A, None, b"v", MINUTE)
    flying = lead(store, C)
    cleared = store.mint()
    put = store.put(B, None, b"v", MINUTE)
    assert store.apply("TAG00000000000", cleared)
    assert store.version(A) is None
    assert store.version(B) == put
    assert not store.fill(C, "me", flying, b"stale", MINUTE)
    assert not store.apply("TAG00000000000", cleared)


def test_values_of_any_bytes_and_a_megabyte_come_back_as_they_were(store: Store) -> None:
    for value in (b"", b"\x00\r\n$-1\r\n", bytes(range(256)) * 4096):
        store.put(A, None, value, MINUTE)
        hit = store.claim(A, "me", MINUTE)
        assert isinstance(hit, Hit)
        assert hit.value == value


# -- no memory -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose memory these tests may limit."""
    with ServerProcess(tmp_path_factory.mktemp("small"), options=["--maxmemory-policy", "noeviction"]) as process:
        yield process


def test_a_full_server_stores_nothing_and_lets_all_else_pass(small: ServerProcess, queue_name: str) -> None:
    with connect(small.url) as connection:
        store, rows = Store(queue_name, "USR", connection), Rows(connection, queue_name)
        tagged = store.put(A, None, b"v", MINUTE, ["t"])
        store.put(B, None, b"old", MINUTE)
        small.client().config_set("maxmemory", 1)
        assert store.version(A, ["t"]) == tagged
        assert isinstance(store.claim(A, "me", MINUTE), Hit)
        # A flight whose load cannot be stored ends all the same, and its followers are told.
        version = lead(store, C)
        assert store.renew(C, "me", MINUTE)
        assert isinstance(store.claim(C, "you", MINUTE), Follow)
        with rows.listening("wake") as ear:
            with pytest.raises(ServerOutOfMemory):
                store.fill(C, "me", version, b"v", MINUTE)
            assert ear.raw() == [f"{C} released me full".encode()]
        # A row that cannot be replaced goes, for it is old.
        with rows.listening() as ear:
            with pytest.raises(ServerOutOfMemory):
                store.put(B, None, b"new", MINUTE)
            (told,) = ear.raw()
        assert rows.frame(B) is None
        assert told == f"{B}:{rows.read(f'{B}:dropped')}".encode()
        lead(store, C, "third")
        assert store.fail(C, "third", b"boom")
        assert store.drop_tag("t") > tagged
        assert store.peek(A, ["t"]) is None
        assert store.apply(A, store.mint())
        assert newer(store.drop(A), tagged)
        assert store.clear() == 0
        small.client().config_set("maxmemory", 0)
        assert store.fill(A, "me", lead(store, A), b"v", MINUTE)


def test_no_claim_is_for_a_row_that_is_to_be_loaded_anyway(store: Store) -> None:
    store.put(A, None, b"v", MINUTE)
    assert isinstance(store.claim(A, "me", MINUTE, least_ms=ALWAYS), Lead)
