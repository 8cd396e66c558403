"""Whether a queue stays as fast when more and more waits in it."""

from __future__ import annotations

import statistics

from harness.contest import Contestant, Figures
from harness.draining import timed
from harness.processes import PeerProcess

#: A short queue is over too soon to be timed, so it is filled and drained so many times.
REPEATS = {1_000: 5, 10_000: 2}


def growth(contestant: Contestant, depth: int) -> Figures:
    """With ``depth`` jobs waiting: send some more, then work some off, the rest still waiting behind them."""
    taken: dict[str, list[float]] = {}
    for _ in range(REPEATS.get(depth, 1)):
        for figure, value in _once(contestant, depth).items():
            taken.setdefault(figure, []).append(value)
    return {figure: statistics.median(values) for figure, values in taken.items()}


def _once(contestant: Contestant, depth: int) -> Figures:
    contestant.server.clear()
    with contestant.client() as client:
        _fill(client, depth)
        extra = min(contestant.jobs("send_pace", 0.3), depth)
        one = client.order(do="send", job="nothing", jobs=extra, many=False)
        bulk = client.order(do="send", job="nothing", jobs=extra, many=True)
    waiting = depth + 2 * extra
    # Of a short queue nearly all of it is worked off, of a long one what is there stays about as long.
    jobs = min(contestant.jobs("pace"), int(depth * 0.9))
    with contestant.workers(1, 8) as workers:
        workers.go()
        drained = timed(contestant, workers, jobs, leaving=waiting - jobs)
    if not drained:
        return {}
    return {
        "enqueue one jobs/s": extra / one["seconds"],
        "enqueue bulk jobs/s": extra / bulk["seconds"],
        "drain jobs/s": drained["jobs/s"],
        "drain server us": drained["server us"],
    }


def _fill(client: PeerProcess, depth: int) -> None:
    for sent in range(0, depth, 50_000):
        client.order(do="send", job="nothing", jobs=min(50_000, depth - sent), many=True)
