"""Streams: what many tasks of an event loop ask on one connection, and what becomes of them when it breaks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import hiredis
import pytest
import redis
from support.children import in_child
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import ServerUnavailable
from echomq_tasks.queue import Queue
from echomq_tasks.scripts import streams as module
from echomq_tasks.scripts.stream import Stream
from echomq_tasks.scripts.streams import Streams

LIST = "a-list-that-nobody-else-has"
#: So often a loop asks, that it gets a stream where there can be one.
OFTEN = 20


def packed(*command: str | bytes | int) -> bytes:
    done: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return done


async def elsewhere(function: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(function)


async def opened(connection: Connection) -> Stream:
    streams = Streams.of(connection)
    while (stream := streams.here() or await streams.begin(elsewhere)) is None:
        pass
    return stream


async def asked(stream: Stream, *commands: bytes) -> list[asyncio.Task[list[Any]]]:
    """Tasks that have asked, and wait."""
    tasks = [asyncio.create_task(stream.ask(command, 1)) for command in commands]
    await asyncio.sleep(0)
    return tasks


def run(connection: Connection, main: Callable[[Stream], Awaitable[Any]]) -> Any:
    async def opening() -> Any:
        return await main(await opened(connection))

    return asyncio.run(opening())


def test_what_many_tasks_ask_is_answered_to_each(standalone: Connection) -> None:
    async def main(stream: Stream) -> None:
        texts = [f"{number}" for number in range(500)]
        answers = await asyncio.gather(*(stream.ask(packed("ECHO", text), 1) for text in texts))
        assert answers == [[text.encode()] for text in texts]
        several = packed("ECHO", "a") + packed("NO-SUCH-COMMAND") + packed("ECHO", "b")
        first, refusal, last = await stream.ask(several, 3)
        assert (first, last) == (b"a", b"b")
        assert isinstance(refusal, redis.ResponseError)

    run(standalone, main)


def test_what_does_not_fit_into_the_socket_is_sent_when_it_does(standalone: Connection) -> None:
    texts = [bytes([letter]) * (4 << 20) for letter in b"abc"] + [b"d"]

    async def main(stream: Stream) -> None:
        assert await asyncio.gather(*(stream.ask(packed("ECHO", text), 1) for text in texts)) == [
            [text] for text in texts
        ]
        assert await stream.ask(packed("ECHO", "e"), 1) == [b"e"]

    run(standalone, main)


def test_whoever_is_cancelled_disturbs_nobody(standalone: Connection) -> None:
    async def main(stream: Stream) -> None:
        waits, behind = await asked(stream, packed("BLPOP", LIST, 0), packed("ECHO", "mine"))
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        await asyncio.to_thread(standalone.client.rpush, LIST, "item")
        assert await behind == [b"mine"]
        assert not stream.closed

    run(standalone, main)


def test_when_it_breaks_all_who_wait_are_told_and_the_next_has_another(standalone: Connection) -> None:
    async def main(stream: Stream) -> None:
        [own] = await stream.ask(packed("CLIENT", "ID"), 1)
        waiting = await asked(stream, packed("BLPOP", LIST, 0), packed("ECHO", "behind"))
        await asyncio.to_thread(standalone.client.client_kill_filter, _id=own)
        for each in waiting:
            with pytest.raises(ServerUnavailable, match="failed before an answer came") as caught:
                await each
            assert isinstance(caught.value.__cause__, redis.ConnectionError)
        with pytest.raises(ServerUnavailable):
            await stream.ask(packed("ECHO", "late"), 1)
        assert Streams.of(standalone).here() is None
        another = await opened(standalone)
        assert another is not stream
        assert await another.ask(packed("ECHO", "again"), 1) == [b"again"]

    run(standalone, main)


def test_whoever_waits_too_long_is_told_so_and_all_behind_him(server: ServerProcess) -> None:
    async def main(stream: Stream) -> None:
        assert await stream.ask(packed("ECHO", "in time"), 1) == [b"in time"]
        for each in await asked(stream, packed("BLPOP", LIST, 0), packed("ECHO", "behind")):
            with pytest.raises(ServerUnavailable, match=r"no answer within 0\.2 seconds") as caught:
                await each
            assert isinstance(caught.value.__cause__, redis.TimeoutError)
        assert stream.closed

    with connect(server.url, timeout=0.2) as connection:
        run(connection, main)


def test_to_close_the_connection_ends_those_who_wait_in_other_threads(standalone: Connection) -> None:
    began, name = threading.Event(), b"a-stream-of-this-test"

    async def main(stream: Stream) -> None:
        await stream.ask(packed("CLIENT", "SETNAME", name), 1)
        [waiting] = await asked(stream, packed("BLPOP", LIST, 0))
        began.set()
        with pytest.raises(ServerUnavailable, match="it was closed"):
            await waiting

    with Connection(standalone.config) as connection:
        results: list[Any] = []
        thread = threading.Thread(target=lambda: results.append(run(connection, main)))
        thread.start()
        assert began.wait(20)
        connection.close()
        thread.join(20)
        assert results == [None]
        # The event loop has ended; nothing of it is left, nor waits for the collector.
        eventually(lambda: name.decode() not in [each["name"] for each in standalone.client.client_list()])


def test_a_loop_that_asks_seldom_gets_none_and_each_other_one_its_own(standalone: Connection) -> None:
    streams, seen = Streams.of(standalone), []

    async def main(times: int) -> None:
        found = [streams.here() or await streams.begin(elsewhere) for _ in range(times)]
        few = module._FEW  # noqa: SLF001
        assert found[:few] == [None] * few
        assert len(set(found[few:])) <= 1
        seen.extend(found[few : few + 1])

    for _ in range(2):
        asyncio.run(main(module._FEW))  # noqa: SLF001
        asyncio.run(main(module._FEW + 3))  # noqa: SLF001
    assert len(set(seen)) == 2
    assert None not in seen


@pytest.mark.cluster
def test_a_cluster_has_none(connection: Connection) -> None:
    streams = Streams.of(connection)

    async def main() -> list[Stream | None]:
        return [await streams.begin(elsewhere) for _ in range(OFTEN)]

    assert any(asyncio.run(main())) != connection.is_cluster


def test_there_is_none_where_the_socket_is_not_plain(standalone: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "plain_socket", lambda _: None)
    dialled: list[Any] = []
    fresh = Connection.fresh
    monkeypatch.setattr(Connection, "fresh", lambda *args, **more: dialled.append(made := fresh(*args, **more)) or made)

    async def main() -> list[Stream | None]:
        return [await Streams.of(standalone).begin(elsewhere) for _ in range(OFTEN)]

    assert asyncio.run(main()) == [None] * OFTEN
    [one] = dialled
    assert one._sock is None  # noqa: SLF001 - it was closed


class Blind(asyncio.SelectorEventLoop):
    """An event loop that watches no sockets, as one on Windows does not."""

    def add_reader(self, *_: Any) -> None:
        raise NotImplementedError


def test_there_is_none_in_a_loop_that_watches_no_sockets(standalone: Connection) -> None:
    async def main() -> list[Stream | None]:
        return [await Streams.of(standalone).begin(elsewhere) for _ in range(OFTEN)]

    with asyncio.Runner(loop_factory=_blind) as runner:
        assert runner.run(main()) == [None] * OFTEN


def _blind() -> asyncio.AbstractEventLoop:
    loop = Blind.__new__(Blind)
    # Its own pipe is watched as everywhere.
    add = asyncio.SelectorEventLoop._add_reader  # type: ignore[attr-defined]  # noqa: SLF001
    loop._add_reader = lambda *args: add(loop, *args)  # type: ignore[attr-defined]  # noqa: SLF001
    Blind.__init__(loop)
    return loop


def test_a_server_that_is_away_is_not_dialled_for_each_question(
    own_server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAUSE", 1000.0)
    with connect(own_server.url) as connection:
        tries = 0

        async def counted(function: Callable[[], Any]) -> Any:
            nonlocal tries
            tries += 1
            return await asyncio.to_thread(function)

        async def main() -> list[Stream | None]:
            return [await Streams.of(connection).begin(counted) for _ in range(OFTEN)]

        own_server.kill()
        assert asyncio.run(main()) == [None] * OFTEN
        assert tries == 1


def test_a_demoted_master_is_left(own_server: ServerProcess, server: ServerProcess, queue_name: str) -> None:
    async def main(stream: Stream) -> None:
        queue = Queue(queue_name, connection)
        await asyncio.to_thread(queue.enqueue, "1")
        await asyncio.to_thread(own_server.client().replicaof, "127.0.0.1", str(server.port))
        with pytest.raises(ServerUnavailable, match=r"READONLY|read only"):
            await asyncio.to_thread(queue.enqueue, "2")
        await asyncio.to_thread(eventually, lambda: stream.closed)
        await asyncio.to_thread(own_server.client().replicaof, "NO", "ONE")
        assert await (await opened(connection)).ask(packed("ECHO", "again"), 1) == [b"again"]

    with connect(own_server.url) as connection:
        run(connection, main)


def test_a_child_of_a_fork_leaves_its_parents_alone(standalone: Connection) -> None:
    def child() -> Any:
        return run(standalone, lambda stream: stream.ask(packed("ECHO", "child"), 1))

    async def main(stream: Stream) -> None:
        [waiting] = await asked(stream, packed("BLPOP", LIST, 0))
        assert in_child_without_loop(child) == [b"child"]
        assert Streams.of(standalone).here() is stream
        await asyncio.to_thread(standalone.client.rpush, LIST, "item")
        assert await waiting == [[LIST.encode(), b"item"]]

    run(standalone, main)


def in_child_without_loop(function: Callable[[], Any]) -> Any:
    """A child that no event loop runs in, as of a process that does not fork inside of one."""

    def clean() -> Any:
        asyncio.events._set_running_loop(None)  # noqa: SLF001
        return function()

    return in_child(clean)
