"""The embedded server: one per directory, started by whoever comes first, stopped when nobody needs it."""

from __future__ import annotations

import fcntl
import importlib.util
import multiprocessing
import os
import platform
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.eventually import eventually

from echomq_tasks.config import default_directory
from echomq_tasks.connection import Connection, connect, embedded, keeper
from echomq_tasks.errors import EmbeddedUnavailable, ServerUnavailable

pytestmark = pytest.mark.slow


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path, so that the socket lies inside; whatever server is left there is stopped."""
    base = Path(tempfile.mkdtemp(prefix="emq-"))
    yield base / "data"
    for path in base.rglob("server.sock"):
        keeper.shut_down(str(path))
    eventually(lambda: all(not locked(path) for path in base.rglob("keeper.lock")), message="the keepers are gone")
    shutil.rmtree(base)


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Run ``code`` in a Python process of its own; it is killed at the end if it still runs."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def server_pid(connection: Connection) -> int:
    return int(connection.client.info("server")["process_id"])


def gone(pid: int) -> bool:
    """Whether the process has ended with all its threads: a last thread may hold the sockets for a moment longer."""
    try:
        return keeper.start_mark(pid) is None and len(os.listdir(f"/proc/{pid}/task")) == 1
    except FileNotFoundError:
        return True


def keeper_pid(pid: int) -> int:
    """The parent of the server ``pid``, which is its keeper unless that was killed."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


HOLD = """
    import os, sys
    from echomq_tasks.connection import connect
    connection = connect(sys.argv[1])
    connection.client.set("key", "value")
    print(connection.client.info("server")["process_id"], os.environ.get("EMQ_PRIVATE_SERVER"), flush=True)
    sys.stdin.read()
"""


# --- shared


def test_the_directory_is_private_and_holds_everything(directory: Path) -> None:
    with connect(f"embedded://{directory}") as connection:
        assert connection.client.set("key", "value")
        assert connection.server.name == "valkey"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "server.sock").stat().st_mode) == 0o700
        config = connection.client.config_get("*")
        assert (config["port"], config["appendonly"], config["appendfsync"], config["save"]) == (
            "0",
            "yes",
            "everysec",
            "",
        )
        others = [path for path in directory.rglob("*") if stat.S_IMODE(path.stat().st_mode) & 0o077]
        assert others == []


def test_without_an_address_it_lies_in_the_users_data_directory() -> None:
    with connect(idle_timeout=0.1) as connection:
        pid = server_pid(connection)
        assert (default_directory() / "server.sock").is_socket()
    eventually(lambda: gone(pid))


def test_racing_processes_start_one_server(directory: Path) -> None:
    with connect(f"embedded://{directory.parent}/elsewhere") as elsewhere:
        code = """
            import sys
            sys.stdin.readline()
            from echomq_tasks.connection import connect
            connection = connect(sys.argv[1])
            connection.client.incr("counter")
            print(connection.client.info("server")["process_id"], flush=True)
            sys.stdin.readline()
        """
        starters = [python(code, f"embedded://{directory}") for _ in range(8)]
        processes = [starter.__enter__() for starter in starters]
        try:
            for process in processes:
                print("go", file=process.stdin, flush=True)
            pids = {int(process.stdout.readline()) for process in processes if process.stdout}
        finally:
            for starter in starters:
                starter.__exit__(None, None, None)
        assert len(pids) == 1
        with connect(f"embedded://{directory}") as connection:
            assert connection.client.get("counter") == b"8"
            assert {server_pid(connection)} == pids
        assert pids != {server_pid(elsewhere)}


def test_two_directories_are_two_servers(directory: Path) -> None:
    with connect(f"embedded://{directory}/a") as first, connect(f"embedded://{directory}/b") as second:
        first.client.set("key", "first")
        assert second.client.get("key") is None
        assert server_pid(first) != server_pid(second)


def test_it_survives_the_kill_of_its_starter(directory: Path) -> None:
    with python(HOLD, f"embedded://{directory}") as starter:
        assert starter.stdout
        pid = int(starter.stdout.readline().split()[0])
        # The whole group, as a terminal or a supervisor would.
        starter.send_signal(signal.SIGKILL)
        starter.wait()
        with connect(f"embedded://{directory}") as connection:
            assert server_pid(connection) == pid
            assert connection.client.get("key") == b"value"


def test_a_killed_server_comes_back_with_its_data_for_new_and_for_present_clients(directory: Path) -> None:
    with connect(f"embedded://{directory}") as connection:
        connection.client.set("key", "value")
        connection.client.execute_command("WAITAOF", 1, 0, 5000)
        pid = server_pid(connection)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: gone(pid))
        # A pooled connection that broke while idle is replaced, and replacing it starts the server.
        assert connection.client.get("key") == b"value"
        again = server_pid(connection)
        assert again != pid
        os.kill(again, signal.SIGKILL)
        eventually(lambda: gone(again))
        with connect(f"embedded://{directory}") as other:
            assert other.client.get("key") == b"value"
        own = connection.fresh(b"key", blocking=True)
        own.disconnect()


def test_it_stops_when_idle_and_starts_again_with_its_data(directory: Path) -> None:
    with connect(f"embedded://{directory}", idle_timeout=0.1) as connection:
        connection.client.set("key", "value")
        pid = server_pid(connection)
        watcher = keeper_pid(pid)
    eventually(lambda: gone(pid), message="the idle server stops")
    eventually(lambda: gone(watcher), message="its keeper goes with it")
    assert not (directory / "server.sock").exists()
    assert connection.client.get("key") == b"value"  # a closed pool connects anew when it is used
    connection.close()


def test_it_does_not_stop_under_a_client_that_only_waits(directory: Path) -> None:
    with connect(f"embedded://{directory}", idle_timeout=0.05) as connection:
        pid = server_pid(connection)
        own = connection.fresh(b"list", blocking=True)
        connection.client.connection_pool.disconnect()
        own.send_command("BLPOP", "list", 1)  # twenty times the idle time
        assert own.read_response() is None
        assert not gone(pid)
        own.disconnect()
    eventually(lambda: gone(pid))


def test_a_client_that_comes_while_it_is_just_stopping_gets_a_new_one(directory: Path) -> None:
    pids = set()
    for _ in range(10):
        with connect(f"embedded://{directory}", idle_timeout=0.02) as connection:
            pids.add(server_pid(connection))
            connection.client.incr("counter")
        # The name goes first, so from here the old server and its keeper are still on their way out.
        eventually(lambda: not (directory / "server.sock").exists())
    assert len(pids) == 10
    with connect(f"embedded://{directory}") as connection:
        assert connection.client.get("counter") == b"10"


def test_a_killed_keeper_is_replaced_by_the_next_client_and_the_server_lives_on(directory: Path) -> None:
    with connect(f"embedded://{directory}", idle_timeout=0.2) as connection:
        pid = server_pid(connection)
        first = keeper_pid(pid)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: gone(first))
        assert not locked(directory / "keeper.lock")
        assert connection.client.ping()
        with connect(f"embedded://{directory}", idle_timeout=0.2) as other:
            assert server_pid(other) == pid
        assert locked(directory / "keeper.lock")
    eventually(lambda: gone(pid), message="the new keeper stops the idle server")


def test_a_keeper_goes_when_its_server_does(directory: Path) -> None:
    with connect(f"embedded://{directory}") as connection:
        pid = server_pid(connection)
    watcher = keeper_pid(pid)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(watcher))


def test_a_directory_that_is_removed_stops_its_server_and_is_made_anew(directory: Path) -> None:
    with connect(f"embedded://{directory}", idle_timeout=0.1) as connection:
        pid = server_pid(connection)
        shutil.rmtree(directory)
        eventually(lambda: gone(pid))
        assert connection.client.set("key", "value")
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_a_path_with_odd_characters_works(directory: Path) -> None:
    odd = directory / 'it\'s "odd" ünd 100%'
    with connect(f"embedded://{str(odd).replace('%', '%25')}") as connection:
        assert connection.client.set("key", "value")
    assert (odd / "server.sock").is_socket()


def test_a_path_too_long_for_a_socket_puts_it_into_a_short_private_directory(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = directory / ("x" * 100)
    with connect(f"embedded://{long}", idle_timeout=0.1) as connection:
        connection.client.set("key", "value")
        path = Path((long / "socket").read_text())
        assert path.is_socket()
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        # Another process may have another TMPDIR; it must find the same server all the same.
        monkeypatch.setattr(tempfile, "tempdir", str(directory))
        with connect(f"embedded://{long}") as other:
            assert server_pid(other) == server_pid(connection)
        # A cleaner of temporary files: the server behind the lost name goes, its data stays.
        pid = server_pid(connection)
        shutil.rmtree(path.parent)
        eventually(lambda: gone(pid))
        assert connection.client.get("key") == b"value"
    eventually(lambda: not path.exists(), message="the idle server stops")
    path.parent.rmdir()


def test_a_directory_that_others_may_write_to_is_refused(directory: Path) -> None:
    directory.mkdir()
    directory.chmod(0o777)
    with pytest.raises(EmbeddedUnavailable, match="chmod 700"):
        connect(f"embedded://{directory}")


def test_a_directory_that_cannot_be_made_is_refused(directory: Path) -> None:
    directory.write_text("a file")
    with pytest.raises(EmbeddedUnavailable, match="cannot use"):
        connect(f"embedded://{directory}")


def test_a_server_that_does_not_start_says_why(directory: Path) -> None:
    with connect(f"embedded://{directory}") as connection:
        connection.client.set("key", "value")
        connection.client.execute_command("WAITAOF", 1, 0, 5000)
        pid = server_pid(connection)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
    manifest = next((directory / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense")
    with pytest.raises(EmbeddedUnavailable, match=r"did not start.*ended while starting.*EMQ_URL"):
        connect(f"embedded://{directory}")


def test_without_the_package_it_says_what_to_install(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EmbeddedUnavailable, match=r'pip install "echomq_tasks\[embedded\]"'):
        connect(f"embedded://{directory}")


def test_on_a_platform_without_a_binary_it_says_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(EmbeddedUnavailable, match=r"linux-riscv64.*EMQ_URL"):
        connect(f"embedded://{directory}")


def test_a_binary_that_cannot_run_here_says_so(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory.parent / "_binaries" / f"linux-{platform.machine()}"
    folder.mkdir(parents=True)
    (folder / "valkey-server").write_text("not a program")
    spec = SimpleNamespace(submodule_search_locations=[str(directory.parent)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(EmbeddedUnavailable, match=r"cannot run .*valkey-server"):
        connect(f"embedded://{directory}")


def test_the_thread_that_started_it_may_end(directory: Path) -> None:
    opened: list[Connection] = []
    thread = threading.Thread(target=lambda: opened.append(connect(f"embedded://{directory}")))
    thread.start()
    thread.join()
    with opened[0] as connection:
        assert connection.client.set("key", "value")


def test_it_holds_no_file_of_its_starter(directory: Path) -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    with connect(f"embedded://{directory}") as connection:
        pid = server_pid(connection)
        os.close(write)
        assert os.read(read, 1) == b""  # end of file: nobody else has the writing end
        os.close(read)
        assert os.getsid(pid) not in (os.getsid(0), os.getpid())


# --- private


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    """A private server of this very process, ended as the end of the process would."""
    monkeypatch.setenv(embedded.ENV_PRIVATE, "")
    with connect("embedded://") as connection:
        yield connection


def child(queue: Any) -> None:
    with connect("embedded://") as connection:
        queue.put((server_pid(connection), connection.client.get("key")))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_private_server_is_shared_with_children_however_started(private: Connection, method: str) -> None:
    private.client.set("key", "value")
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    assert queue.get(timeout=20) == (server_pid(private), b"value")
    process.join()
    assert private.client.get("key") == b"value"  # the end of a child ends nothing


def test_a_second_connection_of_the_process_reaches_the_same_private_server(private: Connection) -> None:
    with connect("embedded://") as other:
        assert server_pid(other) == server_pid(private)


def test_a_private_server_keeps_nothing_on_disk(private: Connection) -> None:
    private.client.set("key", "value")
    directory = Path(os.environ[embedded.ENV_PRIVATE])
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert private.client.config_get("appendonly") == {"appendonly": "no"}
    assert not (directory / "appendonlydir").exists()


def test_a_private_server_that_is_killed_is_started_again_empty(private: Connection) -> None:
    private.client.set("key", "value")
    pid = server_pid(private)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: gone(pid))
    assert private.client.get("key") is None


@pytest.mark.parametrize("end", ["exit", "SIGKILL"])
def test_a_private_server_is_gone_with_its_owner(end: str) -> None:
    with python(HOLD, "embedded://") as owner:
        assert owner.stdout
        text, directory = owner.stdout.readline().split()
        assert keeper.probe(f"{directory}/server.sock") == "up"
        if end == "exit":
            owner.communicate("")
            assert owner.returncode == 0
            # In order, before the process has ended.
            assert gone(int(text))
            assert not os.path.exists(directory)
        else:
            owner.kill()
            owner.wait()
        eventually(lambda: gone(int(text)) and not os.path.exists(directory))


def test_a_killed_owner_takes_the_server_along_even_from_its_children() -> None:
    code = """
        import os, sys
        from redis.exceptions import ConnectionError
        from echomq_tasks.connection import connect
        connect("embedded://")
        if os.fork():
            print(os.environ["EMQ_PRIVATE_SERVER"], flush=True)
            sys.stdin.read()
        else:
            connection = connect("embedded://")
            own = connection.fresh(b"list", blocking=True)
            own.send_command("BLPOP", "list", 0)
            try:
                own.read_response()
            except Exception as error:
                print(type(error).__name__, flush=True)
            while True:
                try:
                    connection.client.ping()
                except ConnectionError as error:
                    # What is pooled may break a moment later than the other one.
                    if "ended with the process that started it" in str(error):
                        print("told", flush=True)
                        os._exit(0)
    """
    with python(code) as owner:
        assert owner.stdout
        directory = owner.stdout.readline().strip()
        with eventually_connected(directory):
            owner.kill()
            assert owner.stdout.readline() == "ConnectionError\n"
            assert owner.stdout.readline() == "told\n"
    eventually(lambda: not os.path.exists(directory))


@contextmanager
def eventually_connected(directory: str) -> Iterator[None]:
    """Wait until the child in the test above is parked on the private server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(embedded.ENV_PRIVATE, directory)
        with connect("embedded://") as watch:
            eventually(lambda: watch.client.info("clients")["blocked_clients"])
    yield


def test_a_stale_name_in_the_environment_is_not_followed(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    directory.mkdir()
    (directory / "owner").write_text(f"{os.getpid()} 1")  # this pid, but not this process
    monkeypatch.setenv(embedded.ENV_PRIVATE, str(directory))
    with connect("embedded://") as connection:
        assert connection.client.ping()
        assert os.environ[embedded.ENV_PRIVATE] != str(directory)
        assert not (directory / "server.sock").exists()


def test_a_client_of_a_private_server_whose_owner_ended_is_told_so() -> None:
    place = embedded.Place("/nowhere", "/nowhere/server.sock", 0, (1, "another"))
    with pytest.raises(ServerUnavailable, match=r"ended with the process that started it, pid 1\."):
        place.ensure()
