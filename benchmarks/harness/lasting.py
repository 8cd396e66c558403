"""Whether a worker process stays as it is while very many jobs go through it."""

from __future__ import annotations

import time

from harness.contest import Contestant, Figures
from harness.processes import status

#: It is fed in so many portions, and looked at after the first tenth of them and at the end.
PORTIONS = 100


def long_lived(contestant: Contestant, jobs: int) -> Figures:
    """Feed so many jobs through one process: its memory and threads, and the server's connections and keys."""
    server, portion = contestant.server, max(jobs // PORTIONS, 100)
    server.clear()
    figures: Figures = {}
    with contestant.client() as client, contestant.workers(1, 8) as workers:
        workers.go()
        begin, sent = time.perf_counter(), 0
        for number in range(1, PORTIONS + 1):
            looks = number in (PORTIONS // 10, PORTIONS)
            # One portion waits while the one before is worked off: it never runs dry, and nothing piles up. Before a
            # look there is none, so that what is found on the server are not the jobs.
            while sent < portion * (number if looks else number + 1):
                client.order(do="send", job="nothing", jobs=portion, many=True)
                sent += portion
            done = number * portion
            if not workers.wait(lambda done=done: workers.ran() >= done):  # type: ignore[misc]
                contestant.fault(f"stopped at {workers.ran()} of {sent} jobs")
                return figures
            if looks:
                workers.finish(sent)
                for name, value in status(workers.processes[0].pid).items():
                    figures[f"{name} at {done:,}"] = value
                figures[f"connections at {done:,}"] = float(len(server.client.client_list()))
                figures[f"keys at {done:,}"] = float(server.client.dbsize())
        figures["jobs/s"] = sent / (time.perf_counter() - begin)
        workers.check(sent)
    return figures
