"""Group commit: together when they can, and never stuck behind a thread that was torn away."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.eventually import eventually

from echomq_tasks.brokers.dramatiq.settler import Settler
from echomq_tasks.errors import InvalidArgument, ServerUnavailable
from echomq_tasks.queue import Complete, Job, Verdict


class Torn(BaseException):
    """What Dramatiq's time limit or shutdown throws into a thread."""


class Server:
    """Stands in for the queue: answers when it is let, and notes what came together."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.gate = threading.Event()
        self.trouble: Callable[[list[Any]], None] = lambda _: None

    def settle(self, settlements: list[Any]) -> list[Verdict]:
        self.batches.append(len(settlements))
        assert self.gate.wait(20)
        self.trouble(settlements)
        return [Verdict.OK] * len(settlements)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def settler(server: Server) -> Settler:
    return Settler(server)  # type: ignore[arg-type]


def settlement(number: int) -> Complete:
    return Complete(Job(f"JOB0000000000{number}", b"", number))


class Thread(threading.Thread):
    """Settles one job and keeps how that ended."""

    def __init__(self, settler: Settler, number: int) -> None:
        super().__init__(daemon=True)
        self.ended: Any = None
        self._run = lambda: settler.settle(settlement(number))
        self.start()

    def run(self) -> None:
        try:
            self.ended = self._run()
        except BaseException as error:
            self.ended = error


def test_those_who_come_while_one_is_sent_go_together(settler: Settler, server: Server) -> None:
    threads = [Thread(settler, 0)]
    eventually(lambda: server.batches == [1])
    threads += [Thread(settler, number) for number in range(1, 6)]
    eventually(lambda: len(settler._waiting) == 5)  # noqa: SLF001
    server.gate.set()
    for thread in threads:
        thread.join(20)
    assert [thread.ended for thread in threads] == [Verdict.OK] * 6
    assert server.batches == [1, 5]


def test_a_thread_torn_away_while_it_sends_fails_alone_and_the_next_goes_on(settler: Settler, server: Server) -> None:
    def tear(_: list[Any]) -> None:
        server.trouble = lambda _: None
        raise Torn

    server.trouble = tear
    first = Thread(settler, 0)
    eventually(lambda: server.batches == [1])
    second = Thread(settler, 1)
    eventually(lambda: len(settler._waiting) == 1)  # noqa: SLF001
    server.gate.set()
    first.join(20)
    second.join(20)
    assert isinstance(first.ended, Torn)
    assert second.ended is Verdict.OK


def test_a_thread_torn_away_before_it_sends_leaves_the_line_to_the_next(
    settler: Settler, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.gate.set()
    send = settler._send  # noqa: SLF001

    def torn(batch: list[Any]) -> None:
        monkeypatch.setattr(settler, "_send", send)
        raise Torn

    monkeypatch.setattr(settler, "_send", torn)
    with pytest.raises(Torn):
        settler.settle(settlement(0))
    later = Thread(settler, 1)
    later.join(20)
    assert later.ended is Verdict.OK


def test_when_the_server_is_away_everyone_is_told_with_an_error_of_their_own(settler: Settler, server: Server) -> None:
    def away(_: list[Any]) -> None:
        raise ServerUnavailable("gone")

    server.trouble = away
    threads = [Thread(settler, 0)]
    eventually(lambda: server.batches == [1])
    threads += [Thread(settler, number) for number in (1, 2)]
    eventually(lambda: len(settler._waiting) == 2)  # noqa: SLF001
    server.gate.set()
    for thread in threads:
        thread.join(20)
    assert all(isinstance(thread.ended, ServerUnavailable) for thread in threads)
    assert len({id(thread.ended) for thread in threads}) == 3


def test_one_that_cannot_be_settled_does_not_take_the_others_along(settler: Settler, server: Server) -> None:
    def picky(settlements: list[Any]) -> None:
        if any(each.job.token == 2 for each in settlements):
            raise InvalidArgument("not this one")

    server.trouble = picky
    threads = [Thread(settler, 0)]
    eventually(lambda: server.batches == [1])
    threads += [Thread(settler, number) for number in (1, 2, 3)]
    eventually(lambda: len(settler._waiting) == 3)  # noqa: SLF001
    server.gate.set()
    for thread in threads:
        thread.join(20)
    assert [thread.ended for thread in threads if thread is not threads[2]] == [Verdict.OK] * 3
    assert isinstance(threads[2].ended, InvalidArgument)
