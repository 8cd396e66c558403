"""The runner: what is registered with a bus runs, over failures of its own and of the server, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.children import in_child
from support.eventually import eventually
from support.servers import ServerProcess

import echomq_tasks.bus.runner
from echomq_tasks.bus import Bus, Delivery, Event, Gap, Runner, buses_with_handlers
from echomq_tasks.bus.handlers import registered
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument

SETTINGS: dict[str, Any] = {"group": "billing", "start": "head", "beat": 0.05}


@pytest.fixture
def bus(standalone: Connection) -> Iterator[Bus]:
    with Bus(standalone) as opened:
        yield opened


def heard(bus: Bus, queue: str, seen: list[Any]) -> Callable[[], bool]:
    """Publish until somebody has heard it: a runner does not tell when its handlers listen."""
    return lambda: bus.publish(queue, "probe") > 0 and bool(seen)


def named(seen: list[Any]) -> list[str]:
    """The names of the events."""
    return [each.event for each in seen if isinstance(each, Event)]


def test_everything_that_is_registered_runs_on_every_engine(connection: Connection, queue_name: str) -> None:
    live: list[str] = []
    numbers: list[str] = []
    loops: set[int] = set()
    with Bus(connection) as bus:

        @bus.on("app.paid", "probe", queues=[queue_name])
        def on_paid(event: Event) -> None:
            live.append(event.event)

        @bus.on("app.paid", patterns=[f"{queue_name[:4]}*"])
        async def on_any(event: Event) -> None:
            loops.add(id(asyncio.get_running_loop()))
            live.append(f"async {event.event}")

        @bus.consumer(queue_name, "audit", **SETTINGS)
        def bill(delivery: Delivery) -> None:
            numbers.append(delivery.fields["n"])

        @bus.consumer(queue_name, "audit", group="mails", start="head", concurrency=3)
        async def mail(delivery: Delivery) -> None:
            loops.add(id(asyncio.get_running_loop()))
            numbers.append(f"async {delivery.fields['n']}")

        assert bus in buses_with_handlers()
        bus.log(queue_name, "audit").append({"n": "1"})
        with Runner([bus]) as runner:
            eventually(lambda: sorted(numbers) == ["1", "async 1"])
            eventually(heard(bus, queue_name, live))
            eventually(lambda: bus.publish(queue_name, "app.paid") >= 0 and {"app.paid", "async app.paid"} <= set(live))
            with pytest.raises(InvalidArgument, match="started already"):
                runner.start()
        assert not runner.running
        # One loop for all, so that they may share what belongs to a loop.
        assert len(loops) == 1
        assert {thread.name for thread in threading.enumerate() if thread.name.startswith("echomq-")} == set()


def test_a_handler_that_raises_is_logged_with_its_traceback_and_hears_the_next_event(
    bus: Bus, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    @bus.on("bad", "probe", "good", queues=[queue_name])
    def handler(event: Event) -> None:
        seen.append(event.event)
        if event.event == "bad":
            raise ValueError("no such order")

    @bus.on("bad", "good", queues=[queue_name])
    async def leaves(event: Event) -> None:
        if event.event == "bad":
            raise SystemExit("leaving")
        seen.append("stayed")

    @bus.on("bad", "good", queues=[queue_name])
    async def coroutine(event: Event) -> None:
        if event.event == "bad":
            raise ValueError("no such mail")
        seen.append("async good")

    with Runner([bus]):
        eventually(heard(bus, queue_name, seen))
        eventually(lambda: bus.publish(queue_name, "bad") and "no such mail" in caplog.text)
        bus.publish(queue_name, "good")
        eventually(lambda: {"good", "async good", "stayed"} <= set(seen))
    assert "handler failed on Event(event='bad'" in caplog.text
    assert 'raise ValueError("no such order")' in caplog.text


@pytest.mark.parametrize("gaps", [True, False])
def test_gaps_are_for_those_who_ask_for_them(bus: Bus, queue_name: str, gaps: bool) -> None:
    seen: list[Any] = []
    bus.on("probe", "after", queues=[queue_name], gaps=gaps)(seen.append)
    client: Any = bus.connect().client
    with Runner([bus]):
        eventually(heard(bus, queue_name, seen))
        for each in client.client_list(_type="pubsub"):
            client.client_kill_filter(_id=each["id"])
        eventually(lambda: bus.publish(queue_name, "after") and "after" in named(seen))
    assert sum(isinstance(each, Gap) for each in seen) == (1 if gaps else 0)


def test_a_handler_that_exits_is_started_again_and_its_entry_is_given_up_in_the_end(
    bus: Bus, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    numbers: list[str] = []

    @bus.consumer(queue_name, "audit", **SETTINGS, max_deliveries=2)
    def handler(delivery: Delivery) -> None:
        numbers.append(delivery.fields["n"])
        if delivery.fields["n"] == "1":
            raise SystemExit

    bus.log(queue_name, "audit").append_many([{"n": "1"}, {"n": "2"}])
    with Runner([bus]):
        eventually(lambda: "2" in numbers and bus.log(queue_name, "audit.dead").length() == 1)
    assert numbers == ["1", "1", "2"]
    assert "failed, and is started again" in caplog.text
    (dead,) = bus.log(queue_name, "audit.dead").read()
    assert dead.fields["dead.error"] == "SystemExit: "


def test_a_failed_entry_is_not_counted_when_another_one_ends_the_run(bus: Bus, queue_name: str) -> None:
    given: list[tuple[str, int]] = []

    @bus.consumer(queue_name, "audit", **SETTINGS, min_idle=1.0)
    def handler(delivery: Delivery) -> None:
        number = delivery.fields["n"]
        given.append((number, delivery.deliveries))
        if number == "1" and delivery.deliveries == 1:
            raise ValueError("not today")
        if number == "2" and delivery.deliveries < 4:
            raise SystemExit

    bus.log(queue_name, "audit").append_many([{"n": str(number)} for number in (1, 2, 3)])
    with Runner([bus]):
        eventually(lambda: len(given) == 7)
        eventually(lambda: bus.groups(queue_name, "audit")[0].pending == 0)
    assert [each for each in given if each[0] == "1"] == [("1", 1), ("1", 2)]
    assert [each for each in given if each[0] == "2"] == [("2", 1), ("2", 2), ("2", 3), ("2", 4)]
    # Read ahead, and given back at each end.
    assert [each for each in given if each[0] == "3"] == [("3", 1)]


def test_a_subscription_that_is_made_again_begins_with_a_gap(
    bus: Bus, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    bus.on("probe", queues=[queue_name], gaps=True)(seen.append)
    subscribe, made = bus.subscribe, []

    def remembered(*queues: str, **options: Any) -> Any:
        made.append(subscribe(*queues, **options))
        return made[-1]

    monkeypatch.setattr(bus, "subscribe", remembered)
    with Runner([bus]):
        eventually(heard(bus, queue_name, seen))
        made[0].close()
        seen.clear()
        eventually(heard(bus, queue_name, seen))
        eventually(lambda: any(isinstance(each, Event) for each in seen))
    (gap,) = [each for each in seen if isinstance(each, Gap)]
    assert seen[0] is gap
    assert (gap.reason, gap.queues) == ("reconnected", (queue_name,))
    assert "stopped, and is started again" in caplog.text


def test_several_threads_call_one_function_at_once(bus: Bus, queue_name: str) -> None:
    together = threading.Barrier(3)
    done: list[str] = []

    @bus.consumer(queue_name, "audit", **SETTINGS, threads=3, batch=1)
    def handler(delivery: Delivery) -> None:
        together.wait(20)
        done.append(delivery.fields["n"])

    bus.log(queue_name, "audit").append_many([{"n": str(number)} for number in range(3)])
    with Runner([bus]):
        eventually(lambda: len(done) == 3)


def test_what_is_registered_while_a_runner_runs_is_run_too_and_once(bus: Bus, queue_name: str) -> None:
    live: list[str] = []
    numbers: list[str] = []
    log = bus.log(queue_name, "audit")
    log.append({"n": "1"})

    def register(group: str) -> None:
        @bus.consumer(queue_name, "audit", group=group, start="head", threads=2)
        def bill(delivery: Delivery) -> None:
            numbers.append(f"{group} {delivery.fields['n']}")

    runner = Runner([bus])
    register("before")
    with runner:
        register("while-it-runs")

        @bus.on("probe", queues=[queue_name])
        async def on_probe(event: Event) -> None:
            live.append(event.event)

        eventually(heard(bus, queue_name, live))
        eventually(lambda: sorted(numbers) == ["before 1", "while-it-runs 1"])
        assert sum(thread.name == "echomq-group-before" for thread in threading.enumerate()) == 2
    register("after")
    with Bus(bus.connect()) as other, runner:
        eventually(lambda: "after 1" in numbers)
        other.consumer(queue_name, "audit", group="stranger", start="head")(lambda each: numbers.append("stranger"))
        runner.add(other)
        eventually(lambda: "stranger" in numbers)
    assert sorted(numbers) == ["after 1", "before 1", "stranger", "while-it-runs 1"]


def test_a_stop_does_not_wait_for_a_server_that_hangs_once_nothing_is_in_hand(
    own_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(echomq_tasks.bus.runner, "_QUIET", 0.3)
    entered, leave, done = threading.Event(), threading.Event(), threading.Event()

    def handler(delivery: Delivery) -> None:
        entered.set()
        assert leave.wait(20)
        done.set()

    # Far longer than this test may take.
    with connect(own_server.url, timeout=600) as connection, Bus(connection) as bus:
        bus.consumer(queue_name, "audit", **SETTINGS)(handler)
        bus.log(queue_name, "audit").append({"n": "1"})
        runner = Runner([bus])
        runner.start()
        assert entered.wait(20)
        with own_server.hung():
            # It is at work, and so waited for.
            assert not runner.stop(timeout=0.5)
            assert runner.running
            leave.set()
            assert runner.stop()
            assert done.is_set()
            assert not runner.running
            assert "echomq-group-billing gets no answer from its server, and is left behind" in caplog.text
        eventually(lambda: not [each for each in threading.enumerate() if each.name == "echomq-group-billing"])
        assert bus.groups(queue_name, "audit")[0].pending == 0


@pytest.mark.parametrize("buses", [None, 5, [None], ["bus"], [5]])
def test_a_runner_of_what_is_no_bus_is_refused(buses: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"Runner\(\[bus\]\)"):
        Runner(buses)


def test_a_runner_of_one_bus_that_is_not_in_a_list_is_refused(bus: Bus) -> None:
    with pytest.raises(InvalidArgument, match=r"Runner\(\[bus\]\)"):
        Runner(bus)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"Runner\(\[bus\]\)"):
        Runner([bus]).add(None)  # type: ignore[arg-type]


def test_a_stop_waits_for_what_is_in_hand_for_as_long_as_it_is_told(bus: Bus, queue_name: str) -> None:
    entered, leave = threading.Event(), threading.Event()

    @bus.consumer(queue_name, "audit", **SETTINGS)
    async def handler(delivery: Delivery) -> None:
        entered.set()
        await asyncio.to_thread(leave.wait, 20)

    bus.log(queue_name, "audit").append({"n": "1"})
    runner = Runner([bus])
    runner.start()
    assert entered.wait(20)
    assert not runner.stop(timeout=0.05)
    assert runner.running
    leave.set()
    assert runner.stop()
    assert bus.groups(queue_name, "audit")[0].pending == 0
    # And it can start again.
    entered.clear()
    bus.log(queue_name, "audit").append({"n": "2"})
    with runner:
        assert entered.wait(20)


def test_a_stop_that_does_not_wait_tells_all_and_answers_while_one_is_at_work(bus: Bus, queue_name: str) -> None:
    entered, leave, live, gone = threading.Event(), threading.Event(), threading.Event(), threading.Event()
    numbers: list[str] = []

    @bus.consumer(queue_name, "audit", **SETTINGS)
    async def handler(delivery: Delivery) -> None:
        numbers.append(delivery.fields["n"])
        entered.set()
        await asyncio.to_thread(leave.wait, 20)

    @bus.consumer(queue_name, "audit", group="idle", start="new", beat=60)
    def idle(delivery: Delivery) -> None:
        numbers.append("idle")

    @bus.on("probe", queues=[queue_name])
    def on_probe(event: Event) -> None:
        live.set()
        gone.wait(20)

    log = bus.log(queue_name, "audit")
    log.append_many([{"n": "1"}, {"n": "2"}])
    runner = Runner([bus])
    runner.start()
    assert entered.wait(20)
    eventually(lambda: bus.publish(queue_name, "probe") and live.is_set())
    assert not runner.stop(timeout=0)

    def threads() -> int:
        return sum(thread.name.startswith(("echomq-group-", "echomq-on-")) for thread in threading.enumerate())

    # Those two have something in hand; the third waits for nothing any more.
    eventually(lambda: threads() == 2)
    gone.set()
    eventually(lambda: threads() == 1)
    log.append({"n": "3"})
    assert not runner.stop(timeout=0)
    leave.set()
    assert runner.stop()
    assert numbers == ["1"]


def test_a_stop_does_not_wait_longer_than_it_is_told_for_what_a_handler_left_behind(bus: Bus, queue_name: str) -> None:
    leave = threading.Event()

    @bus.consumer(queue_name, "audit", **SETTINGS)
    async def handler(delivery: Delivery) -> None:
        asyncio.get_running_loop().run_in_executor(None, leave.wait, 20)

    bus.log(queue_name, "audit").append({"n": "1"})
    runner = Runner([bus])
    runner.start()
    eventually(lambda: bus.groups(queue_name, "audit") and bus.groups(queue_name, "audit")[0].last != "0-0")
    assert not runner.stop(timeout=0)
    eventually(lambda: not runner.running)
    # The threads have ended, and the loop waits for its executor.
    assert not runner.stop(timeout=0)
    assert not runner.stop(timeout=0)
    with pytest.raises(InvalidArgument, match="started already"):
        runner.start()
    leave.set()
    assert runner.stop()
    with runner:
        assert runner.running


def test_a_runner_starts_before_its_server_and_goes_on_over_a_restart(
    own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    seen: list[Any] = []
    numbers: list[str] = []
    with connect(own_server.url) as connection, Bus(connection) as bus:
        bus.on("probe", queues=[queue_name])(seen.append)

        @bus.consumer(queue_name, "audit", **SETTINGS)
        def handler(delivery: Delivery) -> None:
            numbers.append(delivery.fields["n"])

        own_server.kill()
        with Runner([bus]):
            eventually(lambda: "is started again" in caplog.text)
            for turn in (1, 2):
                own_server.start()
                bus.log(queue_name, "audit").append({"n": str(turn)})
                eventually(lambda turn=turn: len(numbers) == turn)
                seen.clear()
                eventually(heard(bus, queue_name, seen))
                if turn == 1:
                    own_server.kill()
    assert numbers == ["1", "2"]


def test_a_thread_that_fails_is_logged_and_started_again(
    bus: Bus, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    numbers: list[str] = []
    bus.on("probe", queues=[queue_name], gaps=True)(seen.append)

    @bus.consumer(queue_name, "audit", **SETTINGS)
    def handler(delivery: Delivery) -> None:
        numbers.append(delivery.fields["n"])

    log = bus.log(queue_name, "audit")
    bus.connect().client.set(log.key, "not a stream")
    with Runner([bus]):
        eventually(lambda: "echomq-group-billing stopped, and is started again" in caplog.text)
        bus.connect().client.delete(log.key)
        log.append({"n": "1"})
        eventually(lambda: numbers == ["1"])
        eventually(heard(bus, queue_name, seen))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_of_a_fork_runs_nothing_until_it_starts_the_runner_itself(bus: Bus, queue_name: str) -> None:
    numbers: list[str] = []

    @bus.consumer(queue_name, "audit", **SETTINGS)
    def handler(delivery: Delivery) -> None:
        numbers.append(delivery.fields["n"])

    log = bus.log(queue_name, "audit")
    assert bus in buses_with_handlers()
    with Runner([bus]) as runner:
        log.append({"n": "1"})
        eventually(lambda: numbers == ["1"])

        def child() -> tuple[bool, int, bool]:
            idle = (runner.running, threading.active_count())
            with runner:
                return *idle, runner.running

        assert in_child(child) == (False, 1, True)
        assert runner.running
        log.append({"n": "2"})
        eventually(lambda: bus.groups(queue_name, "audit")[0].lag == 0)
    assert len(registered(bus).groups) == 1
