"""What an adapter offers, and its jobs, by the names that `send` gets."""

from __future__ import annotations

import asyncio
import importlib.metadata
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from peers.tally import Tally

#: What every job carries.
PAYLOAD = {"x": 1, "y": 2}
#: A job of the I/O measure waits so many seconds.
WAIT = 0.001
#: A long job of the mixed measure, and one that keeps a worker busy, waits so many, half as many more or less: jobs
#: that begin together do not end together.
NAP = 0.05
#: Of a queue without a bulk call, an asyncio client has so many calls under way.
TOGETHER = 100

#: Set before an adapter is made; rq finds its functions by name, so they cannot be methods.
TALLY: Tally


def use(tally: Tally | None) -> None:
    """Where jobs are counted, in a worker process."""
    global TALLY
    if tally is not None:
        TALLY = tally


def nothing(x: int, y: int) -> None:
    """A job that does nothing but be counted."""
    TALLY.count()


def wait(x: int, y: int) -> None:
    """A job that waits as for I/O."""
    time.sleep(WAIT)
    TALLY.count()


def nap(x: int, y: int) -> None:
    """A job that takes long."""
    time.sleep(NAP * random.uniform(0.5, 1.5))
    TALLY.count()


def nothing_under_a_name_of_some_length(x: int, y: int) -> None:
    """A job whose message is longer than a server keeps compact at its defaults, as many are."""
    TALLY.count()


def clock(sent: float) -> None:
    """A job that notes how long it took to get here."""
    TALLY.arrived(sent)


async def async_nothing(x: int, y: int) -> None:
    TALLY.count()


async def async_wait(x: int, y: int) -> None:
    await asyncio.sleep(WAIT)
    TALLY.count()


async def async_nap(x: int, y: int) -> None:
    await asyncio.sleep(NAP * random.uniform(0.5, 1.5))
    TALLY.count()


async def async_clock(sent: float) -> None:
    TALLY.arrived(sent)


JOBS: dict[str, Callable[..., None]] = {
    "nothing": nothing,
    "nothing_under_a_name_of_some_length": nothing_under_a_name_of_some_length,
    "wait": wait,
    "nap": nap,
    "clock": clock,
}
ASYNC_JOBS: dict[str, Callable[..., Awaitable[None]]] = {
    "nothing": async_nothing,
    "nothing_under_a_name_of_some_length": async_nothing,
    "wait": async_wait,
    "nap": async_nap,
    "clock": async_clock,
}


class Adapter:
    """A queue as the harness sees it; the class attributes are what it tells about itself."""

    #: The distribution whose version is reported.
    distribution: str
    #: Each variant with what is set in it.
    variants: Sequence[tuple[str, str]]
    #: The variants that send in a way of their own; the others send like the first.
    senders: Sequence[str] = ("default",)
    #: About so many jobs that do nothing does it run a second, and send a second: how many it is given depends on it.
    pace = 1000
    send_pace = 2000
    #: Keys whose sizes add up to the jobs not yet done with; `key@group` is what a stream's group has not acknowledged.
    left: Sequence[str]
    #: Commands that the server must take.
    probes: Sequence[Sequence[str]] = ()
    #: What a reader has to know.
    note = ""
    #: Whether :meth:`send_many` is a call of the queue's own for many jobs.
    bulk = True
    #: Whether it can :meth:`open_second_queue`.
    two_queues = False

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        self.url = url
        self.variant = variant
        self.tuned = variant == "tuned"
        self.concurrency = concurrency

    @classmethod
    def version(cls) -> str:
        """The version that is measured."""
        return importlib.metadata.version(cls.distribution)

    def send(self, job: str, jobs: int) -> None:
        """Send so many, one by one, each confirmed before the next."""
        raise NotImplementedError

    def send_many(self, job: str, jobs: int) -> None:
        """Send so many in the fastest way that the queue's documentation has."""
        self.send(job, jobs)

    def send_clock(self) -> None:
        """Send one `clock`, with the time of now."""
        raise NotImplementedError

    def open_second_queue(self) -> None:
        """Have a second queue, which workers serve beside the first; asked before anything is sent or run."""
        raise NotImplementedError

    def send_aside(self) -> None:
        """Send one `clock` to the second queue."""
        raise NotImplementedError

    def work(self) -> None:
        """Run a worker in this process, for good."""
        raise NotImplementedError


class AsyncAdapter(Adapter):
    """A queue whose client is async: its coroutines run on one loop."""

    bulk = False

    def __init__(self, url: str, variant: str, concurrency: int) -> None:
        super().__init__(url, variant, concurrency)
        self._runner = asyncio.Runner(loop_factory=self.loop_factory())
        self._opened = False

    def loop_factory(self) -> Callable[[], asyncio.AbstractEventLoop] | None:
        """Another loop than asyncio's own, where the queue's documentation advises it."""
        return None

    async def open(self) -> None:
        """Connect a client."""

    async def send_one(self, job: str, **arguments: Any) -> Any:
        """Send one job."""
        raise NotImplementedError

    async def send_all(self, job: str, jobs: int) -> None:
        """Send many: here, many calls under way at once."""
        for sent in range(0, jobs, TOGETHER):
            await asyncio.gather(*(self.send_one(job, **PAYLOAD) for _ in range(min(TOGETHER, jobs - sent))))

    async def serve(self) -> None:
        """Run a worker, for good."""
        raise NotImplementedError

    def send(self, job: str, jobs: int) -> None:
        async def one_by_one() -> None:
            for _ in range(jobs):
                await self.send_one(job, **PAYLOAD)

        self.run(one_by_one())

    def send_many(self, job: str, jobs: int) -> None:
        self.run(self.send_all(job, jobs))

    def send_clock(self) -> None:
        async def one() -> None:
            await self.send_one("clock", sent=time.time())

        self.run(one())

    def work(self) -> None:
        self._runner.run(self.serve())

    def run(self, task: Any) -> None:
        """Run a coroutine of the client's."""
        if not self._opened:
            self._runner.run(self.open())
            self._opened = True
        self._runner.run(task)
