"""The fence and the floor: what every new connection is asked before anything is written."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
import redis
from support.servers import ServerProcess

from echomq_tasks.connection import Server, connect
from echomq_tasks.connection.fence import FENCE_KEY, WIRE_VERSION
from echomq_tasks.errors import ServerTooOld, ServerUnavailable, VersionMismatch


class ScriptedServer:
    """A TCP server that answers commands from a table and remembers them; for servers that cannot be had here."""

    def __init__(self, replies: dict[str, str], tls: ssl.SSLContext | None = None) -> None:
        self.commands: list[str] = []
        self._replies = replies
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        if self._tls is not None:
            try:
                client = self._tls.wrap_socket(client, server_side=True)
            except OSError:
                return client.close()  # the client did not trust us
        with client, client.makefile("rb") as stream:
            while head := stream.readline():
                words = []
                for _ in range(int(head[1:])):
                    size = int(stream.readline()[1:])
                    words.append(stream.read(size + 2)[:size].decode())
                self.commands.append(" ".join(words))
                client.sendall(self._replies.get(words[0], "-ERR unknown command\r\n").encode())

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)


def bulk(text: str) -> str:
    return f"${len(text)}\r\n{text}\r\n"


@pytest.fixture
def clean(server: ServerProcess) -> ServerProcess:
    server.flush()
    return server


@pytest.mark.parametrize("protocol", [2, 3])
def test_connecting_sets_the_fence_and_says_what_answers(clean: ServerProcess, protocol: int) -> None:
    with connect(clean.url, protocol=protocol, client_name="me") as connection:
        assert connection.client.get(FENCE_KEY) == WIRE_VERSION.encode()
        assert connection.server.name == "valkey"
        assert connection.server.version >= (9, 0, 0)
        assert connection.server.hash_field_ttl
        assert connection.server.text.startswith("Valkey 9.")
        mine = connection.client.client_info()
        assert (mine["name"], mine["lib-name"], int(mine["resp"])) == ("me", "echomq_tasks", protocol)
        assert not connection.is_cluster


def test_an_equal_fence_is_left_alone(clean: ServerProcess) -> None:
    clean.client().set(FENCE_KEY, WIRE_VERSION)
    with connect(clean.url):
        assert clean.client().get(FENCE_KEY) == WIRE_VERSION.encode()


def test_another_version_is_refused_by_both_names_and_nothing_is_written(clean: ServerProcess) -> None:
    clean.client().set(FENCE_KEY, "echomq:9.9.9")
    with pytest.raises(VersionMismatch, match=r"'echomq:9\.9\.9'.*'echomq:2\.4\.2'"):
        connect(clean.url)
    assert clean.client().keys() == [FENCE_KEY]
    assert clean.client().get(FENCE_KEY) == b"echomq:9.9.9"


def test_the_fence_is_per_database(clean: ServerProcess) -> None:
    clean.client().set(FENCE_KEY, "other")
    with connect(f"{clean.url}/5") as connection:
        assert connection.client.get(FENCE_KEY) == WIRE_VERSION.encode()


def test_every_new_connection_meets_the_fence_not_only_the_first(clean: ServerProcess) -> None:
    with connect(clean.url) as connection:
        clean.client().set(FENCE_KEY, "changed")
        assert connection.client.ping()  # the pooled connection has passed already
        with pytest.raises(VersionMismatch):
            connection.fresh(b"key", blocking=True)
        connection.client.connection_pool.disconnect()
        for _ in range(2):  # a refused connection must not be reused as if it had passed
            with pytest.raises(VersionMismatch):
                connection.client.set("key", "value")
        assert clean.client().get("key") is None


def test_an_old_server_is_refused_with_what_to_install() -> None:
    replies = {"INFO": bulk("# Server\r\nredis_version:6.2.14\r\n"), "GET": "$-1\r\n"}
    with (
        ScriptedServer(replies) as old,
        pytest.raises(ServerTooOld, match=r"Redis 6\.2\.14 is too old.*Valkey 8 or newer.*echomq_tasks\[embedded\]"),
    ):
        connect(host="127.0.0.1", port=old.port)
    assert not [command for command in old.commands if command.startswith("SET ")]


@pytest.mark.parametrize(
    ("info", "name", "version", "ttl", "lock"),
    [
        ("redis_version:7.0.0", "redis", (7, 0, 0), False, "key"),
        ("redis_version:7.4.1", "redis", (7, 4, 1), True, "field"),
        ("redis_version:8.0.0", "redis", (8, 0, 0), True, "setex"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.1.0-rc1", "valkey", (8, 1, 0), False, "key"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.0.0", "valkey", (9, 0, 0), True, "setex"),
        ("redis_version:7.4.0\r\ndragonfly_version:df-v1.25.1", "dragonfly", (1, 25, 1), False, "key"),
    ],
)
def test_a_server_new_enough_is_taken_by_its_own_name(
    info: str, name: str, version: tuple[int, int, int], ttl: bool, lock: str
) -> None:
    with ScriptedServer({"INFO": bulk(info), "GET": bulk(WIRE_VERSION)}) as other:
        with connect(host="127.0.0.1", port=other.port) as connection:
            assert (connection.server.name, connection.server.version) == (name, version)
            assert connection.server.hash_field_ttl is ttl
            assert connection.server.lock_form == lock


def test_the_greeting_is_one_round_trip_when_the_fence_stands() -> None:
    with ScriptedServer({"INFO": bulk("redis_version:8.0.0"), "GET": bulk(WIRE_VERSION)}) as other:
        connect(host="127.0.0.1", port=other.port).close()
    assert other.commands == ["INFO server", "GET {emq}:version", "CLIENT SETINFO LIB-NAME echomq_tasks"]


def test_a_server_that_forbids_info_is_unknown_and_passes_the_floor(clean: ServerProcess) -> None:
    clean.client().acl_setuser("noinfo", enabled=True, passwords=["+pw"], keys=["*"], commands=["+get", "+set"])
    try:
        with connect(clean.url, username="noinfo", password="pw") as connection:
            assert connection.server == Server()
            assert connection.server.text == "a server of unknown version"
            assert not connection.server.hash_field_ttl
            assert connection.client.get(FENCE_KEY) == WIRE_VERSION.encode()
    finally:
        clean.client().acl_deluser("noinfo")


def test_a_command_whose_reply_does_not_come_is_sent_once() -> None:
    replies = {"INFO": bulk("redis_version:8.0.0"), "GET": bulk(WIRE_VERSION), "INCRBY": ""}
    with ScriptedServer(replies) as mute:
        with (
            connect(host="127.0.0.1", port=mute.port, timeout=0.1) as connection,
            pytest.raises(redis.exceptions.TimeoutError),
        ):
            connection.client.incr("counter")
        assert mute.commands.count("INCRBY counter 1") == 1


def test_in_a_cluster_too_a_command_whose_reply_does_not_come_is_sent_once() -> None:
    replies = {"INFO": bulk("redis_version:8.0.0"), "GET": bulk(WIRE_VERSION), "INCRBY": ""}
    get, incrby = (
        f"*6\r\n{bulk(name)}:{arity}\r\n*0\r\n:1\r\n:1\r\n:1\r\n" for name, arity in (("get", 2), ("incrby", 3))
    )
    with ScriptedServer(replies) as mute:
        node = f"*3\r\n{bulk('127.0.0.1')}:{mute.port}\r\n{bulk('node')}"
        replies |= {"CLUSTER": f"*1\r\n*3\r\n:0\r\n:16383\r\n{node}", "COMMAND": f"*2\r\n{get}{incrby}"}
        with (
            connect(f"valkey+cluster://127.0.0.1:{mute.port}", timeout=0.1) as connection,
            pytest.raises(redis.exceptions.TimeoutError),
        ):
            connection.client.incr("counter")
        assert mute.commands.count("INCRBY counter 1") == 1


def test_tls_trusts_the_ca_that_is_given_beside_the_url_and_no_other(tmp_path: Path) -> None:
    for name in ("ours", "other"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
        files = ["-keyout", tmp_path / f"{name}.key", "-out", tmp_path / f"{name}.pem"]
        subprocess.run([*command, *subject, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ours.pem", tmp_path / "ours.key")
    with ScriptedServer({"INFO": bulk("redis_version:8.0.0"), "GET": bulk(WIRE_VERSION)}, context) as server:
        url = f"valkeys://localhost:{server.port}"
        with connect(url, ssl_ca_certs=str(tmp_path / "ours.pem")) as connection:
            assert connection.server.version == (8, 0, 0)
        with connect(f"{url}?ssl_cert_reqs=none") as connection:
            assert connection.server.version == (8, 0, 0)
        for options in ({}, {"ssl_ca_certs": str(tmp_path / "other.pem")}):
            with pytest.raises(ServerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                connect(url, **options)
        by_address = {"host": "127.0.0.1", "port": server.port, "ssl": True, "ssl_ca_certs": str(tmp_path / "ours.pem")}
        with pytest.raises(ServerUnavailable, match="not valid for '127"):
            connect(**by_address)
        with connect(**by_address, ssl_check_hostname=False) as connection:
            assert connection.server.version == (8, 0, 0)
