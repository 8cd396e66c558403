"""Config: every spelling of a server's address, every option beside it, and what is refused."""

from __future__ import annotations

import dataclasses
import inspect
import os
from pathlib import Path
from typing import Any

import pytest
import redis
from dramatiq.brokers.redis import RedisBroker
from redis.connection import SSLConnection

from echomq_tasks.config import Config, default_directory
from echomq_tasks.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("valkey://", {"kind": "standalone", "nodes": (("localhost", 6379),)}),
        ("VALKEY://cache", {"kind": "standalone", "nodes": (("cache", 6379),)}),
        ("redis://cache:7000/3", {"nodes": (("cache", 7000),), "db": 3}),
        ("redis://[::1]:7000", {"nodes": (("::1", 7000),)}),
        ("valkey://h/?db=4", {"db": 4}),
        ("valkeys://h", {"kind": "standalone", "ssl": True}),
        ("rediss://h?ssl_ca_certs=/ca.pem", {"ssl": True, "ssl_ca_certs": "/ca.pem"}),
        ("valkey://h?ssl=true&ssl_cert_reqs=none", {"ssl": True, "ssl_cert_reqs": "none"}),
        ("valkey://joe:p%40s%2Fs+@h", {"username": "joe", "password": "p@s/s+"}),
        ("valkey://:secret@h", {"username": None, "password": "secret"}),
        ("unix:///run/a%20b/v.sock?db=2", {"kind": "unix", "path": "/run/a b/v.sock", "db": 2}),
        ("unix://joe:pw@/run/v@1.sock", {"path": "/run/v@1.sock", "username": "joe", "password": "pw"}),
        ("valkey+cluster://a:1,b:2", {"kind": "cluster", "nodes": (("a", 1), ("b", 2))}),
        ("rediss+cluster://a", {"kind": "cluster", "ssl": True, "nodes": (("a", 6379),)}),
        (
            "valkey+sentinel://joe:pw@a,b:5/my%20master/6?sentinel_password=s",
            {
                "kind": "sentinel",
                "nodes": (("a", 26379), ("b", 5)),
                "master": "my master",
                "db": 6,
                "username": "joe",
                "password": "pw",
                "sentinel_password": "s",
            },
        ),
        ("embedded://", {"kind": "embedded", "directory": None}),
        ("embedded:///var/my%20data?idle_timeout=2.5", {"directory": "/var/my data", "idle_timeout": 2.5}),
        ("embedded://~/data", {"directory": os.path.expanduser("~/data")}),
        ("embedded://some/dir", {"directory": os.path.abspath("some/dir")}),
        (
            "valkey://h?timeout=2.5&connect_timeout=1&max_connections=7&protocol=3&client_name=me",
            {"timeout": 2.5, "connect_timeout": 1.0, "max_connections": 7, "protocol": 3, "client_name": "me"},
        ),
    ],
)
def test_a_url_is_read(url: str, expected: dict[str, Any]) -> None:
    config = Config.parse(url)
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize("suffix", ["", "+cluster", "+sentinel"])
@pytest.mark.parametrize(("scheme", "ssl"), [("redis", False), ("valkey", False), ("rediss", True), ("valkeys", True)])
def test_the_scheme_alone_decides_on_tls(scheme: str, suffix: str, ssl: bool) -> None:
    path = "/main" if suffix == "+sentinel" else ""
    assert Config.parse(f"{scheme}{suffix}://h{path}").ssl is ssl


def test_a_keyword_wins_over_the_query_and_the_query_over_the_user_part() -> None:
    url = "valkeys://joe:first@h/1?password=second&timeout=3&ssl_ca_certs=/query.pem"
    assert Config.parse(url).password == "second"
    config = Config.parse(url, password="third", timeout=4, db=2, ssl_ca_path="/dir")
    assert (config.username, config.password, config.timeout, config.db) == ("joe", "third", 4, 2)
    assert (config.ssl_ca_certs, config.ssl_ca_path) == ("/query.pem", "/dir")


def test_none_means_not_given() -> None:
    assert Config.parse("valkey://h", password=None, timeout=None, host=None) == Config.parse("valkey://h")


def test_host_and_port_without_a_url_are_a_standalone_server_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EMQ_URL", "valkey://elsewhere")
    config = Config.parse(host="cache", port=7000, db=1, password="pw")
    assert (config.kind, config.host, config.port, config.db, config.password) == ("standalone", "cache", 7000, 1, "pw")
    assert Config.parse(port=7000).nodes == (("localhost", 7000),)


def test_host_beside_a_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="host= and port= beside a URL"):
        Config.parse("valkey://h", host="other", port=1)


def test_without_a_url_the_environment_names_it_and_keywords_go_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_URL", "valkey://from-env/3")
    config = Config.parse(password="pw")
    assert (config.host, config.db, config.password) == ("from-env", 3, "pw")


def test_a_bad_url_in_the_environment_says_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMQ_URL", "valky://h")
    with pytest.raises(ConfigError, match=r"did you mean 'valkey'\?.*environment variable EMQ_URL"):
        Config.parse()


@pytest.mark.parametrize("url", [None, ""])
def test_without_any_address_it_is_the_users_shared_embedded_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str | None
) -> None:
    monkeypatch.delenv("EMQ_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("EMQ_URL", url)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert Config.parse(idle_timeout=5) == Config(kind="embedded", directory=str(tmp_path / "echomq"), idle_timeout=5)
    # The specification says that a relative path is to be ignored.
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert default_directory() == Path.home() / ".local" / "share" / "echomq"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:6379", "no scheme"),
        ("valky://h", "did you mean 'valkey'"),
        ("redis+sentinal://h/m", r"did you mean 'redis\+sentinel'"),
        ("valkey://h?timeot=3", "did you mean 'timeout'"),
        ("valkey://h?timeout=1&timeout=2", "given twice"),
        ("valkey://h?port=1", "before the path"),
        ("valkey://h?ssl=maybe", "ssl must be true or false"),
        ("valkey://h?db=one", "db must be a whole number"),
        ("valkey://h?timeout=soon", "timeout must be a number"),
        ("valkey://h/one", "db must be a whole number"),
        ("valkey://h:port", "host part"),
        ("valkey://h:99999", "port must be a whole number from 1 to 65535"),
        ("valkey://a b", "host name or an IP address"),
        ("valkey://a,b", "several hosts need"),
        ("valkey+cluster://h/1", "db=1 has no meaning in a cluster"),
        ("valkey+sentinel://h", "names the master"),
        ("unix://run/v.sock", "three slashes"),
        ("unix://", "names the socket"),
        ("valkey://h?ssl_ca_certs=/ca", "valkeys://"),
        ("unix:///s?ssl=true", "a unix socket has no TLS"),
        ("valkey://h?sentinel_username=u", r"valkey\+sentinel"),
        ("valkey://h?idle_timeout=3", "only the shared embedded server"),
        ("embedded://?idle_timeout=3", "only the shared embedded server"),
        ("embedded:///d?password=x", "file permissions"),
        ("valkeys://h?ssl_cert_reqs=never", "required, optional, none"),
        ("valkey://h?client_name=a%20b", "printable ASCII"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_advice(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.parse(url)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", float("inf")),
        ("timeout", float("nan")),
        ("timeout", True),
        ("timeout", "soon"),
        ("timeout", b"3"),
        ("db", "1.5"),
        ("db", ""),
        ("ssl", "maybe"),
        ("connect_timeout", 1e9),
        ("max_connections", 0),
        ("max_connections", 1.5),
        ("db", -1),
        ("db", False),
        ("protocol", 4),
        ("username", 7),
        ("password", b"bytes"),
        ("ssl", 1),
        ("client_name", ""),
    ],
)
def test_a_value_of_the_wrong_type_or_out_of_range_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=option):
        Config.parse("valkey://h", **{option: value})


@pytest.mark.parametrize(("field", "value"), [("nodes", ()), ("nodes", (("h", 0),)), ("nodes", ((7, 1),))])
def test_nodes_are_checked_on_direct_construction_too(field: str, value: object) -> None:
    with pytest.raises(ConfigError):
        Config(**{field: value})  # type: ignore[arg-type]


def test_a_url_that_is_not_text_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be text, not bytes"):
        Config.parse(b"valkey://h")  # type: ignore[arg-type]


def test_turning_tls_off_beside_a_tls_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        Config.parse("rediss://h", ssl=False)
    assert Config.parse("embedded://", ssl=False).ssl is False


def test_an_unknown_option_names_the_nearest_and_the_others() -> None:
    with pytest.raises(ConfigError, match=r"'max_conections'; did you mean 'max_connections'\?.*client_name"):
        Config.parse("valkey://h", max_conections=3)
    with pytest.raises(ConfigError, match=r"unknown option 'zzz'\. Options:"):
        Config.parse("valkey://h", zzz=3)


def test_the_callers_own_keywords_are_suggested_too() -> None:
    mine = ("lease", "max_stalled")
    with pytest.raises(ConfigError, match=r"'leese'; did you mean 'lease'\?.*Options: .*lease, max_connections"):
        Config.parse("valkey://h", also=mine, leese=3)
    with pytest.raises(ConfigError, match="did you mean 'timeout'"):
        Config.parse("valkey://h", also=mine, timeuot=3)
    with pytest.raises(ConfigError) as caught:
        Config.parse("valkey://h", leese=3)
    assert "'lease'" not in str(caught.value)


def test_numbers_and_flags_may_be_text_as_in_a_url() -> None:
    ambient = {"port": "26390", "db": "5", "timeout": "3", "max_connections": "7", "ssl": "true", "protocol": "3"}
    config = Config.parse(host="h", ssl_check_hostname="no", **ambient)
    assert (config.port, config.db, config.timeout, config.max_connections) == (26390, 5, 3.0, 7)
    assert (config.ssl, config.protocol, config.ssl_check_hostname) == (True, 3, False)
    with pytest.raises(ConfigError, match="port must be a whole number from 1 to 65535, not 70000"):
        Config.parse(port="70000")
    with pytest.raises(ConfigError, match="contradicts"):
        Config.parse("rediss://h", ssl="false")


@pytest.mark.parametrize("value", [0, -1, "0", 1e9])
def test_a_range_is_written_in_plain_numbers_and_says_that_zero_is_not_in_it(value: object) -> None:
    with pytest.raises(ConfigError, match="timeout must be a number of seconds above 0 and at most 1000000, not "):
        Config.parse("valkey://h", timeout=value)
    with pytest.raises(ConfigError, match="db must be a whole number from 0 to 2147483647, not -1"):
        Config.parse("valkey://h", db=-1)


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match="ssl_certfile="):
        Config.parse("rediss://h", ssl_keyfile="/some.key")


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("namespace", "fixed by the wire"),
        ("maintenance_chance", "remove it"),
        ("heartbeat_timeout", "lease="),
        ("dead_message_ttl", "dead_ttl="),
        ("requeue_deadline", "lease"),
        ("requeue_interval", "lease"),
        ("client", "connection="),
        ("connection_pool", "max_connections="),
        ("socket_timeout", "use timeout="),
        ("socket_connect_timeout", "use connect_timeout="),
        ("health_check_interval", "remove it"),
        ("decode_responses", "stay bytes"),
        ("retry_on_timeout", "done twice"),
        ("max_retries", r"@dramatiq\.actor\(max_retries="),
        ("unix_socket_path", "unix:///"),
        ("ssl_ca_data", "ssl_ca_certs="),
        ("ssl_password", "without a passphrase"),
        ("ssl_ciphers", "ssl module"),
        ("lease", r"an option of EchoMQBroker.*EchoMQBroker\(url, lease="),
        ("max_stalled", r"an option of EchoMQBroker.*max_stalled="),
        ("middleware", r"an option of EchoMQBroker.*middleware="),
        ("connection", r"an option of EchoMQBroker.*connection="),
    ],
)
def test_an_option_brought_from_elsewhere_is_answered_with_what_replaces_it(option: str, advice: str) -> None:
    for url, options in (("valkey://h", {option: 1}), (f"valkey://h?{option}=1", {})):
        with pytest.raises(ConfigError, match=f"option '{option}' does not exist here.*{advice}"):
            Config.parse(url, **options)


@pytest.mark.parametrize("taker", [redis.Redis, redis.ConnectionPool, SSLConnection, RedisBroker])
def test_no_option_of_redis_py_and_its_broker_is_merely_unknown(taker: type) -> None:
    known = {field.name for field in dataclasses.fields(Config)}
    names = set(inspect.signature(taker).parameters) - {"url", "host", "port", "kwargs", "parameters"} - known
    # Internals of redis-py that nobody writes down by hand.
    names -= {"connection_kwargs", "cache_factory"}
    assert names
    for name in names:
        with pytest.raises(ConfigError, match=f"option '{name}' does not exist here: "):
            Config.parse("valkey://h", **{name: 1})


def test_no_password_is_ever_shown() -> None:
    config = Config.parse("valkey+sentinel://joe:hush1@h/m?sentinel_password=hush2")
    assert "hush" not in f"{config!r} {config} {config.address}"


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("joe:hush@localhost", {}),
        ("valky://joe:hush@h", {}),
        ("valkey://joe:hu/sh@h", {}),
        ("valkey://joe:1/hush@h", {}),
        ("valkey://joe:hu?sh@h", {}),
        ("valkey://h", {"password": ["hush"]}),
        ("embedded:///d?password=hush", {}),
    ],
)
def test_no_refusal_shows_a_password(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.parse(url, **options)
    assert "hu" not in str(caught.value)
    assert "sh@" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://joe:pw@h:1/2?timeout=3", "redis://h:1/2"),
        ("valkey://h", "valkey://h:6379/0"),
        ("REDISS://[::1]", "rediss://[::1]:6379/0"),
        ("valkeys://h", "valkeys://h:6379/0"),
        ("redis://h?ssl=true", "rediss://h:6379/0"),
        ("rediss+cluster://a:1", "rediss+cluster://a:1"),
        ("redis+sentinel://a/m", "redis+sentinel://a:26379/m"),
        ("unix:///a%20b?db=3", "unix:///a%20b"),
        ("embedded:///a%3Fb", "embedded:///a%3Fb"),
        ("embedded://some/dir", f"embedded://{os.path.abspath('some/dir')}"),
        ("unix://:pw@/s", "unix:///s"),
        ("valkey+cluster://a:1,b:2", "valkey+cluster://a:1,b:2"),
        ("valkey+sentinel://a/m%20m", "valkey+sentinel://a:26379/m%20m"),
        ("embedded:///d", "embedded:///d"),
        ("embedded://", "embedded://"),
    ],
)
def test_the_address_is_a_url_again(url: str, address: str) -> None:
    config = Config.parse(url)
    assert config.address == address
    again = Config.parse(address)
    assert (again.address, again.nodes, again.path, again.directory) == (
        address,
        config.nodes,
        config.path,
        config.directory,
    )


def test_the_scheme_makes_no_other_difference() -> None:
    assert Config.parse("redis://h") == Config.parse("valkey://h")
    assert hash(Config.parse("redis://h")) == hash(Config.parse("valkey://h"))


def test_a_relative_directory_stays_where_it_was_when_the_process_moves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config(kind="embedded", directory="data")
    monkeypatch.chdir("/")
    assert (config.directory, config.address) == (str(tmp_path / "data"), f"embedded://{tmp_path}/data")


def test_a_config_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().db = 3  # type: ignore[misc]
