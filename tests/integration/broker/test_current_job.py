"""The job that runs, for the code that runs it: where it is known, and what it tells others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from chaos.crew import PATIENCE, ROOT
from dramatiq import Middleware, Worker
from dramatiq.middleware import AsyncIO, SkipMessage
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks import actor, current_job, signals
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.current import CurrentJob
from echomq_tasks.errors import InvalidArgument, JobCancelled, ServerUnavailable
from echomq_tasks.queue import State


def elsewhere(server: ServerProcess, code: str) -> str:
    """Run Python in a process that knows no more than the server's address; ``queue`` is the default queue."""
    program = f"from echomq_tasks import Queue, connect\nqueue = Queue('default', connect())\n{code}"
    environ = {**os.environ, "EMQ_URL": server.url, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def no_job_runs_here() -> bool:
    with pytest.raises(RuntimeError, match="no job runs here"):
        current_job()
    return True


def test_nothing_is_the_current_job_outside_of_one(broker: EchoMQBroker) -> None:
    @actor
    def plain() -> None:
        current_job()

    assert no_job_runs_here()
    with pytest.raises(RuntimeError, match="a worker runs"):
        plain()
    plain.send()
    assert no_job_runs_here()


def test_a_function_and_all_that_it_calls_know_their_job(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: dict[str, list[Any]] = {}

    def deeper() -> CurrentJob:
        return current_job()

    @actor
    def inner() -> CurrentJob:
        return deeper()

    @actor(group="acme")
    def outer(name: str) -> None:
        job = current_job()
        seen[name] = [job.id, job.queue.name, job.attempt, job.group is not None, inner() is job, deeper() is job]
        assert not job.cancelled
        job.checkpoint()
        assert job.children().results == {}

    sent = {name: outer.send(name) for name in ("ada", "grace", "barbara")}
    finish(broker)
    assert seen == {name: [message.job_id, "default", 1, True, True, True] for name, message in sent.items()}


def test_jobs_that_run_at_once_each_know_their_own(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    together, seen = threading.Barrier(8), {}

    @actor
    def meet(number: int) -> None:
        before = current_job().id
        together.wait(PATIENCE)
        seen[number] = {before, current_job().id}

    sent = [meet.send(number) for number in range(8)]
    make_worker(broker, threads=8)
    finish(broker)
    assert seen == {number: {message.job_id} for number, message in enumerate(sent)}


def test_an_async_function_its_tasks_and_its_helper_threads_know_their_job(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker.add_middleware(AsyncIO())
    seen: dict[int, list[str]] = {}
    together = asyncio.Event()

    async def deeper() -> str:
        await asyncio.sleep(0)
        return current_job().id

    @actor
    async def meet(number: int) -> None:
        # All of them are in the one event loop at once.
        seen[number] = []
        if len(seen) == 4:
            together.set()
        await together.wait()
        ids = [current_job().id, await deeper(), await asyncio.create_task(deeper())]
        seen[number] = [*ids, await asyncio.to_thread(lambda: current_job().id)]

    sent = [meet.send(number) for number in range(4)]
    make_worker(broker, threads=4)
    finish(broker)
    assert seen == {number: [message.job_id] * 4 for number, message in enumerate(sent)}


def test_a_thread_that_a_job_starts_has_none_and_one_that_is_given_it_can_use_it(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    seen: list[Any] = []

    @actor
    def start() -> None:
        job = current_job()

        def body() -> None:
            seen.append(no_job_runs_here())
            job.log("from a thread")
            seen.append(job.queue.logs(job.id))

        thread = threading.Thread(target=body)
        thread.start()
        thread.join(PATIENCE)

    start.send()
    finish(broker)
    assert seen == [True, ["from a thread"]]


class Hooks(Middleware):
    """Notes the current job in the hooks around a run."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, bool]] = []
        self.skip = False

    def _note(self, hook: str, message: Any) -> None:
        self.seen.append((hook, current_job().id == message.job_id))

    def before_process_message(self, broker: Any, message: Any) -> None:
        self._note("before", message)
        if self.skip:
            raise SkipMessage("not today")

    def after_process_message(self, broker: Any, message: Any, **kwargs: Any) -> None:
        self._note("after", message)

    def after_ack(self, broker: Any, message: Any) -> None:
        self.seen.append(("ack", no_job_runs_here()))


@pytest.mark.parametrize("end", ["returns", "raises", "is skipped"])
def test_the_hooks_around_a_run_know_the_job_and_those_behind_it_do_not(
    broker: EchoMQBroker, make_worker: Callable[..., Worker], finish: Callable[..., None], end: str
) -> None:
    hooks = Hooks()
    broker.add_middleware(hooks)
    hooks.skip = end == "is skipped"

    @actor(max_retries=0)
    def run() -> None:
        if end == "raises":
            raise RuntimeError("no luck")

    run.send()
    worker = make_worker(broker, threads=1)
    finish(broker)
    worker.join()
    expected = [("before", True), *([] if end == "is skipped" else [("after", True)])]
    assert hooks.seen == expected + ([] if end == "raises" else [("ack", True)])


def test_the_attempt_counts_all_runs_as_its_row_and_its_events_do_and_failures_those_that_raised(
    make_broker: Callable[..., EchoMQBroker], make_worker: Callable[..., Worker], finish: Callable[..., None]
) -> None:
    broker, seen = make_broker(), []

    @actor(max_retries=5, min_backoff=1, max_backoff=2)
    def run() -> None:
        job = current_job()
        seen.append((job.attempt, job.failures))
        assert job.queue.get(job.id).attempts == job.attempt
        if len(seen) < 3:
            raise RuntimeError("no luck")

    message = run.send()
    # Claimed and given back, as by a worker that is stopped.
    (given_back,) = broker.queue("default").claim().jobs
    broker.queue("default").release(given_back)
    started: list[int | None] = []
    heard: Any = lambda sender, event: started.append(event.attempt)  # noqa: E731
    with signals.started.connected_to(heard):
        make_worker(broker)
        finish(broker)
    assert seen == [(2, 0), (3, 1), (4, 2)]
    assert started == [2, 3, 4]
    assert broker.queue("default").get(message.job_id) is None


def test_progress_and_log_are_read_by_another_process_while_the_job_runs(
    server: ServerProcess, broker: EchoMQBroker, worker: Worker, gate: threading.Event, finish: Callable[..., None]
) -> None:
    noted = threading.Event()

    @actor
    def work() -> None:
        job = current_job()
        job.progress(0.4)
        for number in range(3):
            job.log(f"line {number}", keep=2)
        noted.set()
        gate.wait(PATIENCE)

    message = work.send()
    assert noted.wait(PATIENCE)
    printed = elsewhere(server, f"id = {message.job_id!r}\nprint(queue.get(id).progress, queue.logs(id))")
    assert printed == "0.4 ['line 1', 'line 2']"
    gate.set()
    finish(broker)
    queue = broker.queue("default")
    assert queue.logs(message.job_id) == []
    assert list(queue.connection.client.scan_iter(f"*{message.job_id}*")) == []


def test_what_a_dead_job_had_noted_stays(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], dead_jobs: Callable[..., Any]
) -> None:
    @actor(max_retries=0)
    def work() -> None:
        current_job().progress("half way")
        current_job().log("about to fail")
        raise RuntimeError("no luck")

    message = work.send()
    finish(broker)
    (dead,) = dead_jobs(broker)
    assert dead.progress == "half way"
    assert broker.queue("default").logs(message.job_id) == ["about to fail"]


@pytest.mark.parametrize("progress", [None, True, [0.4], b"x"])
def test_a_progress_that_is_no_number_and_no_text_is_refused(
    broker: EchoMQBroker, worker: Worker, finish: Callable[..., None], progress: Any
) -> None:
    seen: list[Any] = []

    @actor
    def work() -> None:
        for note in (current_job().progress, current_job().log):
            try:
                note(progress)
            except InvalidArgument:
                seen.append(note.__name__)

    work.send()
    finish(broker)
    assert "progress" in seen
    assert ("log" in seen) == (progress != b"x")


def test_a_job_of_another_process_raises_at_its_checkpoint_once_it_was_cancelled(
    server: ServerProcess, broker: EchoMQBroker, worker: Worker, finish: Callable[..., None]
) -> None:
    steps: list[int] = []
    nobody = threading.Event()

    @actor
    def work() -> None:
        for _ in range(4000):
            current_job().checkpoint()
            steps.append(len(steps))
            nobody.wait(0.005)

    message = work.send()
    eventually(lambda: steps, PATIENCE)
    assert elsewhere(server, f"print(queue.cancel({message.job_id!r}))") == "requested"
    finish(broker)
    assert broker.queue("default").state(message.job_id) is State.ABSENT


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_it_asks_the_server_once_a_second_and_never_again_once_it_knows(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(), []
    queue = broker.queue("default")
    queue.enqueue("p")
    (claim,) = queue.claim()
    ask = queue.is_cancelled

    def count(job_id: str) -> bool:
        asked.append(job_id)
        return ask(job_id)

    monkeypatch.setattr(queue, "is_cancelled", count)
    monkeypatch.setattr("echomq_tasks.current.time", clock)
    job = CurrentJob(claim, queue, lambda data: data, lambda: False)
    assert not any(job.cancelled for _ in range(100))
    queue.cancel(claim.id)
    assert not job.cancelled
    assert len(asked) == 1
    clock.now += 1.0
    for _ in range(3):
        assert job.cancelled
        with pytest.raises(JobCancelled, match="was cancelled"):
            job.checkpoint()
        clock.now += 5.0
    assert asked == [claim.id] * 2


def test_while_the_server_is_away_nothing_counts_as_cancelled_but_what_is_known_to_be(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("default")
    queue.enqueue("p")
    (claim,) = queue.claim()

    def away(job_id: str) -> bool:
        raise ServerUnavailable("nobody answers")

    monkeypatch.setattr(queue, "is_cancelled", away)
    job = CurrentJob(claim, queue, lambda data: data, lambda: False)
    assert not job.cancelled
    job.checkpoint()
    job.tell_cancelled()
    assert job.cancelled


def test_a_lost_lease_is_reason_enough_without_a_question(
    broker: EchoMQBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = broker.queue("default")
    queue.enqueue("p")
    (claim,) = queue.claim()
    monkeypatch.setattr(queue, "is_cancelled", lambda job_id: pytest.fail("it asked"))
    with pytest.raises(JobCancelled, match="the lease was lost"):
        CurrentJob(claim, queue, lambda data: data, lambda: True).checkpoint()
