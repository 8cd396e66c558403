"""Many callers, one missing key: `python cache_herd.py MEASURE VARIANT URL HERDS` prints figures as JSON."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any

import redis
from cache_peers import GUARDED, Function, waits
from rounds import Figures, answer_for, one_by_one

PROCESSES, CALLERS = 4, 50
#: Seconds that a load takes.
LOAD = 0.2
#: Seconds after which a caller without an answer is not waited for.
PATIENCE = 3.0


class Missing(Exception):
    """What the failing loader raises."""


class Loader:
    """Counts its loads.

    Parameters:
      fails: whether it raises, but for keys that begin with "warm".
    """

    def __init__(self, fails: bool) -> None:
        self._fails = fails
        self.loads = 0

    def functions(self) -> tuple[Function, Function]:
        """A function, and a coroutine function."""

        def price(sku: str) -> str:
            self._begin()
            time.sleep(LOAD)
            return self._end(sku)

        async def price_later(sku: str) -> str:
            self._begin()
            await asyncio.sleep(LOAD)
            return self._end(sku)

        return price, price_later

    def _begin(self) -> None:
        self.loads += 1

    def _end(self, sku: str) -> str:
        if self._fails and not sku.startswith("warm"):
            raise Missing(sku)
        return sku


def herd(variant: str, url: str, herds: int) -> Figures:
    """One missing key after the other, which all callers ask for at once."""
    return measured(variant, url, herds, False)


def errors(variant: str, url: str, herds: int) -> Figures:
    """As :func:`herd`; the loader raises."""
    return measured(variant, url, herds, True)


def measured(variant: str, url: str, herds: int, fails: bool) -> Figures:
    """The loads and the commands of a herd, and how long its callers waited."""
    # Not forked: what a cache starts in a process belongs to that process.
    context = get_context("spawn")
    client = redis.Redis.from_url(url)
    pipes, processes = [], []
    for _ in range(PROCESSES):
        ours, theirs = context.Pipe()
        processes.append(context.Process(target=serve, args=(variant, url, fails, theirs)))
        processes[-1].start()
        pipes.append(ours)
    order(pipes, "warm")
    loads, commands, waited, left = [], [], [], 0
    for number in range(herds):
        before = served(client)
        answers = order(pipes, f"sku-{number}")
        commands.append(served(client) - before)
        loads.append(sum(answer[0] for answer in answers))
        for answer in answers:
            waited += answer[1]
            left += answer[2]
    for process, pipe in zip(processes, pipes, strict=True):
        pipe.send(None)
        process.join()
    ordered = sorted(waited + [PATIENCE] * left)
    return {
        "loads": statistics.mean(loads),
        "commands": statistics.mean(commands),
        "p50 ms": ordered[len(ordered) // 2] * 1000,
        "p99 ms": ordered[int(len(ordered) * 0.99) - 1] * 1000,
        f"unanswered in {PATIENCE:g} s": left / herds,
    }


def order(pipes: list[Pipe], key: str) -> list[tuple[int, list[float], int]]:
    """Have all processes ask for a key; what they say of it."""
    for pipe in pipes:
        pipe.send(key)
    return [pipe.recv() for pipe in pipes]


def served(client: Any) -> int:
    """The commands that the server has run, those inside of scripts too, but for this one."""
    stats = client.info("commandstats")
    return sum(each["calls"] for name, each in stats.items() if not name.startswith(("cmdstat_info", "cmdstat_config")))


def serve(variant: str, url: str, fails: bool, pipe: Pipe) -> None:
    """One process of the herd."""
    loader = Loader(fails)
    function = GUARDED[variant](url, loader.functions()[waits(variant)])
    if waits(variant):
        asyncio.run(serve_tasks(function, loader, pipe))
        return
    with ThreadPoolExecutor(CALLERS) as pool:
        while (key := pipe.recv()) is not None:
            before = loader.loads
            calls = [pool.submit(timed, function, key) for _ in range(CALLERS)]
            done, left = wait(calls, PATIENCE)
            pipe.send((loader.loads - before, [call.result() for call in done], len(left)))
        # Some may wait for long.
        os._exit(0)


def timed(function: Function, key: str) -> float:
    """Seconds until a caller has its answer."""
    begin = time.perf_counter()
    with suppress(Missing):
        function(key)
    return time.perf_counter() - begin


async def serve_tasks(function: Function, loader: Loader, pipe: Pipe) -> None:
    """As the threads do it, in the tasks of one event loop."""
    while (key := await asyncio.to_thread(pipe.recv)) is not None:
        before = loader.loads
        calls = [asyncio.create_task(timed_later(function, key)) for _ in range(CALLERS)]
        done, left = await asyncio.wait(calls, timeout=PATIENCE)
        pipe.send((loader.loads - before, [call.result() for call in done], len(left)))
    os._exit(0)


async def timed_later(function: Function, key: str) -> float:
    """As :func:`timed`."""
    begin = time.perf_counter()
    with suppress(Missing):
        await function(key)
    return time.perf_counter() - begin


if __name__ == "__main__":
    answer_for({"herd": one_by_one(herd), "errors": one_by_one(errors)})
