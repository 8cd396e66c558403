"""Following a log: what is there, then each record as it comes, over every fault of the connection, once each."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from freezegun import freeze_time
from support.children import Child, in_child
from support.clusters import ClusterProcess
from support.counting import blocked
from support.eventually import eventually
from support.proxy import DroppingProxy
from support.servers import ServerProcess

from echomq_tasks.bus import JsonCodec, Log, Record, Tail
from echomq_tasks.bus import blocking as blocking_module
from echomq_tasks.bus import tail as tail_module
from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidId, ServerUnavailable, WrongState
from echomq_tasks.keyspace import slot

#: Seconds; far more than any wait here takes when all is well.
LONG = 20.0


@pytest.fixture
def log(connection: Connection, queue_name: str) -> Log:
    return Log(queue_name, "log", connection)


class Collecting:
    """A thread that follows a tail."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.records: list[Record] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.records.extend(self.tail)
        except BaseException as error:
            self.error = error

    def texts(self) -> list[str]:
        """The field `n` of what came."""
        return [record.fields["n"] for record in self.records]

    def ended(self) -> bool:
        """Whether the iteration is over."""
        self._thread.join(LONG)
        return not self._thread.is_alive()


@contextmanager
def following(tail: Tail) -> Iterator[Collecting]:
    collecting = Collecting(tail)
    try:
        yield collecting
    finally:
        tail.close()
        assert collecting.ended()


def test_a_tail_gives_what_is_there_and_then_what_comes(log: Log) -> None:
    first = log.append_many([{"n": str(each)} for each in range(350)])
    with following(log.tail("head")) as found:
        eventually(lambda: len(found.records) == 350)
        second = log.append_many([{"n": str(each)} for each in range(350, 700)])
        eventually(lambda: len(found.records) >= 700)
    assert [record.id for record in found.records] == first + second
    assert found.error is None


def test_new_is_what_is_appended_after_the_call(log: Log) -> None:
    for each in range(3):
        log.append({"n": "before"})
        with log.tail(timeout=LONG) as tail:
            log.append({"n": str(each)})
            assert next(tail).fields == {"n": str(each)}


def test_new_is_behind_what_was_trimmed_away(log: Log) -> None:
    log.connection.client.xadd(log.key, {"n": "0"}, id="3000000000000-5")
    log.connection.client.xtrim(log.key, maxlen=0)
    with log.tail(timeout=LONG) as tail:
        evt = log.append({"n": "1"})
        assert next(tail).id == evt


def test_a_tail_begins_at_a_record_behind_one_or_at_a_time(log: Log) -> None:
    ids = [log.append({"n": str(each)}) for each in range(4)]
    records = list(log.read())

    def follow(**where: Any) -> list[str | None]:
        with log.tail(follow=False, **where) as tail:
            return [record.id for record in tail]

    assert follow(start="head") == ids
    assert follow() == []
    assert follow(start=ids[1]) == follow(start=records[1].stream_id) == ids[1:]
    assert follow(after=ids[1]) == ids[2:]
    assert follow(start=datetime.fromtimestamp(records[0].at, UTC)) == ids
    assert follow(start=records[-1].at + 1) == follow(after=ids[-1]) == []


@pytest.mark.parametrize(
    "where",
    [{"start": "yesterday"}, {"start": ""}, {"after": "head"}, {"start": "head", "after": "0-1"}, {"timeout": -1}],
)
def test_a_malformed_tail_is_refused_at_once(log: Log, where: dict[str, Any]) -> None:
    for make in (log.tail, log.atail):
        with pytest.raises((InvalidArgument, InvalidId)):
            make(**where)


def test_a_tail_ends_when_nothing_comes_in_time_also_when_clocks_stand_still(log: Log) -> None:
    log.append({"n": "0"})
    with freeze_time("2026-01-01"), log.tail("head", timeout=0.05) as tail:
        assert [record.fields["n"] for record in tail] == ["0"]
        log.append({"n": "1"})
        # Its patience begins anew.
        assert [record.fields["n"] for record in tail] == ["1"]


def test_closing_a_tail_ends_a_thread_that_waits_and_frees_its_connection(log: Log) -> None:
    tail = log.tail()
    found = Collecting(tail)
    eventually(lambda: blocked(log.connection))
    tail.close()
    assert found.ended()
    assert (found.records, found.error) == ([], None)
    eventually(lambda: not blocked(log.connection))
    tail.close()
    assert list(tail) == []


def test_a_closed_tail_gives_nothing_of_what_it_had_read(log: Log) -> None:
    log.append_many([{"n": str(each)} for each in range(10)])
    with log.tail("head") as tail:
        assert next(tail).fields == {"n": "0"}
    assert list(tail) == []


def test_threads_that_share_a_tail_share_its_records(log: Log) -> None:
    ids = log.append_many([{"n": str(each)} for each in range(500)])
    with log.tail("head", follow=False) as tail, ThreadPoolExecutor(4) as pool:
        shares = list(pool.map(lambda _: [record.id for record in tail], range(4)))
    assert sorted(evt for share in shares for evt in share if evt) == ids


def test_an_exception_thrown_into_a_waiting_tail_loses_nothing(log: Log) -> None:
    tail = log.tail()

    def interrupt() -> None:
        eventually(lambda: blocked(log.connection))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    stranger = threading.Thread(target=interrupt)
    stranger.start()
    with pytest.raises(KeyboardInterrupt):
        next(tail)
    stranger.join()
    evt = log.append({"n": "0"})
    assert next(tail).id == evt
    tail.close()


def test_values_come_decoded(connection: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", connection, JsonCodec())
    with log.tail(timeout=LONG) as tail:
        log.append({"order": 7})
        assert next(tail).value == {"order": 7}


# -- faults ---------------------------------------------------------------------------------------------------------


def test_a_connection_that_drops_in_the_middle_of_a_wait_loses_and_doubles_nothing(
    proxy: DroppingProxy, standalone: Connection, queue_name: str
) -> None:
    writer = Log(queue_name, "log", standalone)
    with connect(proxy.url) as connection, following(Log(queue_name, "log", connection).tail("head")) as found:
        # A server that it cannot even get to at first is another case.
        eventually(lambda: blocked(standalone))
        for each in range(0, 40, 4):
            proxy.cut_all()
            writer.append_many([{"n": str(each + more)} for more in range(3)])
            eventually(lambda: blocked(standalone))
            proxy.cut_all()
            writer.append({"n": str(each + 3)})
        eventually(lambda: len(found.records) >= 40)
    assert found.texts() == [str(each) for each in range(40)]
    assert found.error is None


def test_a_connection_that_only_dropped_is_no_news(
    proxy: DroppingProxy, standalone: Connection, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Log(queue_name, "log", standalone)
    with connect(proxy.url) as connection, following(Log(queue_name, "log", connection).tail("head")) as found:
        eventually(lambda: blocked(standalone))
        proxy.cut_all()
        writer.append({"n": "0"})
        eventually(lambda: found.records)
    assert [entry for entry in caplog.records if entry.levelno >= logging.WARNING] == []


def test_a_server_that_drops_the_very_first_read_is_there_all_the_same(
    proxy: DroppingProxy, standalone: Connection, queue_name: str
) -> None:
    Log(queue_name, "log", standalone).append({"n": "0"})
    with connect(proxy.url) as connection, Log(queue_name, "log", connection).tail("head", timeout=LONG) as tail:
        proxy.drop_reply(b"XREAD", times=2)
        assert next(tail).fields == {"n": "0"}


def test_a_log_that_is_begun_anew_below_is_followed_from_its_new_head(
    log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tail_module, "_BLOCK", 0.05)
    client = log.connection.client
    log.append({"n": "0"})
    with following(log.tail("head")) as found, following(log.tail()) as behind_it:
        # By a writer whose clock is far ahead.
        client.xadd(log.key, {"n": "1"}, id="3000000000000-5")
        eventually(lambda: found.texts() == ["0", "1"] and behind_it.texts() == ["1"])
        client.delete(log.key)
        log.append({"n": "2"})
        log.append({"n": "3"})
        eventually(lambda: found.texts() == ["0", "1", "2", "3"] and behind_it.texts() == ["1", "2", "3"])
        # And whatever was there before.
        client.delete(log.key)
        client.xadd(log.key, {"n": "4"}, id="5-1")
        eventually(lambda: found.texts()[4:] == ["4"] and behind_it.texts()[3:] == ["4"])
    assert "its tail goes on from its new head" in caplog.text


def test_a_log_that_is_begun_anew_is_noticed_also_by_who_does_not_wait(log: Log) -> None:
    with log.tail(follow=False) as nothing, log.tail("head", follow=False) as tail:
        log.connection.client.xadd(log.key, {"n": "0"}, id="3000000000000-5")
        assert [record.fields["n"] for record in tail] == ["0"]
        log.connection.client.delete(log.key)
        log.append({"n": "1"})
        assert [record.fields["n"] for record in tail] == ["1"]
        assert [record.fields["n"] for record in nothing] == ["1"]


def test_a_log_that_lost_its_end_is_followed_without_doubles(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail_module, "_BLOCK", 0.05)
    client = log.connection.client
    with following(log.tail("head")) as found:
        log.append_many([{"n": str(each)} for each in range(3)])
        kept = client.dump(log.key)
        client.xadd(log.key, {"n": "3"}, id="3000000000000-5")
        eventually(lambda: len(found.records) == 4)
        # As after a failover to a replica that was behind.
        client.restore(log.key, 0, kept, replace=True)
        log.append({"n": "4"})
        eventually(lambda: len(found.records) == 5)
    assert found.texts() == list("01234")


def test_a_place_that_the_log_has_not_reached_yet_is_waited_for(log: Log) -> None:
    log.append({"n": "0"})
    with log.tail(start="3000000000000-5", timeout=0.1) as tail:
        assert list(tail) == []
        log.append({"n": "1"})
        assert list(tail) == []


def test_a_reply_that_is_lost_is_read_again(proxy: DroppingProxy, standalone: Connection, queue_name: str) -> None:
    writer = Log(queue_name, "log", standalone)
    with connect(proxy.url) as connection:
        ids = writer.append_many([{"n": str(each)} for each in range(250)])
        tail = Log(queue_name, "log", connection).tail("head", timeout=LONG)
        assert next(tail).id == ids[0]
        proxy.drop_reply(b"XREAD")
        proxy.drop_request(b"XREAD", times=2)
        assert [next(tail).id for _ in range(249)] == ids[1:]
        assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 3
        tail.close()


def test_a_restart_of_the_server_loses_and_doubles_nothing(
    own_server: ServerProcess, queue_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"n": "0"})
        with following(log.tail("head")) as found:
            eventually(lambda: blocked(connection))
            own_server.kill()
            eventually(lambda: "tries to get back" in caplog.text)
            own_server.start()
            eventually(lambda: log.append({"n": "1"}))
            eventually(lambda: len(found.records) == 2)
    assert found.texts() == ["0", "1"]
    assert caplog.text.count("tries to get back") == 1


def test_a_server_that_is_away_from_the_start_is_told_at_once(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        tail = log.tail("head")
        own_server.kill()
        for step in (log.tail, tail.__next__, log.tail("head", follow=False).__next__):
            with pytest.raises(ServerUnavailable):
                step()
        own_server.start()
        assert eventually(lambda: log.append({"n": "0"}))
        assert next(tail).fields == {"n": "0"}
        tail.close()


def test_a_tail_whose_time_is_up_while_the_server_is_away_says_so(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"n": "0"})
        tail = log.tail("head", timeout=0.2)
        next(tail)
        own_server.kill()
        with pytest.raises(ServerUnavailable):
            next(tail)
        tail.close()


def test_a_tail_closed_while_the_server_is_away_ends(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"n": "0"})
        with following(log.tail("head")) as found:
            eventually(lambda: blocked(connection))
            own_server.kill()
        assert found.error is None


def test_a_server_that_hangs_is_left_when_its_time_is_up(
    own_server: ServerProcess, queue_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tail_module, "_BLOCK", 0.05)
    monkeypatch.setattr(blocking_module, "GRACE", 0.1)
    with connect(own_server.url, timeout=0.3, connect_timeout=0.3) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"n": "0"})
        with following(log.tail("head")) as found:
            eventually(lambda: found.texts() == ["0"])
            with own_server.hung():
                eventually(lambda: "tries to get back" in caplog.text)
            eventually(lambda: _append(log, "1"))
            eventually(lambda: found.texts() == ["0", "1"])


def test_what_waiting_does_not_mend_ends_it_with_an_error(standalone: Connection, queue_name: str) -> None:
    log = Log(queue_name, "log", standalone)
    log.append({"n": "0"})
    found = Collecting(log.tail("head"))
    eventually(lambda: blocked(standalone))
    standalone.client.set(log.key, "something else")
    # A server may tell those who wait of the change; else they meet it when they look again.
    for client in blocked(standalone):
        standalone.client.client_unblock(int(client))
    assert found.ended()
    assert isinstance(found.error, WrongState)
    found.tail.close()


def test_a_forked_child_follows_on_its_own(log: Log) -> None:
    log.append_many([{"n": str(each)} for each in range(3)])
    with log.tail("head", timeout=LONG) as tail:
        assert next(tail).fields == {"n": "0"}
        child = Child(lambda: [next(tail).fields["n"] for _ in range(3)])
        log.append({"n": "3"})
        assert child.result() == ["1", "2", "3"]
        assert [next(tail).fields["n"] for _ in range(3)] == ["1", "2", "3"]
        # One that was closed in a child is open here.
        in_child(tail.close)
        log.append({"n": "4"})
        assert next(tail).fields["n"] == "4"


@pytest.mark.cluster
def test_a_tail_goes_with_its_slot_to_another_node(cluster: ClusterProcess, queue_name: str) -> None:
    cluster.flush()
    number = slot(f"emq:{{{queue_name}}}:")
    with connect(cluster.url) as connection:
        log = Log(queue_name, "log", connection)
        log.append({"n": "0"})
        ids = [node.client().execute_command("CLUSTER MYID").decode() for node in cluster.nodes]
        owner = next(place for place, node in enumerate(cluster.nodes) if _has(node, log.key))
        source, target = cluster.nodes[owner], cluster.nodes[(owner + 1) % 3]
        with following(log.tail("head")) as found:
            eventually(lambda: blocked(connection))
            target.client().execute_command("CLUSTER SETSLOT", number, "IMPORTING", ids[owner])
            source.client().execute_command("CLUSTER SETSLOT", number, "MIGRATING", ids[(owner + 1) % 3])
            for key in source.client().execute_command("CLUSTER GETKEYSINSLOT", number, 100):
                source.client().execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
            for node in (target, source, *cluster.nodes):
                node.client().execute_command("CLUSTER SETSLOT", number, "NODE", ids[(owner + 1) % 3])
            eventually(lambda: _append(log, "1"), LONG)
            eventually(lambda: found.texts() == ["0", "1"], LONG)


def _has(node: ServerProcess, key: bytes) -> bool:
    try:
        return bool(node.client().exists(key))
    except redis.ResponseError:
        return False


def _append(log: Log, text: str) -> bool:
    try:
        return bool(log.append({"n": text}))
    except ServerUnavailable:
        return False


# -- async ----------------------------------------------------------------------------------------------------------


def test_an_async_tail_gives_what_is_there_and_what_comes(log: Log) -> None:
    async def follow() -> list[str]:
        found = []
        async with log.atail() as tail:
            log.append_many([{"n": str(each)} for each in range(300)])
            async for record in tail:
                found.append(record.fields["n"])
                if len(found) == 300:
                    log.append({"n": "last"})
                if record.fields["n"] == "last":
                    break
        return found

    assert asyncio.run(follow()) == [*(str(each) for each in range(300)), "last"]
    eventually(lambda: not blocked(log.connection))


def test_a_step_that_is_cancelled_loses_nothing_and_holds_nothing(log: Log) -> None:
    async def follow() -> list[str]:
        found = []
        async with log.atail("head") as tail:
            for each in range(5):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(tail), 0.02)
                log.append({"n": str(each)})
                found.append((await anext(tail)).fields["n"])
            step = asyncio.ensure_future(anext(tail))
            await asyncio.sleep(0)
            step.cancel()
            with pytest.raises(asyncio.CancelledError):
                await step
        assert [record async for record in tail] == []
        return found

    assert asyncio.run(follow()) == list("01234")
    eventually(lambda: not blocked(log.connection))


def test_many_async_tails_wait_at_once_without_holding_the_loops_own_threads(
    standalone: Connection, queue_name: str
) -> None:
    log = Log(queue_name, "log", standalone)

    async def one() -> str:
        async with log.atail("head", timeout=LONG) as tail:
            return (await anext(tail)).fields["n"]

    async def all_of_them() -> list[str]:
        waiting = [asyncio.ensure_future(one()) for _ in range(40)]
        await asyncio.to_thread(eventually, lambda: len(blocked(standalone)) == 40)
        await asyncio.to_thread(log.append, {"n": "0"})
        return await asyncio.gather(*waiting)

    assert asyncio.run(all_of_them()) == ["0"] * 40


def test_an_async_tail_ends_in_time_and_when_it_is_closed(log: Log) -> None:
    async def follow() -> None:
        log.append({"n": "0"})
        async with log.atail("head", follow=False) as tail:
            assert [record.fields["n"] async for record in tail] == ["0"]
        async with log.atail(timeout=0.05) as tail:
            assert [record async for record in tail] == []
        tail = log.atail()
        step = asyncio.ensure_future(anext(tail, None))
        await asyncio.to_thread(eventually, lambda: blocked(log.connection))
        await tail.aclose()
        assert await step is None

    asyncio.run(follow())


def test_an_async_tail_of_a_server_that_is_away_says_so(own_server: ServerProcess, queue_name: str) -> None:
    async def follow(log: Log) -> None:
        async with log.atail():
            raise AssertionError("it is away")

    with connect(own_server.url) as connection:
        log = Log(queue_name, "log", connection)
        own_server.kill()
        with pytest.raises(ServerUnavailable):
            asyncio.run(follow(log))


@pytest.mark.parametrize(
    "main",
    [
        "loop = asyncio.new_event_loop(); task = loop.create_task(follow()); loop.call_later(0.3, loop.stop); "
        "loop.run_forever()",
        "asyncio.run(asyncio.wait_for(first(), 20))",
    ],
    ids=["its loop stopped while it waited", "left open behind a record"],
)
def test_an_async_tail_that_nobody_closes_does_not_keep_the_interpreter_from_ending(
    server: ServerProcess, standalone: Connection, queue_name: str, main: str
) -> None:
    Log(queue_name, "log", standalone).append({"n": "0"})
    code = f"""
import asyncio
from echomq_tasks.bus import Log
from echomq_tasks.connection import connect
log = Log({queue_name!r}, "log", connect({server.url!r}))
async def follow():
    async for record in log.atail():
        pass
async def first():
    async for record in log.atail("head"):
        break
{main}
print("ends", flush=True)
"""
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, env=environ)
    assert (ended.returncode, ended.stdout) == (0, "ends\n")


def test_an_async_tail_that_is_dropped_leaves_no_thread(log: Log) -> None:
    async def follow() -> None:
        tail = log.atail("head", follow=False)
        assert [record async for record in tail] == []

    asyncio.run(follow())
    eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("echomq-tail")])
