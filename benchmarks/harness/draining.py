"""How fast what waits is worked off: by one process and by two, jobs that do nothing and jobs that wait for I/O."""

from __future__ import annotations

import time

from harness.contest import Contestant, Figures, Workers

#: The first jobs, in which threads start and connections open, are not timed: this part of them, and at least so many.
WARM_UP, AT_LEAST = 0.05, 20
#: So many jobs that do nothing to each long one, in the mixed measure.
SHORT = 99


def drain(contestant: Contestant, job: str, processes: int, concurrency: int) -> Figures:
    """Fill the queue, start the workers, and time them from when all are under way until nothing is left."""
    jobs = contestant.jobs("pace", contestant.scale.seconds * processes)
    contestant.server.clear()
    with contestant.client() as client:
        client.order(do="send", job=job, jobs=jobs, many=True)
    with contestant.workers(processes, concurrency) as workers:
        workers.go()
        return timed(contestant, workers, jobs)


def mixed(contestant: Contestant) -> Figures:
    """Work off many jobs that do nothing, among which a few are long: none of those may hold up the others."""
    rounds = max(contestant.jobs("pace") // (SHORT + 1), 4)
    contestant.server.clear()
    with contestant.client() as client:
        for _ in range(rounds):
            client.order(do="send", job="nothing", jobs=SHORT, many=True)
            client.order(do="send", job="nap", jobs=1, many=False)
    with contestant.workers(1, 8) as workers:
        workers.go()
        return timed(contestant, workers, rounds * (SHORT + 1))


def timed(contestant: Contestant, workers: Workers, jobs: int, leaving: int = 0) -> Figures:
    """Time workers that were just told to go: jobs and CPU a second, from the first to the last of ``jobs``.

    Args:
      leaving: so many stay in the queue behind them, so the end is not when the server has nothing left.
    """
    warm = max(int(jobs * WARM_UP), AT_LEAST)
    tally = contestant.tally

    def all_under_way() -> bool:
        ran = tally.ran()[: len(workers.processes)]
        # One of them may have been too late to get any of a short queue.
        return sum(ran) >= warm and (all(ran) or sum(ran) >= jobs // 2)

    start = _Clocks(contestant, workers)
    if not workers.wait(all_under_way):
        contestant.fault("did not begin")
        return {}
    under_way = _Clocks(contestant, workers)
    # So few jobs, or so late a look, that the start has to be timed with them: slower than it is, never faster.
    begin = under_way if under_way.ran <= jobs // 2 else start
    if not workers.wait(lambda: workers.ran() >= jobs):
        contestant.fault(f"stopped at {workers.ran()} of {jobs} jobs")
        return {}
    if not leaving:
        workers.finish(jobs)
    end = _Clocks(contestant, workers)
    if not leaving:
        workers.check(jobs)
    ran = end.ran - begin.ran
    return {
        "jobs/s": ran / (end.time - begin.time),
        "worker us": (end.cpu - begin.cpu) / ran * 1e6,
        "server us": (end.server_cpu - begin.server_cpu) / ran * 1e6,
        "server commands": (end.commands - begin.commands) / ran,
    }


class _Clocks:
    """All that counts up while workers work."""

    def __init__(self, contestant: Contestant, workers: Workers) -> None:
        # The count is read beside the time: what comes after may take a millisecond.
        self.time, self.ran = time.perf_counter(), workers.ran()
        self.cpu = workers.cpu()
        self.server_cpu, self.commands = contestant.server.used()
