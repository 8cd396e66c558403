"""The operator's verbs on a whole queue: pause it, limit it, measure it, destroy it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import is_branded, minted_at_ms
from echomq_tasks.keyspace import stream_key
from echomq_tasks.queue.arguments import seconds_to_ms, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.scripts import Call

#: Each script call looks at so many places, or destroys so many jobs, so that the server answers others in between.
_LOOKS = 1000
_STEP = 500
_SUFFIXES = 200
#: How often the whole queue is looked for anew while others go on writing to it.
_PASSES = 3
#: What the last step takes away in one piece: without these a queue that is left half destroyed could not be served.
_LAST = frozenset(
    b"meta ring paused glimit gauto gactive gweight gnames wake limiter replies repeat".split(),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """A queue's ceilings.

    Attributes:
      rate: claims in a window; None when there is no ceiling.
      per: the length of a window in seconds.
      concurrency: jobs active at once; None when there is no ceiling.
      paused: whether the whole queue is paused.
    """

    rate: int | None
    per: float
    concurrency: int | None
    paused: bool


@dataclass(frozen=True, slots=True)
class Metrics:
    """What to watch of a queue, at about one instant.

    Attributes:
      completed: jobs completed since the queue exists.
      failed: jobs sent to dead since the queue exists.
      waiting: jobs that could be claimed, flat and in lanes.
      in_lanes: those of them that wait in lanes.
      active: claimed jobs.
      scheduled: jobs that wait for their time, with those that are late.
      late: scheduled jobs whose time has come and that no claim has promoted yet.
      dead: jobs that failed for good.
      lanes: lanes in which a job waits.
      oldest_waiting: seconds since the oldest waiting job was minted; None when none waits. A job that was scheduled,
        or failed before, is as old as its id.
      oldest_dead: the same for the oldest dead job.
      paused: whether the whole queue is paused.
      awaiting: flow parents that wait for their children.
    """

    completed: int
    failed: int
    waiting: int
    in_lanes: int
    active: int
    scheduled: int
    late: int
    dead: int
    lanes: int
    oldest_waiting: float | None
    oldest_dead: float | None
    paused: bool
    awaiting: int = 0


class Operating(Handle):
    """Pause, ceilings, metrics, and the end of a queue."""

    def pause(self) -> bool:
        """Stop all claims, by any runtime, until :meth:`resume`; answers whether it was not paused before.

        What runs is finished, and jobs are still admitted. To pause only one lane, see :meth:`Lane.pause`.
        """
        done = bool(self.run("queue_pause"))
        if done:
            self.send_signal("paused")
        return done

    def resume(self) -> bool:
        """Let jobs be claimed again, and wake workers for those that wait; answers whether it was paused."""
        done = bool(self.run("queue_resume"))
        if done:
            self.send_signal("resumed")
        return done

    def keep_events(self, log: str | None) -> None:
        """Keep the events of whoever names no log in this log of the queue; None for none.

        A worker whose :class:`~echomq_tasks.middleware.Lifecycle` has a log does so when it boots.

        Raises:
          InvalidName: when the wire does not allow the name.
        """
        if log is not None:
            stream_key(self.name, log)
        self.run("event_log", log or "")

    def limit_rate(self, count: int | None, *, per: float = 1.0) -> None:
        """Let ``count`` jobs be claimed in ``per`` seconds at most, by all workers together.

        A window begins with its first claim. A job that is claimed again, because it failed or its worker died, counts
        again.

        Parameters:
          count: 1 or more; None removes the ceiling.
          per: the length of a window in seconds, a thousandth at least.

        Raises:
          InvalidArgument: before a byte is sent.
        """
        window = whole(seconds_to_ms(per, "per"), "per in milliseconds", 1)
        self.run("queue_rate", _ceiling(count), window)

    def limit_concurrency(self, count: int | None) -> None:
        """Let ``count`` jobs be active at most, on all workers together; jobs that run already are not stopped.

        Parameters:
          count: 1 or more; None removes the ceiling.

        Raises:
          InvalidArgument: before a byte is sent.
        """
        self.run("queue_concurrency", _ceiling(count))

    def limits(self) -> Limits:
        """The ceilings that hold now, whoever has set them."""
        rate, window, concurrency, paused = self.run("queue_limits")
        return Limits(
            rate=None if rate < 0 else rate,
            per=window / 1000,
            concurrency=None if concurrency < 0 else concurrency,
            paused=bool(paused),
        )

    def metrics(self) -> Metrics:
        """Measure the queue: one round trip, or a few with thousands of lanes or of distinct priorities."""
        counts, groups = self.scripts.batch([Call("queue_metrics", self.base, ()), Call("lane_list", self.base, ())])
        pending, in_lanes, active, scheduled, dead, completed, failed, paused, awaiting, late, lanes, now, last = counts
        oldest = self._oldest([b"", *groups]) if pending or in_lanes else b""
        return Metrics(
            completed=completed,
            failed=failed,
            waiting=pending + in_lanes,
            in_lanes=in_lanes,
            active=active,
            scheduled=scheduled,
            late=late,
            dead=dead,
            lanes=lanes,
            oldest_waiting=_age(oldest, now),
            oldest_dead=_age(last, now),
            awaiting=awaiting,
            paused=bool(paused),
        )

    def _oldest(self, places: list[bytes]) -> bytes:
        """The oldest id that waits in these lanes; b"" is the flat queue, and the answer when nothing waits."""
        found: list[bytes] = []
        score = b""
        while places:
            page = places[:_LOOKS]
            oldest, stopped, score = self.run("queue_oldest", _LOOKS, score, *page)
            found.append(oldest)
            places = places[stopped - 1 if stopped else len(page) :]
        return min((id for id in found if id), default=b"")

    def obliterate(self, *, force: bool = False) -> int:
        """Destroy a paused queue: jobs of every state, results, logs, repeats, counters and settings, in bounded steps.

        Answers how many jobs were destroyed. Not one key is left, and so neither is the pause. When it is interrupted,
        the queue stays paused, each job is whole or gone, and the same call again goes on. A flow parent in another
        queue is told nothing of its children here, and waits for them until it is removed. What is owed to parents in
        other queues is destroyed too; :meth:`deliver` it before.

        A pause does not stop admissions. A job admitted meanwhile is destroyed, or, when it comes after the last step,
        waits in a queue that is new and not paused. So stop the producers first.

        Parameters:
          force: destroy active jobs too. Their workers find them gone when they settle.

        Raises:
          WrongState: when the queue is not paused, or was resumed meanwhile; and, without ``force``, while jobs are
            active.
          ServerUnavailable: when the connection broke; call it again.
        """
        forced = int(bool(force))
        # Refused before anything is looked for.
        self.run("queue_obliterate", forced, _STEP, 0)
        destroyed = 0
        for _ in range(_PASSES):
            suffixes = self._suffixes()
            empty = True
            while chunk := list(islice(suffixes, _SUFFIXES)):
                empty = False
                while chunk:
                    jobs, place = self.run("queue_obliterate", forced, _STEP, 0, *chunk)
                    destroyed += int(jobs)
                    chunk = chunk[place - 1 :] if place else []
            if empty:
                break
        # Whoever goes on writing could keep us here for ever, so the end is one step that leaves no room in between.
        while True:
            jobs, place = self.run("queue_obliterate", forced, _STEP, 1)
            destroyed += int(jobs)
            if not place:
                return destroyed

    def _suffixes(self) -> Iterator[bytes]:
        """What stands behind the base in the names of the queue's keys, but for those that go last."""
        return (suffix for suffix in self.key_suffixes() if suffix not in _LAST)


def _ceiling(count: int | None) -> int | bytes:
    """A ceiling as the scripts take it; empty for none."""
    if count is None:
        return b""
    if count == 0 and not isinstance(count, bool):
        raise InvalidArgument("a ceiling of 0 lets nothing through: use pause() for that, or None for no ceiling")
    return whole(count, "a ceiling", 1)


def _age(member: bytes, now_ms: int) -> float | None:
    """Seconds since an id was minted, by the server's clock; not below 0, for the minting clock may be ahead."""
    # A hand may have put anything into the set.
    job_id = member.decode(errors="replace")
    return max(now_ms - minted_at_ms(job_id), 0) / 1000 if is_branded(job_id) else None
