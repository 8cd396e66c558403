"""Lifecycle: what a Dramatiq app announces of its jobs, workers and queues; a raw subscriber is the judge."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import dramatiq
import pytest
from dramatiq import Worker, pipeline
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, MiddlewareError, SkipMessage
from failing_actors import QUICK
from support.eventually import eventually
from support.hearing import Ear
from support.servers import ServerProcess, free_port
from wire.handwriting import Wire

from echomq_tasks import actor, current_job, flow
from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.bus import Log, Retention
from echomq_tasks.connection import Connection
from echomq_tasks.errors import BatchError, ConfigError, InvalidArgument, InvalidName, ServerUnavailable
from echomq_tasks.events import EVENTS
from echomq_tasks.middleware import Lifecycle, Retries
from echomq_tasks.queue import Queue

MakeBroker = Callable[..., EchoMQBroker]
MakeWorker = Callable[..., Worker]
Finish = Callable[..., None]
Listen = Callable[..., Ear]


@pytest.fixture
def listen(standalone: Connection) -> Iterator[Listen]:
    """Subscribe to queues, "default" by default."""
    with ExitStack() as stack:
        yield lambda queue="default": stack.enter_context(Ear(standalone, queue))


@pytest.fixture
def said(make_broker: MakeBroker, make_worker: MakeWorker, finish: Finish, listen: Listen) -> Callable[..., Any]:
    """Run what was sent, and tell what was heard of jobs since the listening began: by the job, in order."""

    def run(broker: EchoMQBroker, ear: Ear) -> dict[str, list[dict[str, str]]]:
        worker = make_worker(broker)
        finish(broker)
        worker.stop()
        found: dict[str, list[dict[str, str]]] = {}
        for event in ear.heard():
            if "job" in event:
                found.setdefault(event["job"], []).append(event)
        return found

    return run


def names(events: list[dict[str, str]], *more: str) -> list[Any]:
    return [tuple(event.get(field) for field in ("event", *more)) if more else event["event"] for event in events]


# -- a job's life --------------------------------------------------------------------------------------------------


def test_an_app_announces_by_one_line_of_middleware(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    broker.add_middleware(Lifecycle())

    @dramatiq.actor
    def work(x: int) -> None: ...

    ear = listen()
    message = work.send(1)
    events = said(broker, ear)[message.job_id]  # type: ignore[attr-defined]
    assert names(events, "actor", "queue", "attempt") == [
        ("enqueued", "work", "default", "0"),
        ("started", "work", "default", "1"),
        ("completed", "work", "default", "1"),
    ]
    assert float(events[-1]["duration_ms"]) >= 0
    assert "error" not in events[-1]


def test_our_actor_announces_by_itself(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @actor
    def work(x: int) -> None: ...

    ear = listen()
    message = work.send(1)
    assert names(said(broker, ear)[message.job_id]) == ["enqueued", "started", "completed"]


def test_dramatiqs_actor_on_a_plain_broker_announces_nothing(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @dramatiq.actor
    def work(x: int) -> None: ...

    ear = listen()
    work.send(1)
    assert said(broker, ear) == {}
    assert ear.heard() == [], "nor are workers announced"


class Unreadable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


FAILURES: list[tuple[BaseException, str, str]] = [
    (ValueError("no\nluck \U0001f600"), "ValueError", "no\nluck \U0001f600"),
    (ValueError('\ud800 \0 \x7f "'), "ValueError", '? \0 \x7f "'),
    (KeyError("x" * 1000), "KeyError", repr("x" * 1000)[:500]),
    (Unreadable(), "Unreadable", "(its text cannot be read: RuntimeError)"),
    (type("Ünsound", (Exception,), {})("ö" * 600), "Ünsound", "ö" * 500),
    (AssertionError(), "AssertionError", ""),
]


@pytest.mark.parametrize(("error", "kind", "message"), FAILURES, ids=[each[1] for each in FAILURES])
def test_a_failure_is_retried_and_then_failed_with_its_error(
    broker: EchoMQBroker, listen: Listen, said: Any, error: BaseException, kind: str, message: str
) -> None:
    @actor(max_retries=1, **QUICK)
    def work() -> None:
        raise error

    ear = listen()
    sent = work.send()
    events = said(broker, ear)[sent.job_id]
    assert names(events, "attempt", "error", "message") == [
        ("enqueued", "0", None, None), ("started", "1", None, None), ("retried", "1", kind, message),
        ("started", "2", None, None), ("failed", "2", kind, message),
    ]  # fmt: skip
    assert int(events[2]["delay_ms"]) in (1, 2)
    assert all("duration_ms" in event for event in events if event["event"] in ("retried", "failed"))


def test_each_way_through_a_worker_says_how_it_went(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    class Skipping(dramatiq.Middleware):
        def before_process_message(self, broker: Any, message: Any) -> None:
            if message.args == ["skip"]:
                raise SkipMessage("not today")

    broker.add_middleware(Skipping())

    @actor(max_age=3_600_000)
    def work(how: str, before: str = "") -> str:
        if how == "progress":
            current_job().progress(0.5)
        if how == "cancel":
            broker.queue("default").cancel(current_job().id)
            current_job().checkpoint()
        return how

    ear = listen()
    sent = {how: work.send(how).job_id for how in ("progress", "cancel", "skip")}
    sent["delay"] = work.send_with_options(args=("delay",), delay=20).job_id
    sent["old"] = work.send_with_options(args=("old",), max_age=-1).job_id
    pipeline([work.message("a"), work.message("b")]).run()
    found = said(broker, ear)
    lives = {how: names(found.pop(job_id))[1:] for how, job_id in sent.items()}
    assert lives == {
        "progress": ["started", "progress", "completed"], "cancel": ["started", "cancelled"],
        "skip": ["started", "completed"], "delay": ["started", "completed"], "old": ["started", "failed"],
    }  # fmt: skip
    assert [names(events) for events in found.values()] == [["enqueued", "started", "completed"]] * 2


def test_a_delayed_message_is_scheduled(broker: EchoMQBroker, listen: Listen) -> None:
    @actor
    def work() -> None: ...

    ear = listen()
    message = work.send_with_options(delay=90_000)
    assert ear.names("job", "actor", "delay_ms") == [("scheduled", message.job_id, "work", "90000")]


def test_each_member_of_a_batch_has_its_own_events(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @actor(batch=4, batch_wait=5, max_retries=0)
    def index(numbers: list[int]) -> None:
        raise BatchError({1: ValueError("no")})

    ear = listen()
    ids = [index.send(number).job_id for number in range(4)]
    found = said(broker, ear)
    assert list(found) == ids
    ends = [names(events[-1:], "actor", "attempt", "error") for events in found.values()]
    assert [names(events)[:-1] for events in found.values()] == [["enqueued", "started"]] * 4
    done = [("completed", "index", "1", None)]
    assert ends == [done, [("failed", "index", "1", "ValueError")], done, done]
    assert all("duration_ms" in events[-1] for events in found.values())


def test_a_flows_parents_and_children_are_announced(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @actor(max_retries=0)
    def child(x: int) -> int:
        return 1 // x

    @actor
    def parent() -> None: ...

    ear = listen()
    whole, broken = flow(parent.message(), [child.message(1)]), flow(parent.message(), [child.message(0)])
    for each in (whole, broken):
        each.run()
    found = said(broker, ear)
    good, bad = (found[each.parent.job_id] for each in (whole, broken))  # type: ignore[attr-defined]
    assert names(good, "actor") == [("enqueued", "parent"), ("started", "parent"), ("completed", "parent")]
    assert names(bad, "actor") == [("enqueued", "parent"), ("failed", "parent")]
    assert bad[-1]["message"].startswith("child JOB")


def test_a_repeating_actor_is_enqueued_by_its_repeat(
    broker: EchoMQBroker, make_worker: MakeWorker, listen: Listen
) -> None:
    ran = threading.Event()

    @actor(every=0.05)
    def tick() -> None:
        ran.set()

    ear = listen()
    make_worker(broker)
    assert ran.wait(20)
    first = next(event for event in ear.heard() if event["event"] == "enqueued")
    assert (first["actor"], first["repeat"], first["attempt"]) == ("tick", "tick", "0")


def test_what_no_worker_can_read_is_failed_with_the_reason(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @actor
    def work() -> None: ...

    ear = listen()
    job_id = broker.queue("default").enqueue(b"\x80 no message").id
    events = said(broker, ear)[job_id]
    assert names(events) == ["enqueued", "started", "failed"]
    assert events[-1]["message"].startswith("DecodeError")


def test_a_message_that_is_refused_as_a_duplicate_says_nothing(broker: EchoMQBroker, listen: Listen) -> None:
    @actor(unique="until_done")
    def work() -> None: ...

    ear = listen()
    for _ in range(3):
        work.send()
    assert ear.names() == ["enqueued"]


# -- workers -------------------------------------------------------------------------------------------------------


def test_a_worker_is_announced_on_each_queue_that_it_serves_before_and_after_its_jobs(
    broker: EchoMQBroker, make_worker: MakeWorker, finish: Finish, listen: Listen
) -> None:
    for name in ("one", "two", "three"):
        actor(lambda: None, queue_name=name, actor_name=name)
    ears = {name: listen(name) for name in ("one", "two", "three")}
    broker.get_actor("one").send()
    worker = make_worker(broker, threads=3, queues={"one", "two"})
    finish(broker, "one")
    worker.stop()
    life = ["enqueued", "worker_started", "started", "completed", "worker_stopping", "worker_stopped"]
    heard = {name: ear.heard() for name, ear in ears.items()}
    assert names(heard["one"]) == life
    assert names(heard["two"]) == [name for name in life if name.startswith("worker")]
    assert heard["three"] == []
    (who,) = {event["worker"] for event in heard["two"]}
    assert {event.get("worker") for event in heard["one"]} == {who, None}
    assert {event["threads"] for event in heard["two"]} == {"3"}


def test_a_server_that_is_away_keeps_no_worker_from_booting_or_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, make_worker: MakeWorker
) -> None:
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0.05)
    broker = EchoMQBroker(f"valkey://127.0.0.1:{free_port()}")
    actor(lambda: None, broker=broker, actor_name="work")
    with caplog.at_level(logging.WARNING):
        make_worker(broker, threads=1).stop()
    broker.close()
    assert "worker_started is not announced on queue 'default'" in caplog.text


def test_a_server_that_is_away_is_lamented_once_for_all_queues_and_its_return_is_told(
    broker: EchoMQBroker, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add_middleware(Lifecycle(log="audit"))
    for number in range(7):
        actor(lambda: None, actor_name=f"work-{number}", queue_name=f"q-{number}")
    publish, away = Queue.publish_event, True

    def maybe(self: Queue, *args: Any, **kwargs: Any) -> None:
        if away:
            raise ServerUnavailable("nobody there")
        publish(self, *args, **kwargs)

    monkeypatch.setattr(Queue, "publish_event", maybe)
    monkeypatch.setattr(Log, "retain_for", maybe)

    def said(level: int) -> list[str]:
        found = [each for each in caplog.records if each.name.endswith("lifecycle") and each.levelno == level]
        caplog.clear()
        return [each.getMessage() for each in found]

    caplog.set_level(logging.INFO, "echomq_tasks")
    first, second = make_worker(broker), make_worker(broker)
    first.stop()
    assert said(logging.WARNING) == [
        "The log 'audit' is not prepared on 7 queues ('q-0', 'q-1', 'q-2', 'q-3', 'q-4', ...): nobody there"
    ]
    away = False
    second.stop()
    (info,) = said(logging.INFO)
    assert info.startswith("The events of workers are announced again, after ")
    away = True
    make_worker(broker, queues={"q-0", "q-1"}).stop()
    assert len(said(logging.WARNING)) == 1, "another outage is told of again"


def test_what_is_refused_queue_by_queue_is_told_of_each_time_and_by_its_reason(
    broker: EchoMQBroker, make_worker: MakeWorker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add_middleware(Lifecycle())
    for name in ("one", "two", "three"):
        actor(lambda: None, actor_name=name, queue_name=name)

    def refuse(self: Queue, event: str, *args: Any, **kwargs: Any) -> None:
        raise ConfigError("no rights there" if self.name == "two" else "no rights")

    monkeypatch.setattr(Queue, "publish_event", refuse)
    make_worker(broker).stop()
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [line for line in told if "announced" in line] == [
        line
        for event in ("worker_started", "worker_stopping", "worker_stopped")
        for line in (
            f"{event} is not announced on 2 queues ('one', 'three'): no rights",
            f"{event} is not announced on queue 'two': no rights there",
        )
    ]


# -- what is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [None, False, ()])
def test_where_events_are_off_scripts_get_one_argument_more(
    make_broker: MakeBroker, make_worker: MakeWorker, finish: Finish, listen: Listen, server: ServerProcess, off: Any
) -> None:
    broker = make_broker()
    broker.add_middleware(Lifecycle(off))

    @actor
    def work() -> None: ...

    ear = listen()
    seen: list[list[Any]] = []
    pack = broker.queue("default").scripts._command  # noqa: SLF001 - the last place where all arguments are seen

    def noting(call: Any) -> Any:
        command = pack(call)
        seen.append(list(command))
        return command

    broker.queue("default").scripts._command = noting  # type: ignore[method-assign]  # noqa: SLF001
    message = work.send()
    worker = make_worker(broker)
    finish(broker)
    worker.stop()
    broker.queue("default").pause()
    assert ear.heard() == []
    scripts = broker.queue("default").scripts._scripts  # noqa: SLF001
    announcing = {script.sha: script.name for script in scripts.values() if script.announces}
    calls = {announcing[command[1]]: command for command in seen if command[1] in announcing}
    assert {"job_enqueue", "job_claim", "job_complete", "job_sweep", "queue_pause"} <= set(calls)
    assert {command[-1] for command in calls.values()} == {0}
    assert calls["job_complete"][4:] == [message.job_id, 1, b"", 0]
    assert calls["queue_pause"][4:] == [0]
    assert "event_send" not in calls


def test_only_what_is_chosen_is_announced_and_an_actor_chooses_for_itself(
    broker: EchoMQBroker, listen: Listen, said: Any
) -> None:
    broker.add_middleware(Lifecycle({"failed", "completed"}))

    @actor(max_retries=0)
    def usual(x: int) -> None:
        if x:
            raise ValueError("no")

    @actor(events={"enqueued", "started"})
    def early() -> None: ...

    @actor(events="all")
    def loud() -> None: ...

    @actor(events=None)
    def quiet() -> None: ...

    @actor(actor_name='größe "x" \U0001f600', events=["completed"])
    def odd() -> None: ...

    ear = listen()
    ids = [usual.send(0), usual.send(1), early.send(), loud.send(), quiet.send(), odd.send()]
    found = said(broker, ear)
    assert [names(found.get(message.job_id, [])) for message in ids] == [
        ["completed"], ["failed"], ["enqueued", "started"], ["enqueued", "started", "completed"], [], ["completed"],
    ]  # fmt: skip
    assert found[ids[-1].job_id][0]["actor"] == 'größe "x" \U0001f600'


def test_an_actors_choice_counts_where_nothing_of_the_others_is_announced(
    broker: EchoMQBroker, listen: Listen, said: Any
) -> None:
    broker.add_middleware(Lifecycle(None))

    @actor
    def usual() -> None: ...

    @actor(events={"completed"})
    def loud() -> None: ...

    ear = listen()
    usual.send()
    message = loud.send()
    assert {job: names(events) for job, events in said(broker, ear).items()} == {message.job_id: ["completed"]}
    assert ear.heard() == []


def test_an_actor_declared_anew_gives_up_its_choice(broker: EchoMQBroker, listen: Listen) -> None:
    ear = listen()
    for options in ({"events": ()}, {}):
        # As in a notebook, where a function is written once more.
        broker.actors.clear()
        actor(lambda: None, actor_name="work", **options).send()
    assert ear.names() == ["enqueued"]


@pytest.mark.parametrize("events", ["failed", {"fail"}, 7, iter(["failed"]), [["failed"]]])
def test_a_choice_that_is_none_is_refused_at_its_declaration(broker: EchoMQBroker, events: Any) -> None:
    advice = r'(there is no event .*: choose from cancelled, |events is "all", a set of names)'
    with pytest.raises(InvalidArgument, match=advice):
        actor(lambda: None, actor_name="work", events=events)
    assert broker.get_declared_actors() == set()
    with pytest.raises(InvalidArgument, match=advice):
        Lifecycle(events)


@pytest.mark.parametrize(
    "options",
    [{"maxlen": 0}, {"maxlen": 1.5}, {"maxlen": True}, {"maxlen": -1}, {"older_than": 0}, {"older_than": float("nan")},
     {"older_than": "1d"}, {"log": 7}],
)  # fmt: skip
def test_a_bound_that_is_none_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises((InvalidArgument, InvalidName)):
        Lifecycle(**{"log": "lifecycle", **options})


def test_a_log_has_a_name_that_the_wire_allows() -> None:
    with pytest.raises(InvalidName):
        Lifecycle(log="a b")


def test_an_actors_choice_without_the_middleware_is_refused_with_advice(make_broker: MakeBroker) -> None:
    make_broker(middleware=[Retries()])
    with pytest.raises(ValueError, match=r"add echomq_tasks\.middleware\.Lifecycle to the broker"):
        actor(lambda: None, actor_name="work", events={"failed"})


# -- which broker --------------------------------------------------------------------------------------------------


def lifecycles(broker: dramatiq.Broker) -> list[Lifecycle]:
    return [each for each in broker.middleware if isinstance(each, Lifecycle)]


def test_our_actor_adds_it_once_to_a_broker_whose_middleware_nobody_has_chosen(make_broker: MakeBroker) -> None:
    for middleware, expected in ((None, 1), ([], 0), ([Retries()], 0)):
        broker = make_broker(middleware=middleware)
        for name in ("a", "b"):
            actor(lambda: None, actor_name=name)
        assert len(lifecycles(broker)) == expected
    broker = make_broker()
    dramatiq.actor(lambda: None, actor_name="plain")
    assert lifecycles(broker) == []


@pytest.mark.parametrize("first", ["ours", "own"])
def test_one_of_your_own_takes_the_place_of_the_default(
    broker: EchoMQBroker, make_worker: MakeWorker, listen: Listen, first: str
) -> None:
    own = Lifecycle({"worker_started", "failed"})

    def declare() -> None:
        actor(lambda: None, actor_name="work", **({"events": {"enqueued"}} if first == "ours" else {}))

    for step in (declare, lambda: broker.add_middleware(own))[:: 1 if first == "ours" else -1]:
        step()
    assert lifecycles(broker) == [own]
    ear = listen()
    broker.get_actor("work").send()
    make_worker(broker).stop()
    assert ear.names() == (["enqueued"] if first == "ours" else []) + ["worker_started"]


def test_it_may_come_after_the_actors(broker: EchoMQBroker, listen: Listen, said: Any) -> None:
    @dramatiq.actor
    def work() -> None: ...

    assert broker.queue("default").announcing.events < EVENTS
    broker.add_middleware(Lifecycle({"completed"}))
    ear = listen()
    message = work.send()
    (events,) = said(broker, ear).values()
    assert names(events, "job") == [("completed", message.job_id)]  # type: ignore[attr-defined]


def test_another_kind_of_broker_is_a_clear_error_at_the_first_use() -> None:
    declared = StubBroker(middleware=[])
    dramatiq.actor(lambda: None, actor_name="work", broker=declared)
    complaint = "Lifecycle announces what an EchoMQBroker does, not a StubBroker"
    with pytest.raises(ConfigError, match=complaint):
        declared.add_middleware(Lifecycle())
    bare = StubBroker(middleware=[CurrentMessage(), Lifecycle()])
    with pytest.raises(ConfigError, match=complaint) as refused:
        dramatiq.actor(lambda: None, actor_name="work", broker=bare)
    assert isinstance(refused.value, MiddlewareError), "of any other kind, Dramatiq would log it and go on"
    assert bare.get_declared_actors() == set()
    with pytest.raises(ConfigError, match=complaint):
        Worker(bare).start()


# -- the log -------------------------------------------------------------------------------------------------------


def test_a_workers_boot_bounds_the_log_of_each_queue_and_overrules_nobody(
    broker: EchoMQBroker, make_worker: MakeWorker, standalone: Connection
) -> None:
    broker.add_middleware(Lifecycle(log="audit", maxlen=5000, older_than=86_400))
    for name in ("one", "two", "three"):
        actor(lambda: None, queue_name=name, actor_name=name)
    logs = {name: Log(name, "audit", standalone) for name in ("one", "two", "three")}
    logs["two"].retain(maxlen=7)
    make_worker(broker, queues={"one", "two"}).stop()
    bounds = {name: log.retention() for name, log in logs.items()}
    assert bounds == {"one": Retention(5000, 86_400), "two": Retention(7, None), "three": None}
    broker.add_middleware(Lifecycle(log="audit", maxlen=9))
    make_worker(broker).stop()
    bounds = {name: log.retention() for name, log in logs.items()}
    # Its own bounds follow the code; those of a hand stay.
    assert bounds == {"one": Retention(9, None), "two": Retention(7, None), "three": Retention(9, None)}
    broker.add_middleware(Lifecycle(log="audit", maxlen=None))
    make_worker(broker).stop()
    bounds = {name: log.retention() for name, log in logs.items()}
    assert bounds == {"one": None, "two": Retention(7, None), "three": None}


def test_what_a_hand_does_is_in_the_log_of_the_workers_from_their_boot_on(
    broker: EchoMQBroker, make_worker: MakeWorker, standalone: Connection
) -> None:
    broker.add_middleware(Lifecycle({"failed"}, log="audit"))
    work = actor(lambda: None, actor_name="work")
    make_worker(broker).stop()
    plain = Queue("default", standalone)
    assert plain.pause()
    message = work.send()
    plain.remove(message.job_id)  # type: ignore[attr-defined]
    log = Log("default", "audit", standalone)
    assert [record.fields["event"] for record in log.read()] == ["paused", "removed"]
    plain.keep_events(None)
    plain.resume()
    assert log.length() == 2


def test_a_log_far_above_its_bounds_is_trimmed_step_upon_step_and_not_once_a_beat(
    broker: EchoMQBroker, make_worker: MakeWorker, standalone: Connection
) -> None:
    log = Log("default", "audit", standalone)
    log.append_many([{"n": "1"}] * 40_000)
    broker.add_middleware(Lifecycle(log="audit", maxlen=1_000))
    actor(lambda: None, actor_name="work")
    make_worker(broker)
    eventually(lambda: log.length() < 2_000)


def test_a_log_without_bounds_is_left_without(
    broker: EchoMQBroker, make_worker: MakeWorker, standalone: Connection
) -> None:
    broker.add_middleware(Lifecycle(log="audit", maxlen=None))
    actor(lambda: None, actor_name="work")
    make_worker(broker).stop()
    assert Log("default", "audit", standalone).retention() is None


def test_bounds_that_cannot_be_kept_are_logged_and_the_worker_serves(
    broker: EchoMQBroker, standalone: Connection, listen: Listen, said: Any, caplog: pytest.LogCaptureFixture
) -> None:
    broker.add_middleware(Lifecycle(log="audit"))
    work = actor(lambda: None, actor_name="work")
    standalone.client.set("emq:{default}:retention", "no hash")
    ear = listen()
    message = work.send()
    with caplog.at_level(logging.WARNING, "echomq_tasks"):
        assert names(said(broker, ear)[message.job_id]) == ["enqueued", "started", "completed"]
    assert "The log 'audit' is not prepared on queue 'default'" in caplog.text


def test_a_job_run_by_a_worker_is_kept_in_the_log_as_it_was_announced(
    broker: EchoMQBroker, standalone: Connection, listen: Listen, said: Any
) -> None:
    broker.add_middleware(Lifecycle({"started", "failed"}, log="audit"))

    @actor(max_retries=0)
    def work() -> None:
        raise ValueError("n\u00f6 \ud800")

    ear = listen()
    message = work.send()
    events = said(broker, ear)[message.job_id]
    records = [{**record.fields, "id": record.id} for record in Log("default", "audit", standalone).read()]
    assert names(events) == ["started", "failed"]
    assert records == events


# -- leases --------------------------------------------------------------------------------------------------------


@pytest.fixture
def lose(make_broker: MakeBroker, standalone: Connection) -> Iterator[Callable[[], Any]]:
    """A delivery whose lease was lost to another worker's claim, and its consumer and broker."""
    consumers = []

    def lost() -> Any:
        old, new = (make_broker() for _ in range(2))
        for each in (old, new):
            actor(lambda: None, actor_name="wörk", broker=each)
        message = old.get_actor("wörk").send()
        for each in (old, new):
            consumers.append(each.consume("default", timeout=100))
            if each is new:
                Wire(standalone, "default").expire(message.job_id)  # type: ignore[attr-defined]
            delivery = eventually(lambda: next(consumers[-1]))
            if each is old:
                late = delivery
        return old, late, consumers[0], (consumers[1], delivery)

    yield lost
    for consumer in consumers:
        consumer.close()


@pytest.mark.parametrize("own_choice", [None, {"lease_lost"}, {"failed"}])
def test_a_lost_lease_is_announced_once_by_whoever_lost_it_and_its_late_end_is_not(
    lose: Callable[[], Any], listen: Listen, own_choice: set[str] | None
) -> None:
    ear = listen()
    broker, late, consumer, (other, valid) = lose()
    assert ear.names("attempt") == [("enqueued", "0"), ("started", "1"), ("stalled", "1"), ("started", "2")]
    broker.announcing.choose_for("wörk", own_choice)
    for _ in range(3):
        broker.leases.ask([late])
    assert late.lost
    said = [] if own_choice == {"failed"} else [("lease_lost", late.job_id, "wörk", "1")]
    eventually(lambda: not any(thread.name == "echomq-lost" for thread in threading.enumerate()))
    assert ear.names("job", "actor", "attempt") == said
    consumer.nack(late)
    assert ear.heard() == []
    other.ack(valid)
    assert ear.names("attempt") == [("completed", "2")]


def test_a_late_end_that_the_server_refuses_says_nothing(lose: Callable[[], Any], listen: Listen) -> None:
    ear = listen()
    _, late, consumer, _ = lose()
    ear.heard()
    consumer.ack(late)
    assert ear.heard() == []


def test_what_cannot_be_announced_of_a_lost_lease_is_logged(
    lose: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, late, _, _ = lose()

    def away(*args: Any, **kwargs: Any) -> Any:
        raise ConfigError("no rights")

    monkeypatch.setattr(Queue, "publish_event", away)
    with caplog.at_level(logging.WARNING):
        broker.leases.ask([late])
        eventually(lambda: f"That job {late.job_id} lost its lease is not announced: no rights" in caplog.text)
    assert late.lost


# -- rights --------------------------------------------------------------------------------------------------------


def test_a_worker_without_rights_on_the_channel_runs_its_jobs(
    own_server: ServerProcess, make_worker: MakeWorker, finish: Finish
) -> None:
    own_server.client().acl_setuser(
        "mute", enabled=True, reset=True, passwords=["+secret"], keys=["*"], commands=["+@all"], channels=[]
    )
    broker = EchoMQBroker(own_server.url, username="mute", password="secret")
    ran: list[int] = []

    @actor(broker=broker, max_retries=0)
    def work(x: int) -> None:
        current_job().progress(x)
        ran.append(x)

    for x in range(3):
        work.send(x)
    worker = make_worker(broker)
    finish(broker)
    worker.stop()
    assert sorted(ran) == [0, 1, 2]
    assert broker.queue("default").counts().completed == 3
    broker.close()
