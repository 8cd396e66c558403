"""Index the Python standard library with background jobs, kill a worker on the way, and check the result."""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from stdlib_index.index import STDLIB, Index, index_source, merge, sources
from stdlib_index.view import View, numbered
from stdlib_index.workers import Workers

STALL_S = 60.0


class Stalled(Exception):
    """The workers do not get on; the text says where to look."""


def build(view: View, packages: dict[str, list[str]], args: argparse.Namespace) -> Index:
    """Index the ``packages`` with jobs and return the report."""
    from stdlib_index import jobs  # not at the top: its broker reads EMQ_URL, which main has just set

    jobs.client().ping()  # starts the embedded server, here, so that it is ours and our children find it
    run, workers = uuid.uuid4().hex[:8], Workers(args.threads, view.say)
    try:
        began = time.monotonic()
        for _ in range(args.workers):
            workers.start()
        for package, files in packages.items():
            for file in files:
                jobs.index_file.send(run, package, file, len(files), len(packages))
        with view:
            killed = watch(view, workers, run, began, kill=not args.no_kill)
        seconds = time.monotonic() - began
        view.say(f"{view.total:,} jobs done in {seconds:.1f} s, {view.total / seconds:,.0f} jobs/s")
        jobs.broker.join(jobs.QUEUE, timeout=30_000)  # a job killed after it had stored its result still comes back
        starts = sum(map(int, jobs.client().hvals(jobs.table(run, "starts"))))
        view.say(repeats(starts - view.total, killed))
        return merge(jobs.load(run, "report"))
    finally:
        workers.stop()
        jobs.broker.close()


def watch(view: View, workers: Workers, run: str, began: float, kill: bool) -> bool:
    """Show how the run goes, since it ``began`` and until all is done; ``kill`` a worker when two fifths are.

    Return whether one was killed.
    """
    from stdlib_index import jobs

    pids, killed, waiting_until = list(workers.running), set(), 0.0
    moved, done = time.monotonic(), 0
    while done < view.total:
        time.sleep(0.1)
        finished = Counter(map(int, jobs.client().hvals(jobs.table(run, "finished"))))
        now = time.monotonic()
        if finished.total() > done:
            done, moved = finished.total(), now
        elif now - moved > STALL_S:
            raise Stalled(f"no job finished for {STALL_S:.0f} s: see above for the workers' errors")
        if dead := workers.dead():
            raise Stalled(f"worker {dead[0]} ended by itself: see above for its error")
        if kill and view.total * 2 // 5 <= done < view.total:
            kill = False
            killed.add(pid := workers.kill())
            view.say(f"killed worker {pid} (SIGKILL), in the middle of its jobs")
            pids.append(workers.start())
            view.say(f"started worker {pids[-1]} in its place")
            waiting_until = now + 2 * jobs.broker.lease
        view.show(done, now - began, {pid: finished[pid] for pid in pids}, killed)
        # Quiet with nothing left to claim, so soon after the kill: what is missing is what the killed worker held.
        if moved + 0.5 < now < waiting_until and not jobs.broker.queue(jobs.QUEUE).counts().waiting:
            view.say(f"waiting for the killed worker's jobs: their lease is {jobs.broker.lease:g} s")
            waiting_until = 0.0
    if kill:
        view.say("all was done before a worker could be killed: take more files")
    return bool(killed)


def repeats(count: int, killed: bool) -> str:
    """Say how many runs were repeats, and why."""
    if not count:
        return "no run was a repeat"
    cause = "jobs the killed worker had begun, and what these sent again" if killed else "jobs whose lease had run out"
    return f"{numbered(count, 'run')} {'was a repeat' if count == 1 else 'were repeats'}: {cause}"


def skipped(index: Index) -> str:
    """Say how many files could not be read as Python."""
    return f"{index.skipped:,} skipped as not valid Python" if index.skipped else "none skipped"


def check(view: View, built: Index, packages: dict[str, list[str]]) -> bool:
    """Count again in this process, without jobs, and compare identifier by identifier."""
    view.say("counting again in this process, without jobs, to compare")
    began = time.monotonic()
    plain = merge(index_source(file) for files in packages.values() for file in files)
    wrong = [name for name in built.counts.keys() | plain.counts if built.counts[name] != plain.counts[name]]
    for name in sorted(wrong)[:10]:
        view.say(f"  {name}: {built.counts[name]:,} by jobs, {plain.counts[name]:,} by the plain count")
    verdict = "equal to" if built == plain else f"DIFFERENT in {len(wrong):,} identifiers from"
    view.say(
        f"{verdict} a plain count: {len(plain.counts):,} identifiers, {plain.counts.total():,} "
        f"occurrences, {numbered(plain.files, 'file')}, {skipped(plain)}; it took {time.monotonic() - began:.1f} s"
    )
    return built == plain


def positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small: give 1 or more")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    """Run the example, once per process; return 0 if the result equals a plain count."""
    parser = argparse.ArgumentParser(prog="echomq demo", description=__doc__)
    parser.add_argument("--url", default="embedded://", help="server; by default one is started for this run alone")
    parser.add_argument("--limit", type=positive, metavar="N", help="index only the first N files")
    parser.add_argument("--workers", type=positive, default=2, metavar="N", help="worker processes (2)")
    parser.add_argument("--threads", type=positive, default=4, metavar="N", help="threads in each of them (4)")
    parser.add_argument("--no-kill", action="store_true", help="let every worker live")
    args = parser.parse_args(argv)
    os.environ["EMQ_URL"] = args.url  # for the workers, too

    packages = sources(args.limit)
    if not packages:
        parser.error(f"no sources in {STDLIB}: run this with a Python that has its standard library as files")
    files = sum(map(len, packages.values()))
    view = View(total=files + len(packages) + 1)
    view.say(f"indexing {numbered(files, 'file')} in {numbered(len(packages), 'package')} of {STDLIB}")
    try:
        built = build(view, packages, args)
    except (Stalled, KeyboardInterrupt) as error:
        view.say(f"stopped: {str(error) or 'interrupted'}")
        return 1
    grid = Table("identifier", "occurrences", title="top identifiers")
    for name, count in built.counts.most_common(10):
        grid.add_row(name, f"{count:>11,}")
    view.console.print(grid)
    view.say(f"{numbered(built.files, 'file')} indexed, {skipped(built)}")
    return 0 if check(view, built, packages) else 1


if __name__ == "__main__":
    sys.exit(main())
