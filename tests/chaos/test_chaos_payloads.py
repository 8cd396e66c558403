"""Payloads as large and as odd as they come arrive as they were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import dramatiq
import pytest
from chaos.crew import PATIENCE, App
from support.eventually import eventually
from support.servers import ServerProcess


@pytest.fixture
def arrive(server: ServerProcess, make_app: Callable[..., App]) -> Callable[..., Any]:
    """Send arguments to an actor; answers those that it was called with."""
    server.flush()
    received: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    app = make_app(server.url, lambda *args, **kwargs: received.append((args, kwargs)))

    def send(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        app.run.send(*args, **kwargs)
        if not app.workers:
            app.work()
        eventually(lambda: received, PATIENCE)
        eventually(lambda: app.queue.counts().unfinished == 0, PATIENCE)
        return received.pop()

    return send


@pytest.fixture
def _pickled() -> Iterator[None]:
    before = dramatiq.get_encoder()
    dramatiq.set_encoder(dramatiq.PickleEncoder())
    yield
    dramatiq.set_encoder(before)


def test_ten_megabytes(arrive: Callable[..., Any]) -> None:
    text = "".join(hashlib.sha256(str(number).encode()).hexdigest() for number in range(10 * 2**20 // 64))
    (args, _) = arrive(text)
    assert args == (text,)


@pytest.mark.parametrize(
    "value",
    ["🦊🏳️‍🌈 naïve 日本語 \u202e", "\x00\r\n$3\r\n", {"ключ": ["🦊", None, 1.5, True]}, "\ud800", ""],
    ids=["emoji", "protocol bytes", "nested", "lone surrogate", "empty"],
)
def test_text_of_any_kind(arrive: Callable[..., Any], value: Any) -> None:
    assert arrive(value, name=value) == ((value,), {"name": value})


@pytest.mark.usefixtures("_pickled")
@pytest.mark.parametrize("value", [bytes(range(256)) * 100, {1, 2}, b"\xff\xfe", ("a", 1j)], ids=repr)
def test_binary_through_the_pickle_encoder(arrive: Callable[..., Any], value: Any) -> None:
    assert arrive(value) == ((value,), {})
