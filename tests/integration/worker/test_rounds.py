"""Round trips that overlap: the next begins before the last is answered, and none of them loses or doubles anything."""

from __future__ import annotations

import select
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue import spot
from echomq_tasks.queue.turns import Asked, RoundTrip
from echomq_tasks.scripts.wire import Wire
from echomq_tasks.worker import Worker, ends
from echomq_tasks.worker.rounds import Rounds

Shops = Callable[..., Any]


class Gated:
    """Jobs that each wait for a gate of their own."""

    def __init__(self, shop: Any, queue_name: str, jobs: int, *, waiting: int = 0) -> None:
        self.gates = [threading.Event() for _ in range(jobs + waiting)]
        self.started = threading.Semaphore(0)
        self.runs: Counter[int] = Counter()
        send = shop.actor(self._run, queue_name).send
        for number in range(jobs + waiting):
            send(number)
        self.worker: Worker = shop.work(threads=jobs)
        for _ in range(jobs):
            assert self.started.acquire(timeout=PATIENCE)
        # A server that hangs lets nobody leave it, nor connect.
        eventually(lambda: not self.rounds and not self.worker._pump._lookout.at)  # noqa: SLF001
        scripts = shop.queue(queue_name).scripts
        for wire in [scripts._open() for _ in range(4)]:  # noqa: SLF001
            scripts._put_back(wire)  # noqa: SLF001

    def _run(self, number: int) -> None:
        self.runs[number] += 1
        self.started.release()
        self.gates[number].wait(PATIENCE)

    @property
    def rounds(self) -> Rounds:
        return self.worker._pump._rounds  # noqa: SLF001


def test_an_end_is_told_before_the_last_round_trip_is_answered(
    open_shop: Shops, own_server: ServerProcess, queue_name: str
) -> None:
    shop = open_shop(url=own_server.url)
    gated = Gated(shop, queue_name, 3)
    with own_server.hung():
        gated.gates[0].set()
        eventually(lambda: len(gated.rounds) == 1)
        gated.gates[1].set()
        eventually(lambda: len(gated.rounds) == 2)
        gated.gates[2].set()
        eventually(lambda: len(gated.worker._crew.running) == 0)  # noqa: SLF001
        assert gated.worker.untold == 3, "no answer has come"
    shop.finished(queue_name)
    eventually(lambda: gated.worker.untold == 0)
    assert shop.queue(queue_name).counts().completed == 3
    assert set(gated.runs.values()) == {1}


def test_what_is_not_answered_in_time_is_told_again_and_nobody_waits_twice(
    open_shop: Shops, own_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(url=f"{own_server.url}?timeout=0.3")
    gated = Gated(shop, queue_name, 2)
    receive, late = Wire.receive, []

    def note(self: Wire, count: int, **options: Any) -> list[Any]:
        if threading.current_thread() is gated.worker._pump:  # noqa: SLF001
            late.append(options.get("late", False))
        return receive(self, count, **options)

    with own_server.hung():
        monkeypatch.setattr(Wire, "receive", note)
        gated.gates[0].set()
        eventually(lambda: len(gated.rounds) == 1)
        gated.gates[1].set()
        eventually(lambda: gated.worker._pump._outage.failed_at > 0)  # noqa: SLF001
        eventually(lambda: not gated.rounds)
        assert late
        assert all(late), "they have waited while the pump slept"
        assert gated.worker.untold == 2
    shop.finished(queue_name)
    assert shop.queue(queue_name).counts().completed == 2
    assert set(gated.runs.values()) == {1}


def test_a_connection_that_breaks_under_two_round_trips_loses_and_doubles_nothing(
    open_shop: Shops, own_server: ServerProcess, queue_name: str
) -> None:
    shop = open_shop(url=own_server.url)
    gated = Gated(shop, queue_name, 2)
    with own_server.hung():
        for number in range(2):
            gated.gates[number].set()
            eventually(lambda number=number: len(gated.rounds) == number + 1)  # type: ignore[misc]
    own_server.kill()
    own_server.start()
    shop.finished(queue_name)
    eventually(lambda: gated.worker.untold == 0)
    assert set(gated.runs.values()) == {1}


def test_a_stop_waits_for_the_answers(open_shop: Shops, own_server: ServerProcess, queue_name: str) -> None:
    shop = open_shop(url=own_server.url)
    gated = Gated(shop, queue_name, 2)
    stopping = threading.Thread(target=gated.worker.stop, daemon=True)
    with own_server.hung():
        gated.gates[0].set()
        eventually(lambda: len(gated.rounds) == 1)
        stopping.start()
        gated.gates[1].set()
        eventually(lambda: not gated.worker._crew.running)  # noqa: SLF001
        assert gated.worker._pump.is_alive()  # noqa: SLF001
        assert gated.worker.untold == 2
    stopping.join(PATIENCE)
    assert not stopping.is_alive()
    assert gated.worker.untold == 0
    assert shop.queue(queue_name).counts().completed == 2


def test_two_claims_under_way_never_hold_more_jobs_than_there_are_places(
    open_shop: Shops, own_server: ServerProcess, queue_name: str
) -> None:
    shop = open_shop(url=own_server.url)
    gated = Gated(shop, queue_name, 4, waiting=20)
    line = gated.worker._pump.lines[queue_name]  # noqa: SLF001
    with own_server.hung():
        for number in range(2):
            gated.gates[number].set()
            eventually(lambda number=number: line.claims == number + 1)  # type: ignore[misc]
    # What they have brought waits at its gates.
    eventually(lambda: not gated.rounds and sum(gated.runs.values()) == 6)
    assert shop.queue(queue_name).counts().active == 4
    for gate in gated.gates:
        gate.set()
    shop.finished(queue_name)
    assert set(gated.runs.values()) == {1}


def test_ends_behind_one_that_cannot_be_noted_are_told_again(
    open_shop: Shops, standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(connection=standalone)
    failures = [RuntimeError("no such luck")]
    done = ends.Ends.done

    def fail_once(self: ends.Ends, *args: Any) -> None:
        done(self, *args)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(ends.Ends, "done", fail_once)
    runs: list[int] = []
    run = shop.actor(runs.append, queue_name)
    shop.broker.enqueue_many([run.message(number) for number in range(8)])
    worker = shop.work(threads=8)
    shop.finished(queue_name)
    eventually(lambda: not worker.broker.leases.holding)
    assert not failures
    assert sorted(runs) == list(range(8))


def test_a_job_that_comes_while_a_claim_is_answered_that_came_too_early_for_it_runs_at_once(
    open_shop: Shops, standalone: Connection, queue_name: str, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    # Else the end of a BLPOP would bring about another look.
    monkeypatch.setattr(spot, "_BLOCK", 600)
    shop = open_shop(connection=standalone)
    ran = threading.Semaphore(0)
    send = shop.actor(ran.release, queue_name).send
    # Something runs, so the pump sleeps while it waits for answers.
    shop.actor(gate.wait, f"{queue_name}-other", "hold").send(PATIENCE)
    worker = shop.work(threads=3)
    eventually(lambda: worker._crew.running and queue_name in worker._pump.lines)  # noqa: SLF001
    line, begin, sent = worker._pump.lines[queue_name], Rounds.begin, []  # noqa: SLF001
    eventually(lambda: worker._pump._lookout.at)  # noqa: SLF001

    def send_behind(self: Rounds, asked: Any, **options: Any) -> bool:
        begun = begin(self, asked, **options)
        if len(self) and line.claims and not sent:
            # The server has answered that nothing waits; then there is a job, whose token goes to this worker.
            select.select([self._under_way[-1].watched], [], [], PATIENCE)
            sent.append(send())
            spots = worker._pump._lookout._standing._spots  # type: ignore[union-attr]  # noqa: SLF001
            select.select([spots[0].fileno()], [], [], PATIENCE)
        return begun

    line.quiet_beat = 3600.0
    monkeypatch.setattr(Rounds, "begin", send_behind)
    worker._pump.order(lambda: setattr(line, "look_at", 0.0))  # noqa: SLF001
    # The upkeep of the queue would bring it about later.
    assert ran.acquire(timeout=10)
    assert sent


def test_a_server_that_cannot_be_reached_is_told_of_once_and_its_callers_are_kept(
    open_shop: Shops, own_server: ServerProcess, queue_name: str, gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    shop = open_shop(url=own_server.url)
    send = shop.actor(gate.wait, queue_name).send
    send(PATIENCE)
    # Room is left, so that it goes on claiming.
    worker = shop.work(threads=2)
    eventually(lambda: worker._crew.running)  # noqa: SLF001
    claimers = shop.queue(queue_name).claimers
    own_server.kill()
    # A claim whose server is gone, and all that follow, go out under one id.
    eventually(lambda: worker._pump._outage._pause >= 0.4, PATIENCE)  # noqa: SLF001
    eventually(lambda: not worker._pump._rounds)  # noqa: SLF001
    assert len(claimers._unanswered) + len(claimers._idle) <= 2  # noqa: SLF001
    assert not [record for record in caplog.records if record.levelname == "CRITICAL"]
    with pytest.raises(ServerUnavailable):
        RoundTrip([Asked(shop.queue(queue_name), (), 1)])
    own_server.start()
    gate.set()
    shop.finished(queue_name)
