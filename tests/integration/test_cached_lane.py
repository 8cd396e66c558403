"""``coherence="lane"``: what is put and dropped also goes out as jobs, at least once."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from support.children import in_child
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks import Connection, Queue, cached, connect
from echomq_tasks.cache.frames import coherence_message
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import coherence_queue
from echomq_tasks.queue import State

USER = brand("USR", 7)
NEWER, OLDER = brand("USR", 2**62), brand("USR", 1)


def user(id: str) -> dict[str, str]:
    return {"id": id}


def lane_of(connection: Connection, name: str) -> Any:
    return cached(name=name, kind="USR", connection=connection, coherence="lane")(user)


def now(connection: Connection) -> float:
    """By the server's clock."""
    seconds, microseconds = connection.client.time()
    return float(seconds) + float(microseconds) / 1e6


def threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "echomq-cache-lane"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    # This is torn down last: the fixtures have closed their connections, with which the threads end.
    eventually(lambda: threads() == [])


def test_what_another_runtime_enqueues_is_applied_to_both_layers(connection: Connection, queue_name: str) -> None:
    function = lane_of(connection, queue_name)
    assert function(USER) == {"id": USER}
    row = f"ecc:{{{queue_name}}}:{USER}"
    queue = Queue(coherence_queue(queue_name), connection)
    queue.enqueue(coherence_message(USER, OLDER))
    eventually(lambda: queue.metrics().completed == 1)
    assert connection.client.exists(row)
    assert function.peek(USER) == {"id": USER}
    queue.enqueue(coherence_message(USER, NEWER))
    eventually(lambda: queue.metrics().completed == 2)
    assert not connection.client.exists(row)
    assert function.peek(USER) is None


def test_a_message_that_is_none_goes_to_dead_and_the_next_one_is_applied(
    standalone: Connection, queue_name: str
) -> None:
    function = lane_of(standalone, queue_name)
    function(USER)
    queue = Queue(coherence_queue(queue_name), standalone)
    queue.enqueue(b"not a message")
    queue.enqueue(coherence_message(USER, NEWER))
    eventually(lambda: (queue.metrics().completed, queue.counts().dead) == (1, 1))
    dead = queue.get(queue.browse(State.DEAD)[0])
    assert dead is not None
    assert "29 bytes" in (dead.last_error or "")
    assert function.peek(USER) is None


def test_what_is_put_and_dropped_is_sent_and_no_job_is_left(standalone: Connection, queue_name: str) -> None:
    one, two = lane_of(standalone, queue_name), lane_of(standalone, queue_name)
    queue = Queue(coherence_queue(queue_name), standalone)
    assert one(USER) == two(USER) == {"id": USER}
    one.put(USER, {"id": "put"})
    eventually(lambda: two(USER) == {"id": "put"})
    one.invalidate(USER)
    one.refresh(USER)
    eventually(lambda: queue.metrics().completed == 3)
    assert one.peek(USER) == {"id": USER}
    assert queue.counts().unfinished == 0


def test_a_message_of_a_process_that_died_with_it_is_applied_by_another_one(
    standalone: Connection, queue_name: str
) -> None:
    queue = Queue(coherence_queue(queue_name), standalone)
    queue.enqueue(coherence_message(USER, NEWER))
    assert len(queue.claim(1, lease=0.001)) == 1
    claimed_at = now(standalone)
    eventually(lambda: now(standalone) > claimed_at + 0.005, message="the lease is over")
    row = f"ecc:{{{queue_name}}}:{USER}"
    standalone.client.set(row, f"{OLDER}{{}}", px=60_000)
    # The first look of a process that uses the table finds it.
    lane_of(standalone, queue_name)(brand("USR", 8))
    eventually(lambda: queue.metrics().completed == 1)
    assert not standalone.client.exists(row)


def test_messages_wait_for_a_server_that_is_away(own_server: ServerProcess, queue_name: str) -> None:
    with connect(own_server.url, timeout=2) as connection:
        function = lane_of(connection, queue_name)
        queue = Queue(coherence_queue(queue_name), connection)
        assert function(USER) == {"id": USER}
        own_server.kill()
        assert not function.put(USER, {"id": "put"})
        assert function(USER) == {"id": "put"}
        own_server.start()

        def sent() -> bool:
            function(brand("USR", len(str(threading.get_ident()))))
            return not function.table.stats().away and queue.metrics().completed >= 1

        eventually(sent)
        # Another process does not have the value, but nothing older either.
        assert function.peek(USER) in (None, {"id": "put"})


def test_the_thread_ends_with_its_table(standalone: Connection, queue_name: str) -> None:
    function = lane_of(standalone, queue_name)
    assert threads() == []
    function(USER)
    assert len(threads()) == 1
    gone = weakref.ref(function.table)
    del function
    gc.collect()
    assert gone() is None
    # It looks up when a job comes, at the latest when it has waited long enough.
    Queue(coherence_queue(queue_name), standalone).enqueue(coherence_message(USER, NEWER))
    eventually(lambda: threads() == [])
    assert Queue(coherence_queue(queue_name), standalone).counts().unfinished == 1


def test_the_thread_ends_with_the_connection_and_begins_again_when_it_is_used(
    standalone: Connection, queue_name: str
) -> None:
    function = lane_of(standalone, queue_name)
    function(USER)
    (thread,) = threads()
    standalone.close()
    assert not thread.is_alive()
    function.invalidate(USER)
    assert len(threads()) == 1


def test_the_child_of_a_fork_has_a_thread_of_its_own(standalone: Connection, queue_name: str) -> None:
    function = lane_of(standalone, queue_name)
    function(USER)

    def child() -> list[Any]:
        before = len(threads())
        function.invalidate(USER)
        after = len(threads())
        standalone.close()
        return [before, after]

    assert in_child(child) == [0, 1]
    queue = Queue(coherence_queue(queue_name), standalone)
    eventually(lambda: queue.counts().unfinished == 0)


def test_a_table_that_no_other_process_has_needs_no_lane() -> None:
    with pytest.raises(InvalidArgument, match="give it a name="):
        cached(coherence="lane")(lambda x: x)
