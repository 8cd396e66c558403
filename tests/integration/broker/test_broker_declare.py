"""Declaring and constructing: no I/O, idempotent, and options that say what is wrong."""

from __future__ import annotations

import dramatiq
import pytest
from dramatiq import Middleware
from dramatiq import middleware as stock
from support.servers import ServerProcess, free_port

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.config import Config
from echomq_tasks.connection import connect
from echomq_tasks.errors import ConfigError, InvalidName
from echomq_tasks.middleware import Retries


class Recorder(Middleware):
    """Notes every declaration it is told of."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def before_declare_queue(self, broker: dramatiq.Broker, queue_name: str) -> None:
        self.events.append(("before_declare_queue", queue_name))

    def after_declare_queue(self, broker: dramatiq.Broker, queue_name: str) -> None:
        self.events.append(("after_declare_queue", queue_name))

    def after_declare_delay_queue(self, broker: dramatiq.Broker, queue_name: str) -> None:
        self.events.append(("after_declare_delay_queue", queue_name))

    def before_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[..., object]) -> None:
        self.events.append(("before_declare_actor", actor.actor_name))

    def after_declare_actor(self, broker: dramatiq.Broker, actor: dramatiq.Actor[..., object]) -> None:
        self.events.append(("after_declare_actor", actor.actor_name))


@pytest.fixture
def nowhere() -> EchoMQBroker:
    """A broker whose server does not exist."""
    return EchoMQBroker(f"valkey://127.0.0.1:{free_port()}", connect_timeout=0.5)


def test_constructing_and_decorating_needs_no_server(nowhere: EchoMQBroker) -> None:
    f = dramatiq.actor(broker=nowhere, queue_name="q", actor_name="f")(lambda: 7)
    assert f() == 7
    assert nowhere.get_declared_queues() == {"q"}
    assert nowhere.get_declared_actors() == {"f"}
    nowhere.close()


def test_declaring_a_queue_twice_tells_the_hooks_once(nowhere: EchoMQBroker) -> None:
    recorder = Recorder()
    nowhere.add_middleware(recorder)
    nowhere.declare_queue("q")
    nowhere.declare_queue("q")
    assert recorder.events == [("before_declare_queue", "q"), ("after_declare_queue", "q")]


def test_the_hooks_of_an_actor_surround_those_of_its_queue(nowhere: EchoMQBroker) -> None:
    recorder = Recorder()
    nowhere.add_middleware(recorder)
    dramatiq.actor(broker=nowhere, queue_name="q", actor_name="f")(lambda: None)
    assert recorder.events == [
        ("before_declare_actor", "f"),
        ("before_declare_queue", "q"),
        ("after_declare_queue", "q"),
        ("after_declare_actor", "f"),
    ]


def test_a_middleware_added_late_is_told_what_is_declared(nowhere: EchoMQBroker) -> None:
    dramatiq.actor(broker=nowhere, queue_name="q", actor_name="f")(lambda: None)
    recorder = Recorder()
    nowhere.add_middleware(recorder)
    assert recorder.events == [("after_declare_actor", "f"), ("after_declare_queue", "q")]


def test_there_are_no_delay_queues(nowhere: EchoMQBroker) -> None:
    nowhere.declare_queue("q")
    assert nowhere.get_declared_delay_queues() == set()
    assert nowhere.queues == {"q"}


def test_the_declared_queues_are_a_copy(nowhere: EchoMQBroker) -> None:
    nowhere.declare_queue("q")
    nowhere.get_declared_queues().add("other")
    assert nowhere.get_declared_queues() == {"q"}


@pytest.mark.parametrize("name", ["emq", "", "a b", "q" * 129])
def test_a_queue_the_wire_does_not_allow_is_not_declared(nowhere: EchoMQBroker, name: str) -> None:
    recorder = Recorder()
    nowhere.add_middleware(recorder)
    with pytest.raises(InvalidName):
        nowhere.declare_queue(name)
    assert recorder.events == []
    assert nowhere.get_declared_queues() == set()


def test_the_default_middleware_is_dramatiqs_with_our_retries(nowhere: EchoMQBroker) -> None:
    expected = [Retries if kind is stock.Retries else kind for kind in stock.default_middleware]
    assert [type(middleware) for middleware in nowhere.middleware] == expected


def test_middleware_given_is_all_there_is() -> None:
    broker = EchoMQBroker("valkey://127.0.0.1:1", middleware=[stock.AgeLimit()])
    assert [type(middleware) for middleware in broker.middleware] == [stock.AgeLimit]
    ours = "group group_limit unique unique_key unique_ttl every cron tz catch_up batch batch_wait invalidates"
    assert broker.actor_options == {"max_age", *ours.split()}


def test_middleware_can_be_placed_before_and_after_others(nowhere: EchoMQBroker) -> None:
    first, second = Recorder(), stock.CurrentMessage()
    nowhere.add_middleware(first, before=Retries)
    nowhere.add_middleware(second, after=stock.Retries)
    kinds = [type(middleware) for middleware in nowhere.middleware]
    place = kinds.index(Retries)
    assert kinds[place - 1 : place + 2] == [Recorder, Retries, stock.CurrentMessage]


def test_a_results_backend_that_is_not_there_is_an_error(nowhere: EchoMQBroker) -> None:
    with pytest.raises(RuntimeError, match="results backend"):
        nowhere.get_results_backend()


def test_the_keywords_of_the_redis_broker_reach_the_server(server: ServerProcess) -> None:
    server.flush()
    broker = EchoMQBroker(host="127.0.0.1", port=server.port, db=3)
    broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
    assert broker.client.dbsize() > 0
    with connect(server.url) as database_zero:
        assert database_zero.client.exists("emq:{q}:pending") == 0
    broker.close()


def test_a_url_beside_host_and_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="put it into the URL"):
        EchoMQBroker("valkey://127.0.0.1:1", host="127.0.0.1")


def test_a_password_is_part_of_the_configuration_and_never_shown() -> None:
    broker = EchoMQBroker(host="127.0.0.1", port=1, password="s3cret-word")
    assert "s3cret-word" not in repr(broker.__dict__)


@pytest.mark.parametrize(
    "option",
    [
        "namespace",
        "maintenance_chance",
        "heartbeat_timeout",
        "dead_message_ttl",
        "requeue_deadline",
        "requeue_interval",
        "client",
    ],
)
def test_an_option_only_the_redis_broker_has_is_refused_with_advice(option: str) -> None:
    with pytest.raises(ConfigError, match=f"{option}.*(remove it|leases|dead_ttl=|connection=)"):
        EchoMQBroker("valkey://127.0.0.1:1", **{option: "x"})


def test_an_unknown_option_names_its_neighbour() -> None:
    with pytest.raises(ConfigError, match="did you mean 'timeout'"):
        EchoMQBroker("valkey://127.0.0.1:1", timeuot=1)


@pytest.mark.parametrize("lease", [0, 0.05, -1, 86_401, True, "30", float("nan"), None])
def test_a_lease_out_of_range_is_refused(lease: object) -> None:
    with pytest.raises(ConfigError, match="lease"):
        EchoMQBroker("valkey://127.0.0.1:1", lease=lease)  # type: ignore[arg-type]


@pytest.mark.parametrize("trim_messages", [None, 0, 1, "no"])
def test_whether_messages_are_trimmed_is_yes_or_no(trim_messages: object) -> None:
    with pytest.raises(ConfigError, match="trim_messages is True or False, not"):
        EchoMQBroker("valkey://127.0.0.1:1", trim_messages=trim_messages)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_stalled", [0, -1, True, 1.5, "3"])
def test_a_stall_limit_out_of_range_is_refused(max_stalled: object) -> None:
    with pytest.raises(ConfigError, match="max_stalled"):
        EchoMQBroker("valkey://127.0.0.1:1", max_stalled=max_stalled)  # type: ignore[arg-type]


def test_a_connection_given_is_used_and_left_open(server: ServerProcess) -> None:
    server.flush()
    with connect(server.url) as connection:
        broker = EchoMQBroker(connection=connection)
        assert broker.connection is connection
        assert broker.client is connection.client
        broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
        broker.close()
        assert connection.client.ping()
        broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
        assert broker.get_queue_message_counts("q") == (2, 0, 0)


def test_a_connection_beside_a_url_is_refused(server: ServerProcess) -> None:
    with connect(server.url) as connection, pytest.raises(ConfigError, match="not both"):
        EchoMQBroker(server.url, connection=connection)


def test_the_environment_names_the_server(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    server.flush()
    monkeypatch.setenv("EMQ_URL", server.url)
    broker = EchoMQBroker()
    broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
    assert broker.connection.config == Config.parse(server.url)
    broker.close()


def test_a_closed_broker_opens_again_and_closes_twice(server: ServerProcess) -> None:
    server.flush()
    broker = EchoMQBroker(server.url)
    broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
    broker.close()
    broker.close()
    broker.enqueue(dramatiq.Message("q", "f", (), {}, {}))
    assert broker.get_queue_message_counts("q") == (2, 0, 0)
    broker.close()
