"""What a cache costs: `python cache_hits.py MEASURE VARIANT URL AMOUNT` prints figures as JSON."""

from __future__ import annotations

import asyncio
import gc
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis
from cache_peers import LOCAL, REMOTE, Function, waits
from rounds import Figures, Meter, answer_for, one_by_one

THREADS = 4
#: How often a loop is timed; the median counts.
LOOPS = 9
#: Seconds that a loop is to take, about.
LOOP = 0.03
PAGE = 4096
TEXT = "Somewhat longer than a price, and shorter than a page of text. " + "-" * 17


def price(sku: str) -> str:
    """A text of its own of some 80 bytes."""
    return sku + TEXT


def stock(sku: str) -> dict[str, Any]:
    """What a caller could change."""
    return {"sku": sku, "name": TEXT[:40], "left": 7, "sizes": [36, 37, 38]}


async def price_later(sku: str) -> str:
    """As :func:`price`."""
    return sku + TEXT


def function_for(variant: str) -> Function:
    """The function that a variant wraps."""
    if waits(variant):
        return price_later
    return stock if variant.endswith("-dict") else price


def skus(amount: int, name: str = "sku") -> list[str]:
    """So many arguments."""
    return [f"{name}-{number}" for number in range(amount)]


class Caller:
    """Calls a function, or awaits it in an event loop of its own."""

    def __init__(self, variant: str, function: Function) -> None:
        self.calls = self._await if waits(variant) else self._call
        self._function = function
        self._loop = asyncio.new_event_loop() if waits(variant) else None

    def _call(self, arguments: Sequence[str]) -> float:
        function, begin = self._function, time.perf_counter()
        for argument in arguments:
            function(argument)
        return time.perf_counter() - begin

    def _await(self, arguments: Sequence[str]) -> float:
        assert self._loop is not None
        return self._loop.run_until_complete(self._awaited(arguments))

    async def _awaited(self, arguments: Sequence[str]) -> float:
        function, begin = self._function, time.perf_counter()
        for argument in arguments:
            await function(argument)
        return time.perf_counter() - begin


def local(variant: str, url: str, amount: int) -> Figures:
    """Hits in the process, by one thread and by four at once."""
    caller, floor = (Caller(each, LOCAL[each](function_for(each))) for each in (variant, "floor"))
    known = skus(1000)
    caller.calls(known)
    floor.calls(known)
    # Some take two hundred times as long as others.
    calls = known * max(int(LOOP / caller.calls(known)), 1)
    seconds, ratio = beside(floor, known * 50, caller, calls)
    figures = {"hit ns": seconds * 1e9, "hit, of the floor's": ratio}
    if not waits(variant):
        calls = known * max(len(calls) // len(known) // THREADS, 1)
        figures[f"hit ns, {THREADS} threads"] = at_once(caller.calls, calls) / len(calls) / THREADS * 1e9
    return figures


def beside(floor: Caller, its: Sequence[str], caller: Caller, calls: Sequence[str]) -> tuple[float, float]:
    """Seconds of a call, and how many times those of the floor: they take turns, as a machine has its moods."""
    pairs = [(caller.calls(calls) / len(calls), floor.calls(its) / len(its)) for _ in range(LOOPS)]
    return statistics.median(mine for mine, _ in pairs), statistics.median(mine / other for mine, other in pairs)


def at_once(calls: Callable[[Sequence[str]], float], arguments: Sequence[str]) -> float:
    """Seconds until all threads have made all calls."""
    gate = threading.Barrier(THREADS + 1)

    def work() -> None:
        gate.wait()
        calls(arguments)
        gate.wait()

    def loop() -> float:
        for _ in range(THREADS):
            threading.Thread(target=work).start()
        gate.wait()
        begin = time.perf_counter()
        gate.wait()
        return time.perf_counter() - begin

    return statistics.median(loop() for _ in range(LOOPS))


def rows(variant: str, url: str, amount: int) -> Figures:
    """What a row adds to the process, its value included and its argument not, by two ways to look."""

    def make() -> Caller:
        return Caller(variant, LOCAL[variant](function_for(variant)))

    arguments = skus(amount)
    make().calls(arguments[:100])
    caller = make()
    gc.collect()
    before = resident()
    caller.calls(arguments)
    gc.collect()
    figures = {"resident bytes/row": (resident() - before) / amount}
    again = make()
    tracemalloc.start()
    again.calls(arguments)
    gc.collect()
    figures["bytes/row"] = tracemalloc.get_traced_memory()[0] / amount
    tracemalloc.stop()
    return figures


def resident() -> int:
    """Bytes of the process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def remote(variant: str, url: str, amount: int) -> Figures:
    """What a row takes on the server, what filling it costs, and what a hit there does."""
    caller = Caller(variant, REMOTE[variant](url, function_for(variant)))
    client = redis.Redis.from_url(url)
    # What is made once is made before.
    caller.calls(skus(20, "warm") * 2)
    client.flushdb()
    fill, hit = Meter(url, "fill"), Meter(url, "hit")
    arguments = skus(amount)
    with fill.measuring(amount):
        caller.calls(arguments)
    kept = sum(client.memory_usage(key, samples=0) for key in client.scan_iter(count=1000))
    known = arguments[:200]
    floor = Caller("redis-py", REMOTE["redis-py"](url, price))
    floor.calls(known)
    caller.calls(known)
    seconds, ratio = beside(floor, known * 2, caller, known * 2)
    with hit.measuring(amount):
        caller.calls((known * amount)[:amount])
    used = fill.figures()
    return {
        "hit us": seconds * 1e6,
        "hit, of a GET's": ratio,
        "hit, own us": hit.figures()["own us/hit"],
        "hit, server us": hit.figures()["server us/hit"],
        "fill us": 1e6 / used["fills/s"],
        "fill, server us": used["server us/fill"],
        "server bytes/row": kept / amount,
    }


if __name__ == "__main__":
    answer_for({"local": one_by_one(local), "rows": one_by_one(rows), "remote": one_by_one(remote)})
