"""Leases of a broker's jobs: renewed while they run, in one call a beat; once lost, the late end changes nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.brokers.dramatiq.settler import Settler
from echomq_tasks.errors import InvalidArgument, ServerUnavailable
from echomq_tasks.queue import Complete, Queue, Retry, Settlement, Verdict
from echomq_tasks.scripts.loader import load_scripts

LEASE = 0.6


@pytest.fixture
def watched(server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    server.flush()
    with watching(server.url, queue_name) as queue:
        yield queue


def deadline(queue: Queue, job_id: str) -> float | None:
    """When the lease of an active job ends, unix ms."""
    score: float | None = queue.connection.client.zscore(f"emq:{{{queue.name}}}:active", job_id)
    return score


def suspend_renewal(app: App, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no lease be renewed while the event is set, as in a process that the system has stopped."""
    suspended = threading.Event()
    suspended.set()
    renew = app.broker.leases._renew  # noqa: SLF001 - no public switch turns renewal off, and none should
    monkeypatch.setattr(
        app.broker.leases, "_renew", lambda deliveries: None if suspended.is_set() else renew(deliveries)
    )
    return suspended


def test_a_job_that_outlasts_its_lease_four_times_keeps_it_and_runs_once(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def body() -> None:
        record.start("job")
        nobody.wait(2.5)

    nobody = threading.Event()
    apps = [make_app(server.url, body, lease=LEASE) for _ in range(2)]
    message = apps[0].run.send()
    for app in apps:
        app.work()
    seen: list[float] = []

    def ended() -> bool:
        score = deadline(watched, message.job_id)
        if score is not None and score not in seen:
            seen.append(score)
        return watched.counts().completed == 1

    eventually(ended, PATIENCE)
    assert record.starts == {"job": 1}
    assert seen == sorted(seen)
    assert len(seen) >= 4


def test_a_job_that_computes_without_a_pause_keeps_its_lease(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def body() -> None:
        record.start("job")
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            sum(number * number for number in range(20_000))

    apps = [make_app(server.url, body, lease=LEASE) for _ in range(2)]
    apps[0].run.send()
    for app in apps:
        app.work()
    eventually(lambda: watched.counts().completed == 1, PATIENCE)
    assert record.starts == {"job": 1}


class CountingBackend(StubBackend):
    """Keeps what was stored, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: list[Any] = []

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self.stored.append(result["value"] if isinstance(result, dict) and "value" in result else result)
        super()._store(message_key, result, ttl)


@pytest.mark.parametrize("other_ended", [True, False], ids=["after the other's end", "during the other's run"])
def test_the_late_end_of_a_lost_lease_is_refused_and_reports_nothing(
    server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    gate: threading.Event,
    other_ended: bool,
) -> None:
    second_gate, first_ended = threading.Event(), threading.Event()
    started: list[str] = []

    def first_run() -> str:
        started.append("first")
        gate.wait(PATIENCE)
        first_ended.set()
        return "late"

    def second_run() -> str:
        started.append("second")
        second_gate.wait(PATIENCE)
        return "valid"

    backend = CountingBackend()
    first, second = make_app(server.url, first_run, lease=LEASE), make_app(server.url, second_run, lease=LEASE)
    for app in (first, second):
        app.broker.add_middleware(Results(backend=backend, store_results=True))
    suspend_renewal(first, monkeypatch).set()
    monkeypatch.setattr(first.broker.leases, "_run", lambda stop: None)
    message = first.run.send()
    worker = first.work(threads=1)
    eventually(lambda: started == ["first"], PATIENCE)
    second.work(threads=1)
    eventually(lambda: started == ["first", "second"], PATIENCE, "it runs elsewhere")
    monkeypatch.undo()  # from here on the first one may ask
    with caplog.at_level(logging.DEBUG, "echomq_tasks"):
        if other_ended:
            second_gate.set()
            eventually(lambda: watched.counts().completed == 1, PATIENCE)
        gate.set()
        assert first_ended.wait(PATIENCE)
        worker.join()
        second_gate.set()
        eventually(lambda: watched.counts().completed == 1, PATIENCE)
    assert watched.counts().unfinished == 0
    assert backend.stored == ["valid"]
    assert message.get_result(backend=backend) == "valid"
    assert f"lease lost: job {message.job_id}" in caplog.text
    assert f"lease lost: job {message.job_id}" in caplog.text


def test_a_settlement_under_an_old_token_is_refused_by_the_server_and_logged(
    server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    old, new = (make_app(server.url, lambda: None, lease=LEASE).broker for _ in range(2))
    monkeypatch.setattr(old.leases, "_run", lambda stop: None)
    first = old.consume(watched.name, timeout=100)
    message = old.get_actor("run").send()
    late = eventually(lambda: next(first), PATIENCE)
    second = new.consume(watched.name, timeout=100)
    valid = eventually(lambda: next(second), PATIENCE)
    with caplog.at_level(logging.WARNING, "echomq_tasks"):
        first.nack(late)
    assert f"The late end of job {message.job_id} was refused" in caplog.text
    assert watched.counts().active == 1
    second.ack(valid)
    counts = watched.counts()
    assert (counts.completed, counts.dead, counts.unfinished) == (1, 0, 0)
    first.close()
    second.close()


def test_a_process_that_takes_over_its_own_lost_job_keeps_the_second_lease(
    server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    record: Record,
    monkeypatch: pytest.MonkeyPatch,
    gate: threading.Event,
) -> None:
    nobody = threading.Event()

    def body() -> None:
        if record.start("job") == 1:
            gate.wait(PATIENCE)
        else:
            # Well past the lease, with a free thread beside it that would run the job a third time.
            nobody.wait(4 * LEASE)
        record.end("job")

    app = make_app(server.url, body, lease=LEASE)
    suspended = suspend_renewal(app, monkeypatch)
    app.run.send()
    app.work(threads=2)
    eventually(lambda: record.starts["job"] == 2, PATIENCE, "swept and claimed again")
    suspended.clear()
    gate.set()
    eventually(lambda: watched.counts().completed == 1, PATIENCE)
    assert record.starts == {"job": 2}
    assert watched.counts().unfinished == 0


def test_all_jobs_of_a_process_are_renewed_in_one_call_a_beat(
    own_server: ServerProcess, make_app: Callable[..., App], gate: threading.Event
) -> None:
    jobs, lease = 8, 0.9
    app = make_app(own_server.url, lambda number: gate.wait(PATIENCE), lease=lease)
    for number in range(jobs):
        app.run.send(number)
    app.work(threads=jobs)
    eventually(lambda: app.queue.counts().active == jobs, PATIENCE)
    extend = load_scripts()["job_extend"].sha
    renewed: list[int] = []
    times: list[float] = []
    with own_server.client().monitor() as monitor:
        # Two renewals may have begun before all jobs were held; the ones after those are looked at.
        while len(renewed) < 6:
            command = monitor.next_command()
            if extend in command["command"]:
                renewed.append(command["command"].count("JOB"))
                times.append(command["time"])
    assert renewed[2:] == [jobs] * 4
    assert times[-1] - times[2] >= 2 * lease / 3, "no more than one call a beat"


def test_renewals_that_fail_are_told_of_once_and_so_is_their_success(
    server: ServerProcess,
    watched: Queue,
    make_app: Callable[..., App],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = make_app(server.url, lambda: None, lease=LEASE).broker
    renew, away = broker.leases._renew, True  # noqa: SLF001 - the server is others', too, and stays
    tries: list[int] = []

    def maybe(deliveries: Any) -> None:
        tries.append(len(deliveries))
        if away:
            raise ServerUnavailable("nobody there")
        renew(deliveries)

    def tried() -> bool:
        begun = len(tries)
        return eventually(lambda: len(tries) > begun + 3, PATIENCE)

    def said() -> list[str]:
        return [each.getMessage() for each in caplog.records if each.name.endswith("leases")]

    caplog.set_level(logging.INFO, "echomq_tasks")
    monkeypatch.setattr(broker.leases, "_renew", maybe)
    broker.get_actor("run").send()
    consumer = broker.consume(watched.name, timeout=100)
    delivery = eventually(lambda: next(consumer), PATIENCE)
    assert tried()
    (warning,) = said()
    assert warning.startswith("The leases of 1 of 1 jobs that this process holds, running or still to be settled")
    assert warning.endswith("other workers may run these jobs: nobody there")
    away = False
    assert tried()
    (info,) = said()[1:]
    assert info.startswith("Leases are renewed again, after ")
    away = True
    assert tried()
    assert len(said()) == 3, "another outage is told of again"
    broker.leases.drop(delivery)
    away = False
    assert tried()
    assert len(said()) == 3, "with nothing in hand, nobody knows"
    broker.leases.hold([delivery])
    consumer.ack(delivery)
    consumer.close()


def test_an_end_that_the_server_cannot_take_frees_the_thread_and_the_job_runs_again(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App], record: Record
) -> None:
    def body() -> None:
        if record.start("job") == 1:
            # A row that no script can read, as a foreign program may leave it: an error, not a broken connection.
            key = f"emq:{{{watched.name}}}:metrics:completed"
            watched.connection.client.set(key, "not a hash")

    app = make_app(server.url, body, lease=LEASE)
    app.run.send()
    app.work(threads=1)
    eventually(lambda: record.starts["job"] >= 1, PATIENCE)
    eventually(lambda: not app.broker.leases._held, PATIENCE, "given up")  # noqa: SLF001 - what is renewed shows nowhere
    watched.connection.client.delete(f"emq:{{{watched.name}}}:metrics:completed")
    app.run.send()
    eventually(lambda: watched.counts().completed >= 1, PATIENCE, "the only thread is free again")
    eventually(lambda: watched.counts().unfinished == 0, PATIENCE)


def test_an_end_that_cannot_be_told_does_not_take_others_along(
    server: ServerProcess, watched: Queue, make_app: Callable[..., App]
) -> None:
    watched.enqueue_many([b"x"] * 8)
    jobs = watched.claim(8).jobs
    answers: dict[str, object] = {}

    class Slow(Queue):
        """Holds the first call up, so that the rest gathers into one batch."""

        def settle(self, settlements: Any) -> list[Verdict]:
            if len(answers) == 0 and first.acquire(blocking=False):
                eventually(lambda: threading.active_count() >= before + 8, PATIENCE)
                nobody.wait(0.1)
            return super().settle(settlements)

    first, nobody, before = threading.Semaphore(), threading.Event(), threading.active_count()
    settler = Settler(Slow(watched.name, watched.connection))

    def settle(settlement: Complete | Retry) -> None:
        try:
            answers[settlement.job.id] = settler.settle(settlement)
        except InvalidArgument as error:
            answers[settlement.job.id] = error

    ends: list[Settlement] = [Complete(job) for job in jobs[:7]]
    ends.append(Retry(jobs[7], "boom", float("inf")))
    threads = [threading.Thread(target=settle, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert isinstance(answers.pop(jobs[7].id), InvalidArgument)
    assert len(answers) == 7
    assert set(answers.values()) <= {Verdict.OK, Verdict.GONE}
    assert watched.counts().completed == 7
    assert watched.counts().active == 1
