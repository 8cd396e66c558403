"""How soon a worker starts a job: an idle one, and a busy one the job of another queue."""

from __future__ import annotations

import random
import statistics
import time

from peers.base import NAP

from harness.contest import Contestant, Figures, Workers
from harness.processes import PeerProcess

#: Seconds between two jobs: never the same, not to fall in with somebody's polling.
GAPS = (0.02, 0.08)
#: The first jobs open connections and are left out.
WARM_UP = 5
#: Seconds for which there is something else to do, for each job of a second queue.
BUSY = 0.2


def pickup(contestant: Contestant) -> Figures:
    """Milliseconds from just before the call that sends to the start of the job, one by one on an idle worker."""
    contestant.server.clear()
    with contestant.client() as client, contestant.workers(1, 8) as workers:
        workers.go()
        time.sleep(1)
        return _delays(contestant, client, workers, "clock")


def aside(contestant: Contestant) -> Figures:
    """The same for jobs of a second queue, while all places of the worker are taken by long jobs of a full first one.

    A place becomes free every few milliseconds, so what is beyond that is waiting for one's turn.
    """
    contestant.server.clear()
    jobs = int(8 / NAP * (WARM_UP + contestant.scale.pickups) * BUSY)
    with contestant.client(two_queues=True) as client:
        client.order(do="send", job="nap", jobs=jobs, many=True)
        with contestant.workers(1, 8, two_queues=True) as workers:
            workers.go()
            time.sleep(1)
            return _delays(contestant, client, workers, "aside", beside=jobs // 4)


def _delays(contestant: Contestant, client: PeerProcess, workers: Workers, order: str, beside: int = 0) -> Figures:
    """Send `clock` again and again, as long as so many other jobs are left; answers how late they began."""
    chance = random.Random(1)
    for number in range(1, WARM_UP + contestant.scale.pickups + 1):
        if beside and contestant.server.left(contestant.about["left"]) < beside:
            break
        client.order(do=order)
        if not workers.wait(lambda sent=number: len(contestant.tally.delays()) >= sent):  # type: ignore[misc]
            contestant.fault(f"did not start job {number} of {'a busy' if beside else 'an idle'} worker")
            return {}
        time.sleep(chance.uniform(*GAPS))
    found = [delay * 1000 for delay in contestant.tally.delays()]
    if not found:
        contestant.fault("was done with all jobs before another was sent")
        return {}
    # One that lets them wait for seconds gets to a few only.
    delays = sorted(found[WARM_UP:] or found)
    return {"p50 ms": statistics.median(delays), "p99 ms": delays[min(int(len(delays) * 0.99), len(delays) - 1)]}
