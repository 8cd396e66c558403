"""EchoMQBroker against Dramatiq's RedisBroker in what `queues.py` leaves out: one server, interleaved rounds."""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict

from rounds import middle, run

from echomq_tasks import connect

#: Each measure with the brokers it compares; the first is ours. `own` is our broker under our own worker.
PLAN = {
    "delayed": ("own", "echomq", "redis"),
    "lonely": ("own", "echomq", "redis"),
    "result": ("own", "echomq", "redis"),
    "batched": ("echomq-batch", "echomq", "redis"),
}
#: Figures of which more is better; of the others less is.
MORE = {"jobs/s"}


def row(measure: str, figure: str, results: dict[str, dict[str, list[float]]]) -> list[str]:
    """Lines of the table: one a broker, with the ratio of ours to it."""
    lines = []
    brokers = PLAN[measure]
    ours = statistics.median(results[brokers[0]][figure])
    for broker in brokers:
        values = results[broker][figure]
        median = statistics.median(values)
        line = f"{measure:8} {figure:18} {broker:12} {middle(values)}"
        if broker != brokers[0] and ours and median:
            ratio = ours / median if figure in MORE else median / ours
            line += f"   ours is {ratio:.2f} times better"
        lines.append(line)
    return lines


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--only", nargs="+", choices=PLAN, default=list(PLAN))
    parser.add_argument("--url", help="a server of yours, which is FLUSHED; by default one is started")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, connect(options.url or f"embedded://{folder}/server") as connection:
        # The same socket for both: RedisBroker takes a URL of redis-py's.
        url = options.url or f"unix://{connection.client.connection_pool.connection_kwargs['path']}"
        for measure in options.only:
            results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
            for _ in range(options.rounds):
                for broker in PLAN[measure]:
                    connection.client.flushall()
                    for figure, value in run("measures.py", measure, broker, url, options.jobs).items():
                        results[broker][figure].append(value)
            for figure in results[PLAN[measure][0]]:
                print("\n".join(row(measure, figure, results)), flush=True)


if __name__ == "__main__":
    main()
