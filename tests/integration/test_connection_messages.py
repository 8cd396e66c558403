"""What a failed connect tells: the address as it was written, the reason once, and what to do next."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.clusters import ClusterProcess
from support.servers import ServerProcess, free_port
from test_connection_fence import ScriptedServer, bulk

from echomq_tasks.connection import connect
from echomq_tasks.connection.fence import WIRE_VERSION
from echomq_tasks.errors import ConfigError, ServerUnavailable


@pytest.fixture
def clean(server: ServerProcess) -> ServerProcess:
    server.flush()
    return server


@pytest.fixture
def nobody() -> int:
    """A port that nobody listens on."""
    return free_port()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a certificate for localhost, its key with and without a passphrase, and another key."""
    directory = tmp_path_factory.mktemp("tls")
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    for name in ("ours", "other"):
        out = ["-nodes", "-keyout", directory / f"{name}.key", "-out", directory / f"{name}.pem"]
        subprocess.run(["openssl", "req", "-x509", *new_key, *subject, *out], check=True, capture_output=True)
    lock = ["-in", directory / "ours.key", "-aes128", "-passout", "pass:secret", "-out", directory / "locked.key"]
    subprocess.run(["openssl", "ec", *lock], check=True, capture_output=True)
    (directory / "both.pem").write_text((directory / "ours.pem").read_text() + (directory / "ours.key").read_text())
    (directory / "text.pem").write_text("not a certificate")
    return directory


# --- nobody there


@pytest.mark.parametrize("scheme", ["redis", "valkey", "redis+cluster", "valkey+cluster"])
def test_the_address_is_in_the_callers_scheme_and_the_reason_ends_with_one_full_stop(scheme: str, nobody: int) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        connect(f"{scheme}://127.0.0.1:{nobody}")
    text = str(caught.value)
    assert text.startswith(f"cannot use {scheme}://127.0.0.1:{nobody}")
    assert "Connection refused. Check that the server runs" in text
    assert ".." not in text
    assert "TLS" not in text


# --- databases


def test_a_database_the_server_does_not_have_is_a_config_error(clean: ServerProcess) -> None:
    with pytest.raises(ConfigError, match=r"/99 has fewer databases than db=99 needs: choose a lower db"):
        connect(f"{clean.url}/99")


@pytest.mark.cluster
def test_at_a_node_of_a_cluster_too(cluster: ClusterProcess) -> None:
    with pytest.raises(ConfigError, match=r"fewer databases than db=1 needs.*in a cluster 1"):
        connect(f"valkey://127.0.0.1:{cluster.nodes[0].port}/1")


def test_a_node_that_refuses_to_select_is_answered_with_the_clusters_url() -> None:
    with (
        ScriptedServer({"SELECT": "-ERR SELECT is not allowed in cluster mode\r\n"}) as server,
        pytest.raises(ConfigError, match=rf"connect with redis\+cluster://127\.0\.0\.1:{server.port}$"),
    ):
        connect(f"redis://127.0.0.1:{server.port}/1")


# --- TLS


@pytest.mark.parametrize("kind", ["", "+cluster"])
def test_tls_towards_a_plain_server_says_so_and_names_the_plain_url(clean: ServerProcess, kind: str) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        connect(f"rediss{kind}://127.0.0.1:{clean.port}", timeout=0.2)
    assert str(caught.value).startswith(f"cannot use rediss{kind}://")
    assert f"that this port speaks TLS: a plain one, which leaves the handshake unanswered, is redis{kind}://" in str(
        caught.value
    )


def test_tls_towards_a_server_that_answers_in_plain_text_says_so_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def answer() -> None:
            client, _ = listener.accept()
            # The client may hang up with a reset, for it has not read all.
            with client, contextlib.suppress(ConnectionResetError):
                client.recv(1)
                client.sendall(b"-ERR Protocol error\r\n")
                # Until the client is gone: closing with its bytes unread would reset what it has yet to read.
                while client.recv(4096):
                    pass

        answered = pool.submit(answer)
        port = listener.getsockname()[1]
        with pytest.raises(ServerUnavailable, match=rf"this port speaks TLS.* is redis://localhost:{port}/0$"):
            connect(f"rediss://localhost:{port}")
        answered.result(10)


def test_a_plain_client_at_a_tls_server_is_told_the_url_with_tls(files: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "both.pem")
    with ScriptedServer({}, context) as server, pytest.raises(ServerUnavailable) as caught:
        connect(f"redis://localhost:{server.port}", timeout=5)
    assert f"If it speaks TLS, it is rediss://localhost:{server.port}/0" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ssl_ca_certs": "gone"}, r"ssl_ca_certs='.*gone' cannot be read \(No such file.*PEM file"),
        ({"ssl_ca_certs": ""}, r"ssl_ca_certs='.*' cannot be read \(Is a directory"),
        ({"ssl_ca_certs": "text.pem"}, "ssl_ca_certs='.*text.pem' holds no certificates"),
        ({"ssl_ca_path": "gone"}, r"ssl_ca_path='.*gone' cannot be read \(No such file.*directory of certificates"),
        ({"ssl_certfile": "gone"}, "ssl_certfile='.*gone' cannot be read"),
        ({"ssl_certfile": "ours.pem", "ssl_keyfile": "gone"}, "ssl_keyfile='.*gone' cannot be read"),
        ({"ssl_certfile": "ours.pem"}, "ssl_certfile='.*ours.pem' and ssl_keyfile=None cannot be used"),
        ({"ssl_certfile": "ours.pem", "ssl_keyfile": "other.key"}, "cannot be used.*its own key"),
        ({"ssl_certfile": "ours.pem", "ssl_keyfile": "locked.key"}, "cannot be used.*without a passphrase"),
    ],
)
def test_a_tls_file_that_cannot_be_used_is_named_before_anything_connects(
    options: dict[str, str], message: str, files: Path, nobody: int
) -> None:
    with pytest.raises(ConfigError, match=message):
        connect(f"rediss://127.0.0.1:{nobody}", **{name: str(files / file) for name, file in options.items()})


def test_a_client_certificate_with_its_key_beside_it_or_in_one_file_reaches_the_server(files: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files / "ours.pem", files / "ours.key")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(files / "ours.pem")
    trusted = {"ssl_ca_certs": str(files / "ours.pem")}
    pair = {"ssl_certfile": str(files / "ours.pem"), "ssl_keyfile": str(files / "ours.key")}
    with ScriptedServer({"INFO": bulk("redis_version:8.0.0"), "GET": bulk(WIRE_VERSION)}, context) as server:
        for certificate in (pair, {"ssl_certfile": str(files / "both.pem")}):
            with connect(f"rediss://localhost:{server.port}", **trusted, **certificate) as connection:
                assert connection.server.version == (8, 0, 0)
        with pytest.raises(ServerUnavailable):
            connect(f"rediss://localhost:{server.port}", **trusted)


# --- Sentinel


def test_sentinels_that_do_not_answer_are_named_in_a_line_or_two(nobody: int) -> None:
    with pytest.raises(ServerUnavailable) as caught:
        connect(f"redis+sentinel://127.0.0.1:{nobody},localhost:{nobody}/main")
    text = "".join(traceback.format_exception(caught.value))
    assert f"no Sentinel at 127.0.0.1:{nobody}, localhost:{nobody} led to a master 'main'" in text
    assert "26379" in text
    assert "ConnectionPool" not in text
    assert len(str(caught.value)) < 400


def test_a_server_that_is_no_sentinel_is_named(clean: ServerProcess) -> None:
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{clean.port} is not a Sentinel: name the Sentinels"):
        connect(f"valkey+sentinel://127.0.0.1:{clean.port}/main")


def test_sentinels_that_know_no_such_master_are_told_from_those_that_do_not_answer() -> None:
    with (
        ScriptedServer({"SENTINEL": "*0\r\n"}) as server,
        pytest.raises(ServerUnavailable, match=r"answer, but know no master 'mian' that is up.*SENTINEL MASTERS"),
    ):
        connect(f"valkey+sentinel://127.0.0.1:{server.port}/mian")


def test_a_sentinel_that_refuses_its_credentials_is_told_from_the_server() -> None:
    with (
        ScriptedServer({"AUTH": "-WRONGPASS invalid username-password pair\r\n"}) as server,
        pytest.raises(ConfigError, match=r"refused the credentials: check sentinel_username") as caught,
    ):
        connect(f"valkey+sentinel://127.0.0.1:{server.port}/main", sentinel_password="hush")
    assert "hush" not in str(caught.value)


def test_sentinels_asked_by_tls_that_do_not_answer_may_be_plain(clean: ServerProcess) -> None:
    with pytest.raises(ServerUnavailable, match="that these ports speak TLS"):
        connect(f"rediss+sentinel://127.0.0.1:{clean.port}/main", timeout=0.2)
