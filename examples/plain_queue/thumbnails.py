"""The queue without actors: a producer, and a worker loop of your own.

Run it with `python thumbnails.py`; it starts a private embedded server unless EMQ_URL names one.
"""

from __future__ import annotations

import json
import os
import threading
import time

from echomq_tasks import NewJob, Queue, connect
from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Job, Verdict

PICTURES = ["cat.jpg", "dog.jpg", "broken.jpg", "bird.jpg"]


def produce(queue: Queue) -> None:
    """One by one, in bulk, later, and before the others."""
    queue.enqueue(json.dumps({"picture": PICTURES[0]}))
    queue.enqueue_many([NewJob(payload=json.dumps({"picture": name})) for name in PICTURES[1:]])
    queue.enqueue(json.dumps({"picture": "sunset.jpg"}), delay=0.3)
    queue.enqueue(json.dumps({"picture": "cover.jpg"}), priority=-1)


def shrink(job: Job) -> str:
    """The work: any function of the payload. It runs at least once, so doing it twice must do no harm."""
    picture = json.loads(job.payload)["picture"]
    if picture == "broken.jpg":
        raise ValueError("not a picture")
    return f"{picture} -> small-{picture}"


def settle(queue: Queue, job: Job) -> None:
    """Run one job and tell the queue how it ended. The claim's token guards what is told."""
    try:
        print(shrink(job))
        queue.complete(job)
    except StaleToken as error:
        print(f"another worker has it: {error}")
    except Exception as error:
        verdict = queue.retry(job, f"{type(error).__name__}: {error}", delay=0.1, max_retries=2)
        print(f"failed {job.failures + 1} times: {error}; {'given up' if verdict is Verdict.DEAD else 'again'}")


def work(queue: Queue, stop: threading.Event) -> None:
    """Claim, run, settle; park when there is nothing; bring back the jobs of workers that died."""
    parking = queue.parking()
    sweep_at = 0.0
    try:
        while not stop.is_set():
            if time.monotonic() >= sweep_at:
                queue.sweep_stalled(max_stalled=3)
                sweep_at = time.monotonic() + 5.0
            # One at a time: its lease of 30 seconds begins when it is claimed, so nothing waits here with it.
            claimed = queue.claim(1, lease=30.0)
            if claimed:
                # Who has a job in hand must not take the tokens that wake other workers.
                parking.leave()
                for job in claimed:
                    settle(queue, job)
            else:
                # Until a job arrives or is due; no longer than this loop may take to notice that it should stop.
                parking.wait(min(claimed.look_again if claimed.look_again is not None else 0.5, 0.5))
    finally:
        parking.close()


def main() -> None:
    """Produce, work until nothing is left, and show what failed for good."""
    with connect(os.environ.get("EMQ_URL", "embedded://")) as connection:
        queue = Queue("thumbnails", connection)
        produce(queue)
        stop = threading.Event()
        worker = threading.Thread(target=work, args=(queue, stop))
        worker.start()
        while queue.counts().unfinished:
            stop.wait(0.05)
        stop.set()
        worker.join()
        counts = queue.counts()
        print(f"{counts.completed} done, {counts.dead} dead")


if __name__ == "__main__":
    main()
