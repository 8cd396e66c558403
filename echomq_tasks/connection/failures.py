"""What redis-py raises while connecting, told as ours: which address, what is wrong, what to do next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.sentinel import MasterNotFoundError

from echomq_tasks.config import Config
from echomq_tasks.errors import ConfigError, EchoMQError, ServerUnavailable

#: What OpenSSL says of a peer that answers in plain text.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


@contextmanager
def typed_errors(config: Config) -> Iterator[None]:
    """Raise redis-py's errors as ours, with the address and what to do next."""
    try:
        yield
    except MasterNotFoundError as error:
        # Its text is pages of redis-py's own objects; what they say is in ours.
        raise _no_master(config, str(error)) from None
    except (RedisError, RedisClusterException) as error:
        raise _translate(config, error) from error


def _translate(config: Config, error: BaseException) -> EchoMQError:
    # The cluster client wraps whatever its start-up nodes raised.
    cause: BaseException | None = error
    root = error
    while cause is not None:
        if isinstance(cause, EchoMQError):
            return cause
        if isinstance(cause, (AuthenticationError, AuthorizationError)):
            return ConfigError(
                f"{config.address} refused the credentials ({_text(cause)}): check username and password, in the URL "
                "(percent-encoded) or as keywords"
            )
        if isinstance(cause, NoPermissionError):
            return ConfigError(
                f"the server's ACL does not let this user go on ({_text(cause)}): allow it the keys {{emq}}:*, "
                "emq:* and ecc:*, with the ACL SETUSER line in docs/operations.md"
            )
        if isinstance(cause, ResponseError) and (wrong := _wrong_place(config, str(cause))):
            return wrong
        root, cause = cause, cause.__cause__
    return ServerUnavailable(f"cannot use {config.address}: {_text(error)}. {_advice(config, root)}")


def _text(error: BaseException) -> str:
    """The error's text without its full stop: ours follows."""
    return str(error).rstrip(". ")


def _wrong_place(config: Config, text: str) -> ConfigError | None:
    if "DB index is out of range" in text:
        return ConfigError(
            f"the server at {config.address} has fewer databases than db={config.db} needs: choose a lower db, or "
            "raise `databases` in its configuration (16 by default, 0 to 15; in a cluster 1)"
        )
    if "SELECT is not allowed in cluster mode" in text:
        nodes = replace(config, kind="cluster", db=0).address
        return ConfigError(f"{config.address} is a node of a cluster, which has database 0 only: connect with {nodes}")
    if config.kind == "sentinel" and "unknown command 'SENTINEL'" in text:
        return ConfigError(
            f"{_hosts(config)} is not a Sentinel: name the Sentinels (port 26379 by default) in the URL, not the "
            "server that they watch"
        )
    return None


def _advice(config: Config, error: BaseException) -> str:
    check = (
        "Check that the server runs and that this address is right (url=, host= and port=, or the environment variable "
        "EMQ_URL)"
    )
    text = str(error)
    if config.ssl and ("Timeout connecting" in text or any(word in text for word in _NOT_TLS)):
        plain = replace(config, ssl=False).address
        return f"{check}, and that this port speaks TLS: a plain one, which leaves the handshake unanswered, is {plain}"
    # "Connection refused" was met before a byte was sent; whoever hangs up at our first words may expect others.
    if not config.ssl and config.kind != "unix" and _hung_up(text):
        return f"{check}. If it speaks TLS, it is {replace(config, ssl=True).address}"
    return check


def _hung_up(text: str) -> bool:
    return "Connection closed by server" in text or "Connection reset by peer" in text


def _hosts(config: Config) -> str:
    return ", ".join(f"{host}:{port}" for host, port in config.nodes)


def _no_master(config: Config, text: str) -> EchoMQError:
    if "AuthenticationError" in text or "AuthorizationError" in text:
        return ConfigError(
            f"a Sentinel of {_hosts(config)} refused the credentials: check sentinel_username and sentinel_password "
            "(username and password are for the server)"
        )
    # redis-py lists the Sentinels that failed; an empty list means that all have answered.
    if "redis.client" not in text:
        return ServerUnavailable(
            f"the Sentinels at {_hosts(config)} answer, but know no master {config.master!r} that is up: check the "
            "name at the end of the URL (SENTINEL MASTERS lists them), and that this master runs"
        )
    tls = ", and that these ports speak TLS" if config.ssl else ""
    return ServerUnavailable(
        f"cannot use {config.address}: no Sentinel at {_hosts(config)} led to a master {config.master!r}, and not all "
        f"of them could be asked. Check that they run, and their ports (26379 by default){tls}"
    )
