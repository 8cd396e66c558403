"""Results: one short-lived value a job, replaced whole, for which any number of callers are woken at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from freezegun import freeze_time
from support.children import in_child
from support.counting import blocked, commands, connections, nodes
from support.eventually import eventually
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidId, WrongState
from echomq_tasks.queue import Queue

A, B = "JOB0NgWEfAEJ0A", "JOB0NgWEfAEJ0B"
#: Seconds; far more than any wait here takes when all is well.
LONG = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def test_a_stored_result_is_a_list_of_one_with_a_lifetime(queue: Queue, wire: Wire) -> None:
    assert queue.result(A) is None
    queue.store_result(A, b"\x00\xff")
    assert queue.result(A) == b"\x00\xff"
    assert queue.result(B) is None
    assert wire.everything() == {f"job:{A}:result": [b"\x00\xff"]}
    assert 599_000 < wire.do("PTTL", f"job:{A}:result") <= 600_000


def test_the_next_result_replaces_the_one_before_and_its_lifetime(queue: Queue, wire: Wire) -> None:
    queue.store_result(A, "one", ttl=3600)
    queue.store_result(A, "zwölf", ttl=60)
    assert queue.result(A) == "zwölf".encode()
    assert wire.read(f"job:{A}:result") == ["zwölf"]
    assert 50_000 < wire.do("PTTL", f"job:{A}:result") <= 60_000


def test_an_empty_result_is_one(queue: Queue) -> None:
    queue.store_result(A, b"")
    assert queue.result(A) == b""
    assert queue.result(A, timeout=LONG) == b""
    assert queue.forget_result(A)


def test_the_shortest_lifetime_is_a_millisecond_and_it_ends(queue: Queue, wire: Wire) -> None:
    queue.store_result(A, "x", ttl=0.0001)
    eventually(lambda: queue.result(A) is None)
    assert wire.everything() == {}
    queue.store_result(A, "x", ttl=250_000_000_000)
    assert queue.result(A) == b"x"


@pytest.mark.parametrize("foreign", ["string", "hash", "zset", "set", "long list"])
def test_a_foreign_value_is_told_of_replaced_whole_and_forgotten(queue: Queue, wire: Wire, foreign: str) -> None:
    writes: dict[str, tuple[str, ...]] = {
        "string": ("SET", "x"),
        "hash": ("HSET", "f", "x"),
        "zset": ("ZADD", "1", "x"),
        "set": ("SADD", "x"),
        "long list": ("RPUSH", "x", "y", "z"),
    }

    def spoil() -> None:
        command, *args = writes[foreign]
        wire.do("DEL", f"job:{A}:result")
        wire.do(command, f"job:{A}:result", *args)

    spoil()
    for timeout in (0, LONG, None):
        if foreign == "long list":
            assert queue.result(A, timeout=timeout)
            continue
        before = wire.dumps()
        with pytest.raises(WrongState, match=f"job:{A}:result is no list"):
            queue.result(A, timeout=timeout)
        assert wire.dumps() == before
    queue.store_result(A, "good")
    assert queue.result(A) == b"good"
    assert wire.do("LLEN", f"job:{A}:result") == 1
    assert wire.do("PTTL", f"job:{A}:result") > 0
    spoil()
    assert queue.forget_result(A)
    assert wire.everything() == {}


def test_a_forgotten_result_leaves_nothing(queue: Queue, wire: Wire) -> None:
    assert not queue.forget_result(A)
    queue.store_result(A, "x")
    queue.store_result(B, "y")
    assert queue.forget_result(A)
    assert (queue.result(A), queue.result(B)) == (None, b"y")
    assert queue.forget_result(B)
    assert wire.everything() == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda queue: queue.result("x"),
        lambda queue: queue.result("EVT000xY9Wvvcd", timeout=None),
        lambda queue: queue.store_result("JOBzzzzzzzzzzz", "v"),
        lambda queue: queue.forget_result(None),
    ],
)
def test_what_is_no_job_id_is_refused(queue: Queue, wire: Wire, call: Callable[[Queue], Any]) -> None:
    with pytest.raises(InvalidId):
        call(queue)
    assert wire.everything() == {}


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), float("inf"), True, "60", None])
def test_a_lifetime_that_is_none_is_refused(queue: Queue, wire: Wire, ttl: Any) -> None:
    with pytest.raises(InvalidArgument, match="ttl"):
        queue.store_result(A, "v", ttl=ttl)
    assert wire.everything() == {}


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), True, "1"])
def test_a_wait_that_is_no_number_of_seconds_is_refused(queue: Queue, timeout: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout"):
        queue.result(A, timeout=timeout)


def test_a_value_that_no_server_takes_is_refused_before_a_byte_is_sent(queue: Queue, wire: Wire) -> None:
    with pytest.raises(InvalidArgument, match=f"result of {A} .*not int"):
        queue.store_result(A, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=f"result of {A} .*surrogate"):
        queue.store_result(A, "\ud800")
    # Memory that is never touched.
    with pytest.raises(InvalidArgument, match=f"result of {A} .*512 MB at most"):
        queue.store_result(A, bytes((512 << 20) + 1))
    assert wire.everything() == {}


# -- waiting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timeout", [LONG, None])
def test_a_wait_ends_with_the_result_and_leaves_it_there(
    queue: Queue, wire: Wire, pool: ThreadPoolExecutor, timeout: float | None
) -> None:
    waiting = pool.submit(queue.result, A, timeout=timeout)
    eventually(lambda: blocked(queue.connection))
    queue.store_result(B, "another's")
    assert not waiting.done()
    queue.store_result(A, "mine")
    assert waiting.result(LONG) == b"mine"
    assert wire.read(f"job:{A}:result") == ["mine"]
    assert wire.do("PTTL", f"job:{A}:result") > 0
    assert queue.result(A, timeout=timeout) == b"mine"


def test_a_wait_for_what_never_comes_ends_with_none(queue: Queue, wire: Wire) -> None:
    assert queue.result(A, timeout=0.02) is None
    assert queue.result(A, timeout=0.0001) is None
    assert wire.everything() == {}
    assert not blocked(queue.connection)


def test_all_who_wait_for_one_result_are_woken_and_its_lifetime_stays(
    queue: Queue, wire: Wire, pool: ThreadPoolExecutor
) -> None:
    waiting = [pool.submit(queue.result, A, timeout=LONG) for _ in range(24)]
    eventually(lambda: len(blocked(queue.connection)) == 24)
    before = commands(queue.connection)
    queue.store_result(A, "for all")
    assert [wait.result(LONG) for wait in waiting] == [b"for all"] * 24
    spent = commands(queue.connection) - before
    assert spent["blmove"] <= 24, "nobody asked a second time"
    assert spent["lindex"] == 0
    assert wire.read(f"job:{A}:result") == ["for all"]
    assert 590_000 < wire.do("PTTL", f"job:{A}:result") <= 600_000


def test_a_whole_wait_is_one_command(queue: Queue) -> None:
    assert queue.result(A, timeout=0.001) is None  # which opens the connection
    before = commands(queue.connection)
    assert queue.result(A, timeout=0.5) is None
    spent = commands(queue.connection) - before
    # In a cluster a connection that was opened to count them has asked for the fence.
    del spent["get"]
    assert spent == {"blmove": 1}


def test_a_long_wait_looks_up_now_and_then(
    queue: Queue, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("echomq_tasks.queue.waiting._BLOCK", 0.02)
    waiting = pool.submit(queue.result, A, timeout=None)
    before = commands(queue.connection)
    eventually(lambda: (commands(queue.connection) - before)["blmove"] >= 5)
    queue.store_result(A, "late")
    assert waiting.result(LONG) == b"late"


def test_a_hundred_waits_in_a_row_share_a_connection(queue: Queue) -> None:
    queue.store_result(A, "x")
    assert queue.result(A, timeout=LONG) == b"x"
    connections(queue.connection)  # counting connects to every node
    before = connections(queue.connection)
    for number in range(100):
        queue.store_result(A, str(number))
        assert queue.result(A, timeout=LONG) == str(number).encode()
    for _ in range(3):
        assert queue.result(B, timeout=0.001) is None  # which the server ends on its next beat only
    assert connections(queue.connection) == before


def test_a_crowd_leaves_few_connections_open(queue: Queue, pool: ThreadPoolExecutor) -> None:
    before = sum(len(node.client_list()) for node in nodes(queue.connection))
    waiting = [pool.submit(queue.result, A, timeout=LONG) for _ in range(30)]
    eventually(lambda: len(blocked(queue.connection)) == 30)
    queue.store_result(A, "x")
    for wait in waiting:
        assert wait.result(LONG) == b"x"
    eventually(lambda: sum(len(node.client_list()) for node in nodes(queue.connection)) <= before + 16 + 1)


def test_closing_closes_idle_lines_at_once_and_one_in_use_after_its_wait(
    queue: Queue, pool: ThreadPoolExecutor
) -> None:
    queue.store_result(B, "x")
    waiting = pool.submit(queue.result, A, timeout=LONG)
    (standing,) = eventually(lambda: blocked(queue.connection))
    assert queue.result(B, timeout=LONG) == b"x"
    queue.connection.close()
    queue.store_result(A, "y")
    assert waiting.result(LONG) == b"y"
    ids = lambda: {entry["id"] for node in nodes(queue.connection) for entry in node.client_list()}  # noqa: E731
    eventually(lambda: standing not in ids())
    assert queue.result(A, timeout=LONG) == b"y"


def test_waits_for_different_results_do_not_disturb_each_other(queue: Queue, pool: ThreadPoolExecutor) -> None:
    ids = [queue.new_id() for _ in range(12)]
    waiting = {job_id: pool.submit(queue.result, job_id, timeout=LONG) for job_id in ids}
    eventually(lambda: len(blocked(queue.connection)) == 12)
    for job_id in reversed(ids):
        queue.store_result(job_id, job_id)
    assert {job_id: wait.result(LONG) for job_id, wait in waiting.items()} == {i: i.encode() for i in ids}


def test_a_waiter_never_takes_a_result_from_the_others_while_it_is_replaced(
    queue: Queue, wire: Wire, pool: ThreadPoolExecutor
) -> None:
    stop = threading.Event()

    def replace() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            queue.store_result(A, str(number))

    replacing = pool.submit(replace)
    try:
        waits = [pool.submit(lambda: [queue.result(A, timeout=LONG) for _ in range(50)]) for _ in range(4)]
        for wait in waits:
            seen = [int(value or -1) for value in wait.result(LONG)]
            assert seen == sorted(seen)
            assert min(seen) > 0
    finally:
        stop.set()
    replacing.result(LONG)
    assert wire.do("LLEN", f"job:{A}:result") == 1
    assert wire.do("PTTL", f"job:{A}:result") > 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_waits_on_a_line_of_its_own(queue: Queue, pool: ThreadPoolExecutor) -> None:
    assert queue.result(A, timeout=0.001) is None  # an idle line, which the child must not take

    def child() -> bytes | None:
        return queue.result(A, timeout=LONG)

    waiting = pool.submit(in_child, child)
    eventually(lambda: blocked(queue.connection))
    mine = pool.submit(queue.result, A, timeout=LONG)
    eventually(lambda: len(blocked(queue.connection)) == 2)
    queue.store_result(A, "both")
    assert waiting.result(LONG) == mine.result(LONG) == b"both"


def test_an_exception_in_the_middle_of_a_wait_does_not_shift_the_next_answer(
    queue: Queue, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert queue.result(A, timeout=0.001) is None
    kind = type(connection.fresh(queue.base, blocking=False))

    def interrupted(self: Any, *_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    queue.store_result(A, "of A")
    queue.store_result(B, "of B")
    for method in ("can_read", "read_response"):
        with monkeypatch.context() as patch:
            patch.setattr(kind, method, interrupted)
            with pytest.raises(KeyboardInterrupt):
                queue.result(A, timeout=LONG)
        assert queue.result(B, timeout=LONG) == b"of B"


def test_a_wait_ends_also_where_a_test_has_stopped_the_clock(queue: Queue) -> None:
    with freeze_time("2026-01-01"):
        assert queue.result(A, timeout=0.2) is None
