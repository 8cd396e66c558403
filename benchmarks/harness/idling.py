"""What workers cost that have nothing to do: all at once, as they hardly disturb each other, each on its own server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from peers.tally import Tally

from harness.contest import Contestant, Figures, PeerDied, Workers
from harness.servers import Server

#: Jobs that it works off before, and seconds until it has come to rest.
JOBS, REST = 20, 3.0


def idle(
    contestants: Sequence[Contestant], start: Callable[[Contestant, Path], Server], folder: Path
) -> dict[str, Figures]:
    """What each asks of its server and of the machine; those that do not begin are left out.

    Args:
      contestants: the variants.
      start: starts a server for one of them, which may write to that folder.
      folder: where to make the folders.
    """
    with ExitStack() as stack:
        idlers = []
        for number, contestant in enumerate(contestants):
            home = folder / f"idle{number}"
            server = start(contestant, home)
            stack.callback(server.stop)
            path = home / "tally"
            own = replace(contestant, server=server, tally=Tally.create(path), tally_path=path)
            if (workers := _begin(own, stack)) is not None:
                idlers.append((own, workers))
        time.sleep(REST)
        before = [_look(*idler) for idler in idlers]
        time.sleep(contestants[0].scale.idle if contestants else 0)
        after = [_look(*idler) for idler in idlers]
    return {own.name: _figures(begin, end) for (own, _), begin, end in zip(idlers, before, after, strict=True)}


def _begin(own: Contestant, stack: ExitStack) -> Workers | None:
    try:
        with own.client() as client:
            client.order(do="send", job="nothing", jobs=JOBS, many=True)
        workers = stack.enter_context(own.workers(1, 8))
        workers.go()
        if workers.wait(lambda: workers.ran() >= JOBS):
            return workers
        own.fault("did not begin")
    except PeerDied as death:
        own.fault(f"ended before it was idle: {death}")
    return None


def _look(own: Contestant, workers: Workers) -> tuple[float, float, float, int]:
    return time.perf_counter(), workers.cpu(), *own.server.used()


def _figures(begin: tuple[float, float, float, int], end: tuple[float, float, float, int]) -> Figures:
    seconds, cpu, server_cpu, commands = (late - early for early, late in zip(begin, end, strict=True))
    return {
        # The question before is counted by the server too.
        "commands/s": max(commands - 1, 0) / seconds,
        "CPU %": cpu / seconds * 100,
        "server CPU %": server_cpu / seconds * 100,
    }
