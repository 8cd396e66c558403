"""One frozen, validated description of how to reach the server, from a URL, keywords and the environment."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, unquote

from echomq_tasks.config.advice import ADVICE
from echomq_tasks.errors import ConfigError

Kind = Literal["standalone", "unix", "cluster", "sentinel", "embedded"]

#: The environment variable that names the server when the caller gives no URL.
ENV_URL = "EMQ_URL"

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "valkey": ("standalone", False),
    "redis": ("standalone", False),
    "valkeys": ("standalone", True),
    "rediss": ("standalone", True),
    "unix": ("unix", False),
    **{f"{name}+cluster": ("cluster", False) for name in ("valkey", "redis")},
    **{f"{name}+cluster": ("cluster", True) for name in ("valkeys", "rediss")},
    **{f"{name}+sentinel": ("sentinel", False) for name in ("valkey", "redis")},
    **{f"{name}+sentinel": ("sentinel", True) for name in ("valkeys", "rediss")},
    "embedded": ("embedded", False),
}


@dataclass(frozen=True, slots=True)
class _Option:
    """What a value may be: its type and, for numbers, its range."""

    type: Literal["text", "whole", "seconds", "flag"]
    low: float = 0
    high: float = math.inf
    choices: tuple[object, ...] = ()


_SECONDS = _Option("seconds", 0, 1e6)
_TEXT = _Option("text")

_OPTIONS: dict[str, _Option] = {
    "host": _TEXT,
    "port": _Option("whole", 1, 65535),
    "username": _TEXT,
    "password": _TEXT,
    "db": _Option("whole", 0, 2**31 - 1),
    "timeout": _SECONDS,
    "connect_timeout": _SECONDS,
    "max_connections": _Option("whole", 1, 1_000_000),
    "protocol": _Option("whole", choices=(2, 3)),
    "client_name": _TEXT,
    "ssl": _Option("flag"),
    "ssl_ca_certs": _TEXT,
    "ssl_ca_path": _TEXT,
    "ssl_certfile": _TEXT,
    "ssl_keyfile": _TEXT,
    "ssl_cert_reqs": _Option("text", choices=("required", "optional", "none")),
    "ssl_check_hostname": _Option("flag"),
    "sentinel_username": _TEXT,
    "sentinel_password": _TEXT,
    "idle_timeout": _SECONDS,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """How to reach the server. Frozen and checked; its text never shows a password.

    Build one with :meth:`parse`. Times are seconds.

    Parameters:
        kind: what is at the other end.
        nodes: host and port of the server, of the known cluster nodes, or of the Sentinels.
        master: the name the Sentinels know the master by.
        path: the unix socket, for ``unix://``.
        directory: where the shared embedded server keeps its data; None is a private one. A relative path is made
            absolute here, so that a later ``chdir`` leads nowhere else.
        timeout: how long to wait for a reply.
        connect_timeout: how long to wait for the connection itself.
        max_connections: ceiling on pooled connections (in a cluster: per node).
        protocol: RESP version, 2 or 3.
        idle_timeout: how long the shared embedded server stays up with no client; who starts it decides.
        brand: the scheme that :attr:`address` is written with; it makes no difference to the connection.

    Raises:
        ConfigError: a value is of the wrong type, out of range, or has no meaning for this kind of server.
    """

    kind: Kind = "standalone"
    nodes: tuple[tuple[str, int], ...] = (("localhost", 6379),)
    master: str | None = None
    path: str | None = None
    directory: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    db: int = 0
    timeout: float = 10.0
    connect_timeout: float = 5.0
    max_connections: int = 256
    protocol: int = 2
    client_name: str | None = None
    ssl: bool = False
    ssl_ca_certs: str | None = None
    ssl_ca_path: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_cert_reqs: str = "required"
    ssl_check_hostname: bool = True
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    idle_timeout: float = 60.0
    brand: Literal["valkey", "redis"] = field(default="valkey", repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, option in _OPTIONS.items():
            if name not in ("host", "port") and (value := getattr(self, name)) is not None:
                _check(name, value, option)
        if not self.nodes:
            raise ConfigError("nodes is empty: name at least one host")
        for host, port in self.nodes:
            _check_host(host)
            _check("port", port, _OPTIONS["port"])
        if self.client_name is not None and not re.fullmatch(r"[!-~]+", self.client_name):
            raise ConfigError("client_name must be printable ASCII without spaces: the server refuses anything else")
        if self.directory is not None:
            object.__setattr__(self, "directory", os.path.abspath(os.path.expanduser(self.directory)))
        self._check_kind()

    def _check_kind(self) -> None:
        if self.kind == "cluster" and self.db:
            raise ConfigError(f"db={self.db} has no meaning in a cluster, which has database 0 only: remove it")
        if self.kind == "sentinel" and not self.master:
            raise ConfigError(
                "a Sentinel URL names the master: valkey+sentinel://host1:26379,host2:26379/<master name>"
            )
        if self.kind == "unix" and not self.path:
            raise ConfigError("a unix URL names the socket: unix:///run/valkey/valkey.sock")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise ConfigError("ssl_keyfile is the key of a client certificate: give that too, as ssl_certfile=")

    @property
    def host(self) -> str:
        """The (first) host."""
        return self.nodes[0][0]

    @property
    def port(self) -> int:
        """The (first) port."""
        return self.nodes[0][1]

    @property
    def address(self) -> str:
        """The URL without user, password and options, in the scheme that was given: for messages to people."""
        if self.kind == "embedded":
            return f"embedded://{quote(self.directory or '')}"
        if self.kind == "unix":
            return f"unix://{quote(self.path or '')}"
        where = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.nodes)
        scheme = f"{self.brand}s" if self.ssl else self.brand
        if self.kind == "cluster":
            return f"{scheme}+cluster://{where}"
        if self.kind == "sentinel":
            return f"{scheme}+sentinel://{where}/{quote(self.master or '')}"
        return f"{scheme}://{where}/{self.db}"

    @classmethod
    def parse(cls, url: str | None = None, *, also: Iterable[str] = (), **options: Any) -> Config:
        """Read a URL and the options beside it.

        Parameters:
            url: ``valkey://``, ``redis://``, ``valkeys://`` and ``rediss://`` (TLS), ``unix://``, the same with
                ``+cluster`` or ``+sentinel``, or ``embedded://[directory]``. None: ``EMQ_URL`` from the environment,
                else the user's shared embedded server. User, password, path and query are percent-decoded (a ``+``
                stays a plus).
            also: names of the caller's own keywords, for "did you mean" when one of ``options`` is misspelled.
            options: any field above, and ``host`` and ``port`` in place of a URL. A keyword wins over the same option
                in the query, the query over the URL's user and password. None means "not given". A number or flag may
                be text, as it comes from an environment variable.

        Returns:
            The checked configuration.

        Raises:
            ConfigError: an unknown scheme or option (the message names the nearest one), or a bad value.
        """
        given = {name: value for name, value in options.items() if value is not None}
        _refuse_unknown(given, also)
        given = {name: _convert(name, value) if isinstance(value, str) else value for name, value in given.items()}
        endpoint = {name: given.pop(name) for name in ("host", "port") if name in given}
        if url is not None and endpoint:
            raise ConfigError(f"{' and '.join(f'{name}=' for name in endpoint)} beside a URL: put it into the URL")
        if url is None and not endpoint and (ambient := os.environ.get(ENV_URL)):
            try:
                return cls._build(_read_url(ambient), given)
            except ConfigError as error:
                raise ConfigError(f"{error} (the URL is from the environment variable {ENV_URL})") from None
        if url is not None:
            return cls._build(_read_url(url), given)
        if endpoint:
            return cls._build({"nodes": ((endpoint.get("host", "localhost"), endpoint.get("port", 6379)),)}, given)
        return cls._build({"kind": "embedded", "directory": str(default_directory())}, given)

    @classmethod
    def _build(cls, read: Mapping[str, Any], given: Mapping[str, Any]) -> Config:
        values = {**read, **given}
        kind = values.get("kind", "standalone")
        if read.get("ssl") and values["ssl"] is False:
            raise ConfigError("ssl=False contradicts the URL, whose scheme asks for TLS: change one of them")
        for name in values:
            if reason := _meaningless(name, kind, values):
                raise ConfigError(f"{name} has no meaning here: {reason}")
        return cls(**values)


def default_directory() -> Path:
    """Return where the user's shared embedded server lives: ``$XDG_DATA_HOME/echomq`` or ``~/.local/share/echomq``."""
    base = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "share"
    return root / "echomq"


def _meaningless(name: str, kind: str, values: Mapping[str, Any]) -> str | None:
    """Return why ``name`` would be silently lost with this kind of server, or None when it is used."""
    if name in ("username", "password") and kind == "embedded":
        return "the embedded server is guarded by file permissions. Give a URL or host= to reach another server"
    if name.startswith("ssl") and values[name] is not False and kind in ("unix", "embedded"):
        return "a unix socket has no TLS"
    if name.startswith("ssl_") and not values.get("ssl"):
        return "the connection is not encrypted. Write valkeys:// (or rediss://) for TLS"
    if name.startswith("sentinel_") and kind != "sentinel":
        return "it needs a URL such as valkey+sentinel://host1,host2/<master name>"
    if name == "idle_timeout" and (kind != "embedded" or not values.get("directory")):
        return "only the shared embedded server, embedded:///directory, stops when it is idle"
    return None


def _nearest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else "."


def _refuse_unknown(names: Iterable[str], also: Iterable[str] = ()) -> None:
    known = sorted({*_OPTIONS, *also})
    for name in names:
        if name in ADVICE:
            raise ConfigError(f"option {name!r} does not exist here: {ADVICE[name].format(name=name)}")
        if name not in _OPTIONS:
            raise ConfigError(f"unknown option {name!r}{_nearest(name, known)} Options: {', '.join(known)}")


def _check(name: str, value: object, option: _Option) -> None:
    # Values of secret options must not reach a message.
    shown = "the given value" if "password" in name else repr(value)
    if option.type == "text" and not isinstance(value, str):
        raise ConfigError(f"{name} must be text, not {shown}")
    if option.type == "flag" and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, not {shown}")
    if option.type in ("whole", "seconds"):
        numbers = (int,) if option.type == "whole" else (int, float)
        what = "a whole number" if option.type == "whole" else "a number of seconds"
        if isinstance(value, bool) or not isinstance(value, numbers):
            raise ConfigError(f"{name} must be {what}, not {shown}")
        above = value >= option.low if option.type == "whole" else value > option.low
        if not math.isfinite(value) or not above or value > option.high:
            lowest = f"from {option.low:.0f} to" if option.type == "whole" else f"above {option.low:.0f} and at most"
            raise ConfigError(f"{name} must be {what} {lowest} {option.high:.0f}, not {shown}")
    if option.choices and value not in option.choices:
        raise ConfigError(f"{name} must be one of {', '.join(map(str, option.choices))}, not {shown}")


def _check_host(host: object) -> None:
    if not isinstance(host, str) or not re.fullmatch(r"[^\s/@?#,\[\]]+", host):
        raise ConfigError(f"host must be a host name or an IP address, not {host!r}")


def _read_url(url: str) -> dict[str, Any]:
    """Split a URL by hand: the standard splitter gives up on the host lists of Sentinel and on ``embedded://~/dir``."""
    if not isinstance(url, str):
        raise ConfigError(f"the URL must be text, not {type(url).__name__}")
    scheme, found, rest = url.partition("://")
    # The rest of the URL is never quoted in a message: it may hold a password.
    if not found:
        raise ConfigError("the URL has no scheme: write valkey://host:port, unix:///path or embedded:///directory")
    if scheme.lower() not in _SCHEMES:
        raise ConfigError(
            f"unknown URL scheme {scheme!r}{_nearest(scheme.lower(), _SCHEMES)} Schemes: {', '.join(_SCHEMES)}"
        )
    kind, ssl = _SCHEMES[scheme.lower()]
    values: dict[str, Any] = {"kind": kind, "brand": "redis" if scheme.lower().startswith("redis") else "valkey"}
    if ssl:
        values["ssl"] = True
    rest, _, query = rest.partition("?")
    if kind == "embedded":
        if rest:
            values["directory"] = unquote(rest)
    else:
        _read_authority(kind, rest, values)
    for name, value in _read_query(query).items():
        values[name] = value
    return values


def _read_authority(kind: Kind, rest: str, values: dict[str, Any]) -> None:
    where, slash, path = rest.partition("/")
    # The path of a unix URL may hold an "@", so user and password end before the first slash.
    user, at, hosts = where.rpartition("@")
    if at:
        username, colon, password = user.partition(":")
        values |= {"username": unquote(username)} if username else {}
        values |= {"password": unquote(password)} if colon else {}
    if kind == "unix":
        if hosts:
            raise ConfigError("a unix URL has three slashes and an absolute path: unix:///run/valkey/valkey.sock")
        values["path"] = unquote(slash + path)
        return
    default = 26379 if kind == "sentinel" else 6379
    values["nodes"] = tuple(_read_node(node, default) for node in hosts.split(","))
    if kind == "standalone" and len(values["nodes"]) > 1:
        raise ConfigError("several hosts need valkey+cluster:// or valkey+sentinel://")
    if kind == "sentinel":
        master, _, path = path.partition("/")
        values["master"] = unquote(master)
    if "@" in path:
        raise ConfigError("the URL has an @ after its path: percent-encode a / in user or password as %2F")
    if path.strip("/"):
        values["db"] = _convert("db", unquote(path.strip("/")))


def _read_node(text: str, default: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[([^\]]+)\]|([^:\[\]]*))(?::(\d+))?", text)
    if match is None:
        raise ConfigError("the URL's host part is not host, host:port or [IPv6 address]:port")
    return unquote(match[1] or match[2]) or "localhost", int(match[3]) if match[3] else default


def _read_query(query: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in filter(None, query.split("&")):
        name, _, text = pair.partition("=")
        name = unquote(name)
        if "@" in name:
            raise ConfigError("the URL has an @ after its query: percent-encode a ? in user or password as %3F")
        _refuse_unknown([name])
        if name in ("host", "port"):
            raise ConfigError(f"{name} in the query: put it before the path, as in valkey://host:port/db")
        if name in values:
            raise ConfigError(f"{name} is given twice in the URL's query: keep one")
        values[name] = _convert(name, unquote(text))
    return values


def _convert(name: str, text: str) -> Any:
    """Turn text, of a query or an environment variable, into the option's type; the value is checked later."""
    kind = _OPTIONS[name].type
    if kind == "text":
        return text
    if kind == "flag":
        flags = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
        if text.lower() not in flags:
            raise ConfigError(f"{name} must be true or false, not {text!r}")
        return flags[text.lower()]
    try:
        return int(text) if kind == "whole" else float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a {'whole ' if kind == 'whole' else ''}number, not {text!r}") from None
