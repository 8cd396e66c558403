"""Lost requests and replies, cut connections, exceptions in the middle of an answer, forks: nothing lost or doubled."""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import redis
from support.children import Child
from support.clusters import PORTS
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.keyspace import job_key, queue_key
from echomq_tasks.queue import Admission, Complete, Job, NewJob, Queue, Retry, State, Verdict
from echomq_tasks.scripts import executor, load_scripts
from echomq_tasks.scripts.wire import Wire

JOB = "JOB0KHTOWnGLuC"


@dataclass(frozen=True)
class Faulty:
    """A queue behind a proxy, and a way around it."""

    proxy: DroppingProxy
    queue: Queue
    direct: redis.Redis

    def row_ids(self) -> list[str]:
        """The ids of every row."""
        prefix = queue_key(self.queue.name) + b"job:"
        return sorted(key.removeprefix(prefix).decode() for key in self.direct.scan_iter(prefix + b"*", count=1000))

    def drop(self, what: str, match: str | bytes, times: int = 1) -> None:
        """Lose the request or the reply of the next calls of a script, or of whatever holds the bytes ``match``."""
        sought = load_scripts()[match].sha.encode() if isinstance(match, str) else match
        (self.proxy.drop_reply if what == "reply" else self.proxy.drop_request)(sought, times)

    def dropped(self) -> int:
        """How many faults have played."""
        return self.proxy.counts.dropped_replies + self.proxy.counts.dropped_requests


@pytest.fixture(scope="module")
def lone_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A cluster of one, so that a proxy can stand in front of all of it."""
    options = ["--cluster-enabled", "yes"]
    with ServerProcess(tmp_path_factory.mktemp("lone-master"), options=options, ports=PORTS) as node:
        node.client().execute_command("CLUSTER ADDSLOTSRANGE", 0, 16_383)
        eventually(lambda: node.client().execute_command("CLUSTER INFO")["cluster_state"] == "ok")
        yield node


@pytest.fixture(params=["standalone", "cluster"])
def faulty(request: pytest.FixtureRequest, queue_name: str) -> Iterator[Faulty]:
    """A queue behind a proxy, whose scripts are loaded and whose node id is leased."""
    is_cluster = request.param == "cluster"
    node: ServerProcess = request.getfixturevalue("lone_master" if is_cluster else "server")
    node.flush()
    with DroppingProxy(node.port) as proxy:
        if is_cluster:
            # The client connects to whatever address the cluster names.
            node.client().config_set("cluster-announce-port", proxy.port)
        url = f"valkey+cluster://127.0.0.1:{proxy.port}" if is_cluster else proxy.url
        with connect(url, timeout=10) as connection:
            queue = Queue(queue_name, connection)
            warm_up(queue)
            node.client().delete(*node.client().keys("emq:*"))
            yield Faulty(proxy, queue, node.client())
            queue.scripts.close()


def warm_up(queue: Queue) -> None:
    """Run every script once, so that a fault meets the call and not the loading of it."""
    queue.enqueue_many(["a", "b", "c", "d"])
    one, two, three, four = queue.claim(4)
    queue.settle([Complete(one), Retry(two, max_retries=0)])
    queue.extend(three)
    queue.release(three)
    queue.retry(four)
    queue.reap()
    queue.get(four.id)


# -- admission ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("arguments", [{}, {"delay": 60}, {"group": "g"}, {"priority": 3}], ids=str)
def test_one_enqueue_is_one_job_whatever_gets_lost(faulty: Faulty, what: str, arguments: dict[str, Any]) -> None:
    faulty.drop(what, "job_enqueue")
    enqueued = faulty.queue.enqueue("x", **arguments)
    assert faulty.dropped() == 1
    assert enqueued.admission is (Admission.SCHEDULED if "delay" in arguments else Admission.ENQUEUED)
    assert faulty.row_ids() == [enqueued.id]
    assert faulty.queue.counts().unfinished == 1


@pytest.mark.parametrize("what", ["request", "reply"])
def test_an_id_of_the_caller_s_stays_one_job_whatever_gets_lost(faulty: Faulty, what: str) -> None:
    faulty.drop(what, "job_enqueue")
    enqueued = faulty.queue.enqueue("x", id=JOB)
    assert (enqueued.id, enqueued.duplicate) == (JOB, False)
    assert faulty.row_ids() == [JOB]
    assert faulty.queue.enqueue("x", id=JOB).duplicate


@pytest.mark.parametrize("what", ["request", "reply"])
def test_an_enqueue_that_fails_twice_says_so_and_is_at_most_one_job(faulty: Faulty, what: str) -> None:
    faulty.drop(what, "job_enqueue", times=2)
    with pytest.raises(ServerUnavailable) as caught:
        faulty.queue.enqueue("x")
    assert faulty.dropped() == 2
    assert caught.value.admitted == ()
    assert len(faulty.row_ids()) == (1 if what == "reply" else 0)
    assert faulty.queue.enqueue("y").admission is Admission.ENQUEUED


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize("at", [0, 300, 3999, 4000, 4999])
def test_bulk_admission_neither_doubles_nor_loses(faulty: Faulty, what: str, at: int) -> None:
    payloads = [b"same"] * 5000
    payloads[at] = b"here-it-breaks"
    faulty.drop(what, b"here-it-breaks")
    answers = faulty.queue.enqueue_many(payloads)
    assert faulty.dropped() == 1
    assert {answer.admission for answer in answers} == {Admission.ENQUEUED}
    assert faulty.row_ids() == sorted(answer.id for answer in answers)
    assert len(set(faulty.row_ids())) == 5000
    info = faulty.queue.get(answers[at].id)
    assert info is not None
    assert info.payload == b"here-it-breaks"


def test_bulk_admission_that_fails_lists_what_is_in_for_certain(faulty: Faulty) -> None:
    jobs = [NewJob(payload=b"first trip")] * 4000 + [NewJob(payload=b"here-it-breaks")]
    faulty.drop("request", b"here-it-breaks", times=2)
    with pytest.raises(ServerUnavailable) as caught:
        faulty.queue.enqueue_many(jobs)
    assert len(caught.value.admitted) == 4000
    assert faulty.row_ids() == sorted(caught.value.admitted)


# -- settling and claiming ----------------------------------------------------------------------------------------


def claimed(faulty: Faulty, count: int = 1, **arguments: Any) -> list[Job]:
    """Admit and claim so many jobs."""
    faulty.queue.enqueue_many([NewJob(payload="x", **arguments)] * count)
    return list(faulty.queue.claim(count))


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize(("what", "verdict"), [("request", Verdict.OK), ("reply", Verdict.GONE)])
def test_a_completion_counts_once(faulty: Faulty, what: str, verdict: Verdict, group: str | None) -> None:
    (job,) = claimed(faulty, group=group)
    faulty.drop(what, "job_complete")
    assert faulty.queue.complete(job) is verdict
    assert faulty.dropped() == 1
    assert faulty.queue.counts().completed == 1
    assert faulty.queue.counts().unfinished == 0
    assert not faulty.direct.exists(queue_key(faulty.queue.name, "gactive"))


@pytest.mark.parametrize("what", ["request", "reply"])
@pytest.mark.parametrize(("limit", "verdict"), [(5, Verdict.SCHEDULED), (0, Verdict.DEAD)])
def test_a_failure_counts_once(faulty: Faulty, what: str, limit: int, verdict: Verdict) -> None:
    (job,) = claimed(faulty)
    faulty.drop(what, "job_retry")
    assert faulty.queue.retry(job, "boom", delay=60, max_retries=limit) is verdict
    assert faulty.dropped() == 1
    info = faulty.queue.get(job.id)
    assert info is not None
    assert (info.failures, info.last_error) == (1, "boom")
    assert faulty.queue.counts().failed == (1 if verdict is Verdict.DEAD else 0)


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_release_and_a_renewal_may_be_repeated(faulty: Faulty, what: str) -> None:
    one, two = claimed(faulty, 2)
    faulty.drop(what, "job_release")
    assert faulty.queue.release(one) is Verdict.OK
    faulty.drop(what, "job_extend")
    assert faulty.queue.extend_many([two]) == []
    assert faulty.dropped() == 2
    assert (faulty.queue.state(one.id), faulty.queue.state(two.id)) == (State.PENDING, State.ACTIVE)
    assert faulty.queue.counts().pending == 1


@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_claim_whose_answer_got_lost_hands_out_what_it_took(faulty: Faulty, what: str) -> None:
    ids = [faulty.queue.enqueue("x").id for _ in range(3)]
    faulty.drop(what, "job_claim")
    jobs = faulty.queue.claim(2).jobs
    assert faulty.dropped() == 1
    assert [(job.id, job.token) for job in jobs] == [(ids[0], 1), (ids[1], 1)]
    assert (faulty.queue.counts().active, faulty.queue.counts().pending) == (2, 1)


@pytest.mark.parametrize("asked", [2, 1])
def test_the_next_claim_hands_out_what_one_without_any_answer_took(faulty: Faulty, asked: int) -> None:
    ids = [faulty.queue.enqueue("x").id for _ in range(3)]
    faulty.drop("reply", "job_claim", times=2)
    with pytest.raises(ServerUnavailable):
        faulty.queue.claim(2)
    jobs = faulty.queue.claim(asked).jobs
    assert [(job.id, job.token) for job in jobs] == [(job_id, 1) for job_id in ids[:asked]]
    # What there was no room for waits again, as if it had never been claimed.
    assert (faulty.queue.counts().active, faulty.queue.counts().pending) == (asked, 3 - asked)
    assert {job.stalled for job in faulty.queue.claim(3)} == {0}


def test_what_a_lost_claim_took_and_another_worker_has_now_is_not_handed_out(faulty: Faulty) -> None:
    job_id = faulty.queue.enqueue("x").id
    faulty.drop("reply", "job_claim", times=2)
    with pytest.raises(ServerUnavailable):
        faulty.queue.claim(lease=0.05)
    assert eventually(faulty.queue.reap) == 1
    other = Queue(faulty.queue.name, faulty.queue.connection)
    (theirs,) = other.claim().jobs
    assert (theirs.id, theirs.token) == (job_id, 2)
    assert not faulty.queue.claim()


def test_an_admission_whose_job_ran_to_its_end_before_the_answer_is_not_admitted_again(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Queue(faulty.queue.name, connect(faulty.queue.connection.config.address))
    attempt = faulty.queue.scripts._exchange_cluster if faulty.queue.connection.is_cluster else None  # noqa: SLF001
    name = "_exchange_cluster" if attempt else "_exchange"
    exchange = getattr(faulty.queue.scripts, name)
    ran: list[str] = []

    def run_between(*sent: Any) -> Any:
        # The first exchange breaks; by the time of the second the job has been run and its row is gone.
        try:
            return exchange(*sent)
        except ServerUnavailable:
            for job in worker.claim(10):
                ran.append(job.id)
                worker.complete(job)
            raise

    monkeypatch.setattr(faulty.queue.scripts, name, run_between)
    faulty.drop("reply", "job_enqueue")
    answers = faulty.queue.enqueue_many(["a", "b"])
    assert faulty.dropped() == 1
    assert [answer.admission for answer in answers] == [Admission.ENQUEUED] * 2
    assert sorted(ran) == sorted(answer.id for answer in answers)
    assert faulty.queue.counts().unfinished == 0
    worker.connection.close()


def test_a_turn_whose_reply_got_lost_settles_once_and_strands_no_job(faulty: Faulty) -> None:
    done, failed = claimed(faulty, 2)
    waiting = {faulty.queue.enqueue("x").id for _ in range(2)}
    faulty.drop("reply", "job_claim")
    turn = faulty.queue.turn([Complete(done), Retry(failed, "boom", delay=60)], 1, lease=0.05)
    assert turn.verdicts == (Verdict.GONE, Verdict.SCHEDULED)
    assert faulty.queue.counts().completed == 1
    assert {job.id for job in turn.claimed} | {job.id for job in faulty.queue.claim(2)} == waiting
    info = faulty.queue.get(failed.id)
    assert info is not None
    assert info.failures == 1


def test_a_turn_is_one_round_trip_of_as_many_commands_as_it_has_verbs(faulty: Faulty) -> None:
    one, two = claimed(faulty, 2)
    before = faulty.proxy.counts.commands
    faulty.queue.turn([Complete(one), Retry(two)], 5)
    assert faulty.proxy.counts.commands - before == 3


# -- connections --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check_after", [0.0, 1000.0], ids=["checked", "unchecked"])
def test_connections_that_were_cut_while_idle_do_not_fail_the_next_calls(
    own_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, check_after: float
) -> None:
    monkeypatch.setattr(executor, "_CHECK_AFTER", check_after)
    with DroppingProxy(own_server.port) as proxy, connect(proxy.url) as connection, ThreadPoolExecutor(6) as pool:
        queue = Queue(queue_name, connection)
        warm_up(queue)
        # Six calls at once, so that six connections are idle afterwards.
        own_server.pause(200)
        list(pool.map(lambda _: queue.counts(), range(6)))
        verbs: list[Callable[[], Any]] = [
            lambda: queue.enqueue("x"),
            lambda: queue.enqueue_many(["x"] * 300),
            queue.counts,
            lambda: queue.claim(5),
            lambda: queue.complete_many(list(queue.claim(5))),
        ]
        for verb in verbs:
            proxy.cut_all()
            verb()
            own_server.pause(100)
            list(pool.map(lambda _: queue.counts(), range(6)))
        queue.scripts.close()


def test_a_timeout_is_reported_and_the_call_is_not_sent_again(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url, timeout=1) as connection:
        queue = Queue(queue_name, connection)
        warm_up(queue)
        queue.drain("pending", "schedule", "dead")
        own_server.client().config_resetstat()
        own_server.pause(3000)
        with pytest.raises(ServerUnavailable) as caught:
            queue.enqueue("x")
        assert isinstance(caught.value.__cause__, redis.TimeoutError)
        eventually(own_server.client().ping)
        stats = own_server.client().info("commandstats")
        assert stats.get("cmdstat_evalsha", {"calls": 0})["calls"] <= 1
        before = queue.counts().pending
        assert before <= 1
        queue.enqueue("y")
        assert queue.counts().pending == before + 1
        queue.scripts.close()


@pytest.mark.parametrize("read_first", [0, 1], ids=["before the answer", "in the middle of the answer"])
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_exception_while_an_answer_is_read_does_not_shift_the_next_answers(
    connection: Connection,
    queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
    raised: type[BaseException],
    read_first: int,
) -> None:
    queue = Queue(queue_name, connection)
    ids = [answer.id for answer in queue.enqueue_many([str(number) for number in range(5)])]
    jobs = list(queue.claim(2))
    parser = type(connection.fresh(queue_key(queue_name), blocking=False)._parser)  # noqa: SLF001

    def interrupted_client(self: Any, *_: Any, **__: Any) -> Any:
        raise raised

    def interrupted_wire(self: Any, sock: socket.socket, **_: Any) -> bytes:
        if read_first:
            sock.recv(read_first)
        raise raised

    for verb in (
        lambda: queue.get(ids[0]),
        lambda: queue.get_many(ids),
        lambda: queue.settle([Complete(jobs[0]), Retry(jobs[1])]),
    ):
        with monkeypatch.context() as patch:
            # A cluster's replies come through the client, the others' through our own wire.
            if connection.is_cluster:
                patch.setattr(parser, "read_response", interrupted_client)
            else:
                patch.setattr(Wire, "_first", interrupted_wire)
            with pytest.raises(raised):
                verb()
        for number, job_id in enumerate(ids[2:], 2):
            info = queue.get(job_id)
            assert info is not None
            assert (info.id, info.payload) == (job_id, str(number).encode())


class Thrown(BaseException):
    """What the next test throws."""


def test_exceptions_thrown_into_a_thread_do_not_shift_its_answers(standalone: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, standalone)
    ids = [answer.id for answer in queue.enqueue_many([str(number) for number in range(10)])]
    ready, rounds, wrong = threading.Event(), 150, list[str]()

    def look(number: int) -> None:
        info = queue.get(ids[number % 10])
        if info is None or info.payload != str(number % 10).encode():
            wrong.append(f"{number}: {info}")

    def run() -> None:
        for number in range(rounds):
            try:
                ready.set()
                while True:
                    look(number)
            except Thrown:
                look(number + 1)

    thread = threading.Thread(target=run)
    thread.start()
    for _ in range(rounds):
        assert ready.wait(10)
        ready.clear()
        assert thread.ident is not None
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Thrown)) == 1
    thread.join(30)
    assert not thread.is_alive()
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_shares_no_connection(connection: Connection, queue_name: str) -> None:
    queue = Queue(queue_name, connection)
    ids = [answer.id for answer in queue.enqueue_many([str(number) for number in range(50)])]
    assert queue.get(ids[0]) is not None

    def look() -> list[bytes]:
        infos = [queue.get(job_id) for _ in range(10) for job_id in ids]
        return [info.payload for info in infos if info]

    expected = [str(number).encode() for number in range(50)] * 10
    children = [Child(look) for _ in range(3)]
    assert look() == expected
    for child in children:
        assert child.result() == expected
    assert look() == expected
    enqueued = [Child(lambda: queue.enqueue("from a child").id) for _ in range(2)]
    for child in enqueued:
        assert connection.client.exists(job_key(queue_name, child.result()))
