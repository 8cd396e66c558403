"""Pickle: only what is signed with the key is read."""

from __future__ import annotations

import pickle
import threading
from dataclasses import make_dataclass
from typing import Any

import pytest

from echomq_tasks import Connection, cached
from echomq_tasks.cache.pickled import PickleCodec
from echomq_tasks.errors import InvalidArgument, Undecodable, Unencodable

# -- pickle -------------------------------------------------------------------------------------------------------

SECRET = b"0123456789abcdef"
RAN: list[int] = []


def run() -> None:
    RAN.append(1)


class Bomb:
    def __reduce__(self) -> Any:
        return (run, ())


def test_a_pickle_that_is_not_signed_with_the_key_is_not_read() -> None:
    codec = PickleCodec(SECRET)
    bomb = pickle.dumps(Bomb())
    forged = [bomb, b"P" + bytes(32) + bomb, PickleCodec(b"another key of 16").encode(Bomb()), b"P" + bomb, b"P", b""]
    compressed = codec.encode(Bomb())
    forged.append(b"p" + compressed[1:])
    for row in forged:
        with pytest.raises(Undecodable, match="no pickle signed with this key"):
            codec.decode(row)
    assert not RAN
    codec.decode(compressed)
    assert RAN == [1]


def test_a_pickle_whose_class_is_gone_is_undecodable() -> None:
    codec = PickleCodec(SECRET)
    kind = make_dataclass("Gone", [])
    kind.__module__, globals()["Gone"] = __name__, kind
    row = codec.encode(kind())
    del globals()["Gone"]
    with pytest.raises(Undecodable, match="Gone"):
        codec.decode(row)


@pytest.mark.parametrize("value", [threading.Lock(), lambda: None, (x for x in ())])
def test_what_cannot_be_pickled_is_unencodable(value: Any) -> None:
    with pytest.raises(Unencodable, match="pickle cannot keep"):
        PickleCodec(SECRET).encode([value])


@pytest.mark.parametrize("key", [b"", b"short", "0123456789abcdef", None, bytearray(32)])
def test_a_key_that_is_no_secret_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(InvalidArgument, match="secret of at least 16 bytes") as caught:
        PickleCodec(key)
    assert "short" not in str(caught.value)


def test_a_long_key_counts_as_a_whole() -> None:
    row = PickleCodec(b"k" * 100).encode(1)
    assert PickleCodec(b"k" * 100).decode(row) == 1
    with pytest.raises(Undecodable):
        PickleCodec(b"k" * 99 + b"x").decode(row)


def test_a_pickle_is_signed_for_its_row() -> None:
    codec = PickleCodec(SECRET)
    mine = codec.for_row(b"table:one").encode("mine")
    assert codec.for_row(b"table:one").decode(mine) == "mine"
    for other in (codec, codec.for_row(b"table:two"), codec.for_row(b""), codec.for_row(b"table:oneP")):
        with pytest.raises(Undecodable):
            other.decode(mine)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_row_that_was_moved_to_another_key_is_a_miss(
    standalone: Connection, queue_name: str, isolate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def rights(user: str) -> list[str]:
        return [user]

    codec = PickleCodec(SECRET)
    one, two = (
        cached(name=f"{queue_name}-{number}", connection=standalone, codec=codec, isolate=isolate)(rights)
        for number in range(2)
    )
    assert (one("root"), one("root"), one.peek("root")) == (["root"], ["root"], ["root"])
    assert one.put("admin", ["admin", "x"])
    assert one("admin") == ["admin", "x"]
    key, mine, other = one.key_for("root"), one.key_for("guest"), two.key_for("root")
    client: Any = standalone.client
    row = client.get(f"ecc:{{{one.table.name}}}:{key.id}")
    # As the row of another call, with the digest of that call, and as that of the same call in another table.
    client.set(f"ecc:{{{one.table.name}}}:{mine.id}", row[:14] + mine.rest + row[14 + 16 :])
    client.set(f"ecc:{{{two.table.name}}}:{other.id}", row)
    assert one.peek("guest") is two.peek("root") is None
    assert (one("guest"), two("root")) == (["guest"], ["root"])
    assert (one.table.stats().loads, two.table.stats().loads) == (2, 1)
    assert "no pickle signed with this key" in caplog.text
