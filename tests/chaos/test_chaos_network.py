"""Requests and replies that get lost between a broker and its server, at each verb and everywhere at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from chaos.crew import PATIENCE, App, Record, watching
from dramatiq.errors import ConnectionClosed
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.queue import Queue, State
from echomq_tasks.scripts.loader import load_scripts

pytestmark = pytest.mark.chaos


def sha(script: str) -> bytes:
    return load_scripts()[script].sha.encode()


@pytest.fixture
def watched(server: ServerProcess, proxy: DroppingProxy, queue_name: str) -> Iterator[Queue]:
    """The queue past the proxy."""
    for script in load_scripts().values():
        # Or the first EVALSHA, which the faults hit, would only learn that its script is missing.
        server.client().script_load(script.text)
    with watching(server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def app(proxy: DroppingProxy, make_app: Callable[..., App], record: Record) -> App:
    """An app behind the proxy."""

    def body(number: int) -> None:
        record.start(number)
        record.end(number)

    return make_app(proxy.url, body, lease=1.0)


@pytest.fixture
def failing(proxy: DroppingProxy, make_app: Callable[..., App], record: Record) -> App:
    """An app whose jobs fail the first time."""

    def body(number: int) -> None:
        if record.start(number) == 1:
            raise RuntimeError("the first time")
        record.end(number)

    return make_app(proxy.url, body, lease=1.0)


def finished(queue: Queue) -> bool:
    return queue.counts().unfinished == 0


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_an_enqueue_whose_answer_is_lost_is_in_once(
    app: App, proxy: DroppingProxy, watched: Queue, record: Record, lost: str
) -> None:
    getattr(proxy, f"drop_{lost}")(sha("job_enqueue"))
    app.run.send(1)
    assert getattr(proxy.counts, "dropped_replies" if lost == "reply" else "dropped_requests") == 1
    assert watched.counts().pending == 1
    app.work()
    eventually(lambda: finished(watched), PATIENCE)
    assert record.starts == {1: 1}


def test_an_enqueue_that_never_gets_through_says_so(app: App, proxy: DroppingProxy, watched: Queue) -> None:
    proxy.drop_request(sha("job_enqueue"), times=2)
    with pytest.raises(ConnectionClosed):
        app.run.send(1)
    assert watched.counts().unfinished == 0
    app.run.send(2)
    assert watched.counts().pending == 1


def test_jobs_of_a_claim_whose_reply_is_lost_come_back_and_run_once(
    app: App, proxy: DroppingProxy, watched: Queue, record: Record
) -> None:
    for number in range(5):
        app.run.send(number)
    proxy.drop_reply(sha("job_claim"))
    app.work(threads=2)
    eventually(lambda: finished(watched), PATIENCE)
    assert proxy.counts.dropped_replies == 1
    assert record.starts == dict.fromkeys(range(5), 1)
    assert watched.counts().completed == 5


@pytest.mark.parametrize(("lost", "times"), [("reply", 1), ("reply", 2), ("request", 1), ("request", 5)])
def test_a_job_whose_completion_is_lost_on_the_way_is_completed_once(
    app: App, proxy: DroppingProxy, watched: Queue, record: Record, lost: str, times: int
) -> None:
    getattr(proxy, f"drop_{lost}")(sha("job_complete"), times=times)
    app.run.send(1)
    app.work()
    eventually(lambda: proxy.counts.dropped_replies + proxy.counts.dropped_requests == times, PATIENCE)
    eventually(lambda: finished(watched), PATIENCE)
    assert record.starts == {1: 1}
    assert watched.counts().completed == 1


@pytest.mark.parametrize(("lost", "times"), [("reply", 1), ("reply", 2), ("request", 1), ("request", 5)])
def test_a_retry_that_is_lost_on_the_way_is_never_an_acknowledgement(
    failing: App, proxy: DroppingProxy, watched: Queue, record: Record, lost: str, times: int
) -> None:
    getattr(proxy, f"drop_{lost}")(sha("job_retry"), times=times)
    failing.run.send(1)
    failing.work(threads=1)
    eventually(lambda: proxy.counts.dropped_replies + proxy.counts.dropped_requests == times, PATIENCE)
    eventually(lambda: finished(watched), PATIENCE)
    assert record.starts == {1: 2}
    assert record.ends == {1: 1}
    counts = watched.counts()
    assert (counts.completed, counts.dead, counts.failed) == (1, 0, 0)


def test_a_job_stays_claimed_for_as_long_as_its_retry_cannot_be_told(
    failing: App, proxy: DroppingProxy, watched: Queue, record: Record
) -> None:
    proxy.drop_request(sha("job_retry"), times=1_000)
    message = failing.run.send(1)
    failing.work(threads=1)
    eventually(lambda: proxy.counts.dropped_requests >= 6, PATIENCE)
    info = watched.get(message.job_id)
    assert info is not None
    assert (info.state, info.failures) == (State.ACTIVE, 0)
    assert watched.counts().completed == 0
    proxy.clear()
    eventually(lambda: finished(watched), PATIENCE)
    assert record.starts == {1: 2}
    assert watched.counts().completed == 1


@pytest.mark.slow
def test_connections_that_are_cut_ten_times_a_second_lose_no_job(
    make_app: Callable[..., App], proxy: DroppingProxy, watched: Queue, server: ServerProcess, record: Record
) -> None:
    jobs, threads = 300, 4
    nobody = threading.Event()

    def body(number: int) -> None:
        record.start(number)
        nobody.wait(0.02)
        record.end(number)

    sender = make_app(server.url, body)
    for number in range(jobs):
        sender.run.send(number)
    make_app(proxy.url, body, lease=1.0).work(threads=threads)
    while len(record.ends) < jobs * 3 // 4:
        seen = len(record.ends)
        proxy.cut_all()
        nobody.wait(0.1)
        eventually(lambda seen=seen: len(record.ends) > seen, PATIENCE, "gets on in spite of the cuts")
    eventually(lambda: finished(watched), PATIENCE, "everything done")
    assert proxy.counts.cut >= 10
    assert record.ends.keys() == set(range(jobs))
    counts = watched.counts()
    assert (counts.completed, counts.active, counts.dead) == (jobs, 0, 0)
    # Only an end that could not be told within its lease explains a second run; each cut delays one a thread at most.
    assert sum(record.starts.values()) - jobs <= proxy.counts.cut
