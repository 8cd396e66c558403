"""A full server refuses new jobs before the first write, and lets everything pass that moves or frees what is there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerOutOfMemory
from echomq_tasks.queue import NewJob, Queue, Verdict

LANE = "GRP0NgWEfAEJfs"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose memory these tests may limit."""
    with ServerProcess(tmp_path_factory.mktemp("small"), options=["--maxmemory-policy", "noeviction"]) as process:
        yield process


@pytest.fixture
def connection(small: ServerProcess) -> Iterator[Connection]:
    """In place of the shared one: a connection to that server, with room and emptied."""
    small.client().config_set("maxmemory", 0)
    small.flush()
    with connect(small.url) as opened:
        yield opened


@pytest.fixture
def queue(connection: Connection, queue_name: str) -> Queue:
    return Queue(queue_name, connection)


@pytest.fixture
def fill_up(small: ServerProcess) -> Callable[[], None]:
    """Call it when the queue is prepared: from then on the server is over its memory."""

    def fill_up() -> None:
        small.client().config_set("maxmemory", 1)

    return fill_up


def test_every_admission_is_refused_and_no_key_changes(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    queue.enqueue("p")
    before = wire.dumps()
    fill_up()
    with pytest.raises(ServerOutOfMemory, match="maxmemory"):
        queue.enqueue("p")
    with pytest.raises(ServerOutOfMemory):
        queue.enqueue("p", delay=5, group=LANE)
    with pytest.raises(ServerOutOfMemory) as refused:
        queue.enqueue_many(["p"] * 600)
    assert refused.value.admitted == ()
    assert wire.dumps() == before


def test_admission_goes_on_when_there_is_room_again(
    queue: Queue, small: ServerProcess, fill_up: Callable[[], None]
) -> None:
    fill_up()
    with pytest.raises(ServerOutOfMemory):
        queue.enqueue("p")
    small.client().config_set("maxmemory", 0)
    assert not queue.enqueue("p").duplicate


def test_claimed_jobs_can_be_settled_in_every_way(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    queue.enqueue_many([NewJob(payload="p", group=LANE), "q", "r", "s"])
    fill_up()
    done, again, never, back = queue.claim(4).jobs
    assert queue.extend(back, lease=60) is Verdict.OK
    assert queue.complete(done, b"result") is Verdict.OK
    assert queue.retry(again, "boom", delay=60) is Verdict.SCHEDULED
    assert queue.retry(never, "boom", max_retries=0) is Verdict.DEAD
    assert queue.release(back) is Verdict.OK
    counts = queue.counts()
    assert (counts.completed, counts.scheduled, counts.dead, counts.waiting, counts.active) == (1, 1, 1, 1, 0)


def test_promoting_and_reaping_pass(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    queue.enqueue_many([NewJob(payload="p", delay=60), NewJob(payload="p", group=LANE), "q"])
    reaped, kept = (job.id for job in queue.claim(2))
    wire.expire(reaped)
    wire.come_due(*wire.ids("schedule"))
    fill_up()
    assert queue.promote() == 1
    assert queue.reap() == 1
    assert wire.ids("active") == [kept]
    assert queue.counts().waiting == 2


def test_a_sweep_passes(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    ids = {answer.id for answer in queue.enqueue_many(["p", "q"])}
    queue.claim(2)
    wire.expire(*ids)
    fill_up()
    assert set(queue.sweep_stalled(max_stalled=1).dead) == ids
    assert wire.ids("dead") == sorted(ids)


def test_what_an_operator_needs_to_get_out_of_it_passes(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    flat, *_ = queue.enqueue_many(["p", *[NewJob(payload="q", group=LANE)] * 3])
    fill_up()
    lane = queue.lane(LANE)
    assert queue.pause()
    queue.limit_rate(5)
    queue.limit_concurrency(5)
    lane.limit(2)
    lane.weight(2)
    assert lane.pause()
    assert lane.resume()
    assert queue.resume()
    assert lane.move(flat.id) is Verdict.OK
    assert queue.metrics().waiting == lane.drain() == 4
    queue.pause()
    assert queue.obliterate() == 0
    assert list(wire.keys()) == []


def test_looking_and_draining_pass(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    answer = queue.enqueue("p")
    queue.enqueue("q", group=LANE)
    fill_up()
    assert queue.get(answer.id) is not None
    assert queue.browse() == [answer.id]
    assert queue.drain() == 2
    assert queue.counts().unfinished == 0


def test_a_repeat_is_neither_registered_nor_fired_and_stays_due_until_there_is_room(
    queue: Queue, wire: Wire, small: ServerProcess, fill_up: Callable[[], None]
) -> None:
    queue.repeat("r", "p", every=60, first_in=0)
    before = wire.dumps()
    fill_up()
    with pytest.raises(ServerOutOfMemory):
        queue.repeat("another", "p", every=60)
    with pytest.raises(ServerOutOfMemory):
        queue.fire_repeats()
    assert wire.dumps() == before
    small.client().config_set("maxmemory", 0)
    assert len(queue.fire_repeats()) == 1


def test_a_repeat_that_is_there_is_registered_again_without_room(
    queue: Queue, wire: Wire, fill_up: Callable[[], None]
) -> None:
    queue.repeat("i", "p", every=60, group="acme", group_limit=2)
    queue.repeat("c", "p", cron="0 9 * * *", tz="Europe/Athens", limit=3)
    before = wire.dumps()
    fill_up()
    for replace in (False, True):
        assert queue.repeat("i", "p", every=60, group="acme", group_limit=2, replace=replace) is False
        assert queue.repeat("c", "p", cron="0 9 * * *", tz="Europe/Athens", limit=3, replace=replace) is False
    assert queue.repeat("i", "q", every=5) is False
    with pytest.raises(ServerOutOfMemory):
        queue.repeat("i", "p", every=60, replace=True)
    assert wire.dumps() == before


def test_a_repeat_is_skipped_listed_and_cancelled(queue: Queue, wire: Wire, fill_up: Callable[[], None]) -> None:
    queue.repeat("r", "p", every=3600, catch_up=False)
    missed = wire.now_ms() - 1_800_000
    wire.do("ZADD", "repeat", missed, "r")
    fill_up()
    assert queue.fire_repeats() == []
    assert wire.read("repeat") == {"r": missed + 3_600_000}
    assert len(queue.repeats()) == 1
    assert queue.cancel_repeat("r")
    assert wire.read("repeat") is None
