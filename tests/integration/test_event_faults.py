"""Events where something breaks: a call sent again says nothing again, and a job never pays for what is not said."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from support.hearing import Ear
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ConfigError, ServerOutOfMemory, ServerUnavailable
from echomq_tasks.events import EVENTS, Announcing
from echomq_tasks.queue import Complete, Discard, Flow, NewJob, Queue, Verdict
from echomq_tasks.scripts import load_scripts

LANE = "GRP0NgWEfAEJfs"


@dataclass(frozen=True)
class Scene:
    """A queue that announces everything over a proxy, one that announces nothing past it, and an ear."""

    queue: Queue
    quiet: Queue
    wire: Wire
    ear: Ear


@pytest.fixture
def scene(proxy: DroppingProxy, standalone: Connection, queue_name: str) -> Iterator[Scene]:
    for script in load_scripts().values():
        # Loaded beforehand, so that the first call is the one whose answer is lost.
        standalone.client.script_load(script.text)
    with connect(proxy.url, protocol=2) as connection, Ear(standalone, queue_name) as ear:
        queue = Queue(queue_name, connection, announcing=Announcing(EVENTS))
        quiet = Queue(queue_name, standalone, announcing=Announcing(()))
        yield Scene(queue, quiet, Wire(standalone, queue_name), ear)


def _claimed(scene: Scene, **more: Any) -> Any:
    scene.quiet.enqueue("p", **more)
    return scene.quiet.claim().jobs[0]


def _dead(scene: Scene) -> str:
    job = _claimed(scene)
    scene.quiet.retry(job, "boom", max_retries=0)
    return str(job.id)


def _expired(scene: Scene) -> None:
    scene.wire.expire(_claimed(scene, group=LANE).id)


Prepared = Callable[[], object]


def _enqueue(scene: Scene) -> Prepared:
    return lambda: scene.queue.enqueue("p")


def _add_flow(scene: Scene) -> Prepared:
    return lambda: scene.queue.add_flow(Flow(NewJob("p"), [NewJob("p")]))


def _claim(scene: Scene) -> Prepared:
    scene.quiet.enqueue("p")
    return lambda: scene.queue.claim()


def _complete(scene: Scene) -> Prepared:
    job = _claimed(scene)
    return lambda: scene.queue.settle([Complete(job)])


def _retry(scene: Scene) -> Prepared:
    job = _claimed(scene)
    return lambda: scene.queue.retry(job, "boom", delay=60)


def _bury(scene: Scene) -> Prepared:
    job = _claimed(scene)
    return lambda: scene.queue.retry(job, "boom", max_retries=0)


def _discard(scene: Scene) -> Prepared:
    job = _claimed(scene)
    return lambda: scene.queue.settle([Discard(job)])


def _progress(scene: Scene) -> Prepared:
    job = _claimed(scene)
    return lambda: scene.queue.update_progress(job.id, 0.5)


def _cancel(scene: Scene) -> Prepared:
    job_id = scene.quiet.enqueue("p").id
    return lambda: scene.queue.cancel(job_id)


def _remove(scene: Scene) -> Prepared:
    job_id = scene.quiet.enqueue("p").id
    return lambda: scene.queue.remove(job_id)


def _reprocess(scene: Scene) -> Prepared:
    job_id = _dead(scene)
    return lambda: scene.queue.reprocess(job_id)


def _retry_dead(scene: Scene) -> Prepared:
    _dead(scene)
    return lambda: scene.queue.retry_dead()


def _trim(scene: Scene) -> Prepared:
    _dead(scene)
    _dead(scene)
    return lambda: scene.queue.trim_dead(most=1)


def _reap(scene: Scene) -> Prepared:
    _expired(scene)
    return lambda: scene.queue.reap()


def _reap_lane(scene: Scene) -> Prepared:
    _expired(scene)
    return lambda: scene.queue.lane(LANE).reap()


def _sweep(scene: Scene) -> Prepared:
    _expired(scene)
    return lambda: scene.queue.sweep_stalled()


def _pause(scene: Scene) -> Prepared:
    return lambda: scene.queue.pause()


def _resume(scene: Scene) -> Prepared:
    scene.quiet.pause()
    return lambda: scene.queue.resume()


def _pause_lane(scene: Scene) -> Prepared:
    return lambda: scene.queue.lane(LANE).pause()


def _fire(scene: Scene) -> Prepared:
    scene.quiet.repeat("r", "p", every=3600, first_in=0)
    return lambda: scene.queue.fire_repeats()


def _announce(scene: Scene) -> Prepared:
    return lambda: scene.queue.publish_event("worker_started", about={"worker": "w"})


#: What is done, the script whose answer is lost, and what is said.
LOST: list[tuple[Callable[[Scene], Prepared], str, list[str]]] = [
    (_enqueue, "job_enqueue", ["enqueued"]),
    (_add_flow, "flow_add", ["enqueued", "enqueued"]),
    (_claim, "job_claim", ["started"]),
    (_complete, "job_complete", ["completed"]),
    (_retry, "job_retry", ["retried"]),
    (_bury, "job_retry", ["failed"]),
    (_discard, "job_discard", ["cancelled"]),
    (_progress, "job_progress", ["progress"]),
    (_cancel, "job_cancel", ["cancelled"]),
    (_remove, "job_remove", ["removed"]),
    (_reprocess, "job_reprocess", ["enqueued"]),
    (_retry_dead, "job_reprocess", ["enqueued"]),
    (_trim, "dead_trim", ["removed"]),
    (_reap, "job_reap", ["stalled"]),
    (_reap_lane, "lane_reap", ["stalled"]),
    (_sweep, "job_sweep", ["stalled"]),
    (_pause, "queue_pause", ["paused"]),
    (_resume, "queue_resume", ["resumed"]),
    (_pause_lane, "lane_pause", ["paused"]),
    (_fire, "repeat_fire", ["enqueued"]),
    (_announce, "event_send", ["worker_started"]),
]


@pytest.mark.parametrize(("prepare", "script", "said"), LOST, ids=[each[0].__name__[1:] for each in LOST])
@pytest.mark.parametrize("log", [None, "lifecycle"])
def test_a_call_sent_again_after_its_answer_was_lost_says_its_event_once(
    scene: Scene,
    proxy: DroppingProxy,
    prepare: Callable[[Scene], Prepared],
    script: str,
    said: list[str],
    log: str | None,
) -> None:
    scene.queue.announcing.choose(EVENTS, log=log)
    call = prepare(scene)
    assert scene.ear.names() == [], "what was prepared is not announced"
    proxy.drop_reply(load_scripts()[script].sha.encode())
    with contextlib.suppress(ServerUnavailable):
        # A few verbs are not sent again: what they answer the second time would be wrong.
        call()
    assert proxy.counts.dropped_replies == 1
    assert scene.ear.names() == said
    if log is not None:
        records = scene.wire.client.xrange(f"{scene.wire.base}stream:{log}")
        assert [fields[b"event"].decode() for _, fields in records] == said


@pytest.mark.parametrize(("count", "step"), [(3, "first"), (500, "first"), (700, "first"), (700, "last")])
@pytest.mark.parametrize("group", [None, LANE])
def test_a_drain_counts_also_what_went_with_a_lost_answer(
    scene: Scene, proxy: DroppingProxy, group: str | None, count: int, step: str
) -> None:
    scene.quiet.enqueue_many([NewJob("p", group=group)] * count)
    script = "queue_drain" if group is None else "lane_drain"
    # The last one is told of the five hundred that went before it.
    told = b" 500  4" if group is None else b" 500 1 4"
    proxy.drop_reply(load_scripts()[script].sha.encode() if step == "first" else told)
    assert (scene.queue.drain() if group is None else scene.queue.lane(LANE).drain()) == count
    assert proxy.counts.dropped_replies == 1
    assert scene.ear.names("jobs", "group") == [("drained", str(count), group)]


def test_a_call_whose_request_was_lost_says_its_event_when_it_comes_through(scene: Scene, proxy: DroppingProxy) -> None:
    job = _claimed(scene)
    proxy.drop_request(load_scripts()["job_complete"].sha.encode())
    assert scene.queue.complete(job) is Verdict.OK
    assert scene.ear.names() == ["completed"]


# -- nobody may speak, or nobody can listen ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose users and memory these tests may set up."""
    with ServerProcess(tmp_path_factory.mktemp("private"), options=["--maxmemory-policy", "noeviction"]) as process:
        yield process


def test_a_user_without_rights_on_the_channel_runs_jobs_and_only_the_events_are_lost(
    private: ServerProcess, queue_name: str
) -> None:
    private.flush()
    private.client().acl_setuser(
        "mute", enabled=True, reset=True, passwords=["+secret"], keys=["*"], commands=["+@all"], channels=[]
    )
    with (
        connect(private.url) as admin,
        Ear(admin, queue_name) as ear,
        connect(private.url, username="mute", password="secret") as connection,
    ):
        queue = Queue(queue_name, connection, announcing=Announcing(EVENTS))
        queue.announcing.choose(EVENTS, log="lifecycle")
        enqueued = queue.enqueue("p")
        (job,) = queue.claim()
        assert queue.update_progress(job.id, 0.5) is Verdict.OK
        assert queue.get(enqueued.id).progress == "0.5"  # type: ignore[union-attr]
        assert queue.complete(job) is Verdict.OK
        # What says no more than this is not kept from its caller: a worker that boots logs it.
        with pytest.raises(ConfigError, match="&emq"):
            queue.publish_event("worker_started", about={})
        assert queue.pause()
        assert queue.counts().unfinished == 0
        assert ear.heard() == []
        records = admin.client.xrange(f"emq:{{{queue_name}}}:stream:lifecycle")
        kept = [fields[b"event"].decode() for _, fields in records]
    assert kept == ["enqueued", "started", "progress", "completed", "worker_started", "paused"]


@pytest.mark.parametrize("log", [None, "lifecycle"])
def test_a_server_whose_memory_is_full_takes_ends_and_says_them(
    private: ServerProcess, queue_name: str, log: str | None
) -> None:
    private.flush()
    with connect(private.url) as connection, Ear(connection, queue_name) as ear:
        queue = Queue(queue_name, connection, announcing=Announcing(EVENTS))
        queue.announcing.choose(EVENTS, log=log)
        queue.enqueue_many(["p", "q", "r"])
        ear.heard()
        private.client().config_set("maxmemory", 1)
        try:
            done, again, never = queue.claim(3)
            assert queue.complete(done) is Verdict.OK
            assert queue.retry(again, "boom", delay=60) is Verdict.SCHEDULED
            assert queue.settle([Discard(never)]) == [Verdict.OK]
            with pytest.raises(ServerOutOfMemory):
                queue.enqueue("p")
            assert ear.names() == ["started", "started", "started", "completed", "retried", "cancelled"]
        finally:
            private.client().config_set("maxmemory", 0)


def test_events_that_nobody_hears_cost_the_jobs_nothing(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone, announcing=Announcing(EVENTS))
    queue.enqueue("p")
    assert queue.complete(queue.claim().jobs[0]) is Verdict.OK
    assert list(standalone.client.scan_iter(match=f"emq:{{{queue_name}}}:stream:*")) == []


@pytest.mark.parametrize("sharded", [False, True])
def test_what_is_sent_sharded_is_heard_only_by_those_who_subscribed_so(
    connection: Connection, queue_name: str, sharded: bool
) -> None:
    queue = Queue(queue_name, connection, announcing=Announcing(EVENTS))
    queue.announcing.choose(EVENTS, sharded=sharded)
    with Ear(connection, queue_name) as plain, Ear(connection, queue_name, sharded=True) as shard:
        queue.enqueue("p")
        queue.pause()
        queue.publish_event("worker_started", about={})
        heard = ["enqueued", "paused", "worker_started"]
        assert plain.names() == ([] if sharded else heard)
        assert shard.names() == (heard if sharded else [])
