"""A user who may not use the server's cache has one without it, and the log says once what is missing."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks import cached, connect
from echomq_tasks.cache import line

#: What the user may, and what the log must name.
USERS = {
    "no keys": ("~emq:* ~{emq}:* &* +@all", "~ecc:*"),
    "keys to read only": ("~emq:* ~{emq}:* %R~ecc:* &* +@all", "~ecc:*"),
    "no channels": ("~* resetchannels &emq:* +@all", "&ecc:*"),
    "no scripts": ("~* &* +@all -evalsha", "'evalsha'"),
    "no PUBLISH": ("~* &* +@all -publish", "'publish'"),
    "no SUBSCRIBE": ("~* &* +@all -subscribe", "'subscribe'"),
}


def denied(server: ServerProcess) -> int:
    """How often the server has refused something."""
    return sum(int(entry["count"]) for entry in server.client().acl_log())


def allow(server: ServerProcess, rules: str) -> str:
    """The URL of a user who may do that."""
    server.client().execute_command(*f"ACL SETUSER app reset on >secret {rules}".split())
    return f"valkey://app:secret@127.0.0.1:{server.port}"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the cache has logged."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("echomq_tasks.cache")]


@pytest.mark.parametrize("user", USERS)
def test_the_cache_of_a_user_who_may_not_have_one_goes_on_and_says_what_is_missing(
    own_server: ServerProcess,
    queue_name: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    user: str,
) -> None:
    # A channel that was refused is asked for again every few seconds.
    monkeypatch.setattr(line, "_REFUSED", 0.1)
    rules, missing = USERS[user]
    numbers = iter(range(10_000))

    def doubled(x: int) -> int:
        return 2 * x

    with connect(allow(own_server, rules)) as connection:
        # Of two tables one is enough to say it.
        one, two = (cached(name=f"{queue_name}.{n}", connection=connection, tags=("all",))(doubled) for n in range(2))

        async def later(x: int) -> int:
            return doubled(x)

        alater = cached(name=f"{queue_name}.later", connection=connection)(later)

        def use() -> bool:
            x = next(numbers)
            assert [one(x), one(x), two(x), asyncio.run(alater(x))] == [2 * x] * 4
            assert one.invalidate(x) is False
            return denied(own_server) >= 3

        # The first call, and some more when it is tried again.
        eventually(use)
        assert one.put(1, 7) is False
        assert (one(1), one.peek(1)) == (7, 7)
        assert one.invalidate(1) is False
        assert one(1) == 2
        assert one.refresh(1) == 2
        assert (one.invalidate_tags("all"), one.cache_clear()) == (False, False)
        assert one(1) == 2
        assert one.cache_info().stats.away
        said = [text for text in lines(caplog) if missing in text]
        assert len(said) >= 1
        assert lines(caplog) == list(dict.fromkeys(said))
        # Who may do something, and not put, drop or clear, is told of each.
        assert len(said) <= (4 if user == "no PUBLISH" else 1)
        assert all("goes on without" in text and "docs/operations.md" in text for text in said)

        # What it lacked is given to it.
        allow(own_server, "~* &* +@all")
        caplog.set_level(logging.ERROR)

        def back() -> Any:
            x = next(numbers)
            one(x)
            return not one.cache_info().stats.away and one.cache_info().stats.l2_hits + one.invalidate(x)

        eventually(back)
        assert two(1) == 2
