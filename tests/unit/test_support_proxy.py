"""The proxy loses exactly what it is told to lose: checked against what a real server did."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(request: pytest.FixtureRequest, proxy: DroppingProxy) -> Iterator[redis.Redis]:
    """A client behind the proxy that never repeats a command by itself."""
    opened = redis.Redis(
        host="127.0.0.1",
        port=proxy.port,
        protocol=request.param,
        socket_timeout=10,
        retry=Retry(NoBackoff(), 0),
    )
    with opened:
        yield opened


def test_commands_and_replies_pass_unchanged(client: redis.Redis, proxy: DroppingProxy) -> None:
    payload = bytes(range(256)) * 4_096
    client.set("k", payload)
    assert client.get("k") == payload
    assert client.lrange("missing", 0, -1) == []
    assert client.exists("k") == 1
    with pytest.raises(redis.ResponseError):
        client.lpush("k", "1")
    # A reply is counted once it is on its way, so the client may have it a moment earlier.
    eventually(lambda: proxy.counts.commands == proxy.counts.replies > 4)
    assert proxy.counts.connections == 1


def test_a_dropped_reply_means_the_command_ran(
    client: redis.Redis, proxy: DroppingProxy, server: ServerProcess
) -> None:
    proxy.drop_reply(b"INCR")
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert server.client().get("n") == b"1"
    assert proxy.counts.dropped_replies == 1
    assert client.incr("n") == 2


def test_a_dropped_request_means_the_command_did_not_run(
    client: redis.Redis, proxy: DroppingProxy, server: ServerProcess
) -> None:
    proxy.drop_request(b"INCR")
    with pytest.raises(redis.ConnectionError):
        client.incr("n")
    assert server.client().get("n") is None
    assert proxy.counts.dropped_requests == 1
    assert client.incr("n") == 1


def test_a_fault_happens_as_often_as_asked_and_only_on_a_match(client: redis.Redis, proxy: DroppingProxy) -> None:
    proxy.drop_reply(b"INCRBY wanted", times=2)
    assert client.incr("other") == 1
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            client.incr("wanted")
        assert client.incr("other") > 1
    assert client.incr("wanted") == 3
    assert proxy.counts.dropped_replies == 2


def test_a_script_is_matched_by_its_sha(client: redis.Redis, proxy: DroppingProxy, server: ServerProcess) -> None:
    sha = client.script_load("return redis.call('INCR', KEYS[1])")
    proxy.drop_reply(sha.encode() if isinstance(sha, str) else sha)
    with pytest.raises(redis.ConnectionError):
        client.evalsha(sha, 1, "n")
    assert server.client().get("n") == b"1"


@pytest.mark.parametrize(("kind", "ran"), [("reply", [b"1", b"1", None]), ("request", [b"1", None, None])])
def test_within_a_pipeline_the_cut_is_at_the_match(
    client: redis.Redis, proxy: DroppingProxy, server: ServerProcess, kind: str, ran: list[bytes | None]
) -> None:
    arm = proxy.drop_reply if kind == "reply" else proxy.drop_request
    arm(b"INCRBY b")
    pipeline = client.pipeline(transaction=False)
    for key in "abc":
        pipeline.incr(key)
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    assert server.client().mget(list("abc")) == ran


def test_a_transaction_is_matched_by_its_exec(client: redis.Redis, proxy: DroppingProxy, server: ServerProcess) -> None:
    proxy.drop_reply(b"EXEC")
    pipeline = client.pipeline(transaction=True)
    pipeline.incr("n")
    with pytest.raises(redis.ConnectionError):
        pipeline.execute()
    assert server.client().get("n") == b"1"


def test_a_match_is_found_in_a_command_that_arrives_in_pieces(
    client: redis.Redis, proxy: DroppingProxy, server: ServerProcess
) -> None:
    proxy.drop_request(b"needle")
    with pytest.raises(redis.ConnectionError):
        client.set("k", b"x" * 1_000_000 + b"needle")
    assert server.client().get("k") is None


def test_clear_disarms(client: redis.Redis, proxy: DroppingProxy) -> None:
    proxy.drop_reply(b"INCR")
    proxy.drop_request(b"INCR")
    proxy.clear()
    assert client.incr("n") == 1


def test_cut_all_ends_a_blocked_command_and_the_next_one_reconnects(client: redis.Redis, proxy: DroppingProxy) -> None:
    client.ping()
    failures: list[Exception] = []

    def park() -> None:
        try:
            client.blpop(["nothing"], timeout=0)
        except redis.RedisError as error:
            failures.append(error)

    before = proxy.counts.commands
    parked = threading.Thread(target=park)
    parked.start()
    eventually(lambda: proxy.counts.commands > before, message="BLPOP on its way")
    proxy.cut_all()
    parked.join(10)
    assert not parked.is_alive()
    assert isinstance(failures[0], redis.ConnectionError)
    assert proxy.counts.cut == 1
    assert client.ping()
    assert proxy.counts.connections == 2


def test_a_server_that_is_away_refuses_and_its_return_is_seen(own_server: ServerProcess) -> None:
    with (
        DroppingProxy(own_server.port) as proxy,
        redis.Redis(host="127.0.0.1", port=proxy.port, retry=Retry(NoBackoff(), 0)) as client,
    ):
        client.set("k", "v")
        own_server.kill()
        with pytest.raises(redis.ConnectionError):
            client.get("k")
        with pytest.raises(redis.ConnectionError):
            client.get("k")
        assert proxy.counts.refused > 0
        own_server.restart()
        assert client.get("k") == b"v"


def test_close_ends_connections_threads_and_the_listener(server: ServerProcess) -> None:
    before = threading.active_count()
    proxy = DroppingProxy(server.port)
    with redis.Redis(host="127.0.0.1", port=proxy.port, retry=Retry(NoBackoff(), 0)) as client:
        client.ping()
        proxy.close()
        proxy.close()
        assert threading.active_count() == before
        with pytest.raises(redis.ConnectionError):
            client.ping()
