"""Repeats: registrations that admit a job again and again, at a fixed interval or by a cron expression.

A registration is scored by its next run. Whoever finds it due says which score it saw; the script fires it only while
that is still its score, and moves it on. So an occurrence fires once, however many workers race for it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from echomq_tasks.errors import InvalidArgument, ScriptError
from echomq_tasks.identity import group_id, is_branded
from echomq_tasks.keyspace import repeat_key
from echomq_tasks.queue import cron as crons
from echomq_tasks.queue.admission import unique_fields
from echomq_tasks.queue.arguments import EXACT, payload_bytes, seconds_to_ms, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import Unique

#: With ``catch_up=False`` an occurrence still fires when it is less than this late, in seconds.
LATE_SECONDS = 30.0
#: A registration that cannot be fired is looked at again after so many seconds.
SPOILT_SECONDS = 3600.0
#: The most registrations that one call looks at.
_MOST = 1000
#: A collision is two processes on one node id in one millisecond; this many in a row is something else.
_MAX_COLLISIONS = 1000
#: What the script answers about the registration of a due name.
_NO_HASH, _NO_TEMPLATE = 0, 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Repeat:
    """A registration.

    Attributes:
      name: its name.
      next_run: when it runs next.
      every: its interval in seconds; None by cron, or when another runtime left no number.
      cron: its expression, None at an interval.
      tz: the time zone of ``cron``.
      limit: how many jobs it admits in all; None without end.
      fired: how many it has admitted.
      catch_up: whether a missed occurrence fires late, however late.
      priority: of its jobs.
      group: the branded id of its jobs' lane, None when flat.
      group_limit: how many of that lane's jobs may run at once, unless somebody sets another limit.
      unique: what keeps a run out while the last one goes on.
      payload: of its jobs.
    """

    name: str
    next_run: datetime
    every: float | None
    cron: str | None
    tz: str
    limit: int | None
    fired: int
    catch_up: bool
    priority: int
    group: str | None
    group_limit: int | None
    unique: Unique | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class _Due:
    """A due registration as the server has it; the name and the score travel back as they came."""

    name: bytes
    seen: bytes
    whole: int
    every_ms: bytes | None
    cron: bytes | None
    tz: bytes | None
    limit: bytes | None
    fired: bytes | None
    catch_up: bytes | None
    priority: bytes | None
    group: bytes | None


@dataclass(frozen=True, slots=True)
class _Step:
    """What becomes of a due registration: it fires or not, and stands at ``following`` then."""

    due: _Due
    fires: bool
    following: int | None
    every_ms: int | None = None

    def tail(self) -> tuple[bytes | str | int, ...]:
        """The arguments that both scripts end an entry with."""
        following = "" if self.following is None else self.following
        return self.due.name, self.due.seen, following, "" if self.every_ms is None else self.every_ms


class Repeats(Handle):
    """Registering, listing, cancelling and firing repeats."""

    def repeat(
        self,
        name: str,
        payload: bytes | str,
        *,
        every: float | None = None,
        cron: str | None = None,
        tz: str = "UTC",
        first_in: float | None = None,
        limit: int | None = None,
        catch_up: bool = True,
        priority: int = 0,
        group: str | None = None,
        group_limit: int | None = None,
        unique: Unique | None = None,
        replace: bool = False,
    ) -> bool:
        """Register a repeat; True when it was registered or changed by this call.

        A name that is registered stays as it is, so every process may call this when it starts. With ``limit`` the
        registration goes with its last job: registered again after that, it begins anew.

        Parameters:
          name: 1 to 128 of ``A-Z a-z 0-9 . _ -``.
          payload: of each of its jobs.
          every: the interval in seconds, 0.001 at least. Exactly one of ``every`` and ``cron``.
          cron: five fields (minute, hour, day of month, month, day of week), or six (second first).
          tz: the time zone of ``cron``, as in ``Europe/Athens``.
          first_in: seconds until the first run of ``every``; one interval by default.
          limit: how many jobs in all; the registration goes with the last one.
          catch_up: after a time without workers, fire once for all that was missed. With False only an occurrence less
            than 30 s late is fired.
          priority: of its jobs; lower runs first.
          group: the lane of its jobs: a branded id, or any text.
          group_limit: how many jobs of that lane may run at once; each job brings it, as ``group_limit`` of
            :class:`~echomq_tasks.queue.NewJob`.
          unique: a run is left out while another job holds this key, as one of the last run that goes on still.
          replace: change a registration of that name that differs. Its count goes on, and so does its next run unless
            ``every``, ``cron`` or ``tz`` is another.

        Raises:
          InvalidArgument, InvalidName: before anything was written.
          ServerOutOfMemory: the server's memory is full and it would have been registered or changed; it was not.
        """
        repeat_key(self.name, name)
        check_repeat(every=every, cron=cron, tz=tz, first_in=first_in, catch_up=catch_up)
        if not isinstance(replace, bool):
            raise InvalidArgument(f"replace is True or False, not {replace!r}")
        fields: dict[str, bytes | str | int] = {}
        if limit is not None:
            fields["limit"] = whole(limit, "limit", 1)
        if not catch_up:
            fields["catch_up"] = 0
        if whole(priority, "priority", -EXACT, EXACT):
            fields["priority"] = int(priority)
        if group is not None:
            fields["group"] = group_id(group)
            if group != fields["group"]:
                fields["group_name"] = group
        if group_limit is not None:
            if group is None:
                raise InvalidArgument("group_limit= bounds the lane of a group: give group= too")
            fields["group_limit"] = whole(group_limit, "group_limit", 1)
        if unique is not None:
            fields |= unique_fields(unique)
        template = payload_bytes(payload)
        if cron is not None:
            parsed = crons.parse(cron, tz)
            fields |= {"cron": parsed.expression, "tz": parsed.tz}
            now = int(self.run("queue_clock"))
            mode, (first, every_ms) = "at", crons.next_runs(parsed, now)
        else:
            every_ms = seconds_to_ms(_interval(every), "every")
            mode, first = "in", every_ms if first_in is None else seconds_to_ms(first_in, "first_in")
        pairs = [word for pair in fields.items() for word in pair]
        definition = (every_ms, template, *pairs)
        # Asked without a write: a server whose memory is full still says of a repeat that it has that it has it.
        if self.run("repeat_stands", name, int(replace), *definition):
            return False
        return bool(self.run_once("repeat_register", name, int(replace), mode, first, *definition))

    def repeats(self) -> list[Repeat]:
        """All registrations, in the order of their next runs."""
        return [_repeat(name, score, fields) for name, score, fields in self.run("repeat_list")]

    def cancel_repeat(self, name: str) -> bool:
        """Cancel a registration; False when there was none. Jobs that it has admitted stay.

        Raises:
          InvalidName: before a byte is sent.
        """
        repeat_key(self.name, name)
        return bool(self.run_once("repeat_cancel", name))

    def fire_repeats(self, limit: int = 100) -> list[str]:
        """Admit a job for each registration that is due by the server's clock; answers the ids of those jobs.

        Any worker may call it at any time: an occurrence fires once. One registration fires once a call, however many
        of its occurrences were missed. One that cannot be fired is logged as an error and left alone for an hour.

        Parameters:
          limit: look at no more registrations than this; the longest due come first.

        Raises:
          InvalidArgument: when ``limit`` is not from 1 to 1000.
          ServerOutOfMemory: the server's memory is full; they stay due.
        """
        now, *entries = self.run("repeat_due", whole(limit, "limit", 1, _MOST))
        steps = [self._step(_Due(*entry), now) for entry in entries]
        skips = [word for step in steps if not step.fires for word in step.tail()]
        if skips:
            self.run("repeat_skip", *skips)
        return self._fire([step for step in steps if step.fires])

    def _fire(self, steps: Sequence[_Step]) -> list[str]:
        left = list(range(len(steps)))
        fired: dict[int, str] = {}
        for _ in range(_MAX_COLLISIONS):
            if not left:
                return [fired[place] for place in sorted(fired)]
            ids = {place: self.scripts.mint.mint("JOB") for place in left}
            words = [word for place in left for word in (ids[place], *steps[place].tail())]
            verdicts = self.run_once("repeat_fire", *words)
            answers = dict(zip(left, verdicts, strict=True))
            fired |= {place: ids[place] for place, verdict in answers.items() if verdict == 1}
            # A fresh id that has a row already would cost that job its row: mint another.
            left = [place for place, verdict in answers.items() if verdict == -2]
        raise ScriptError(f"{len(left)} repeats met job ids that exist already {_MAX_COLLISIONS} times in a row")

    def _step(self, due: _Due, now: int) -> _Step:
        """Decide on a due registration; whatever is wrong with it must not stop the others."""
        try:
            return _decide(due, now)
        except InvalidArgument as error:
            name = _word(due.name)
            if due.whole == _NO_HASH:
                _log.error("queue %s: the repeat %r has no registration; its name is dropped", self.name, name)
                return _Step(due, fires=False, following=None)
            _log.error(
                "queue %s: the repeat %r cannot be fired: %s; register it again with replace=True, or cancel it. It is "
                "left alone for an hour",
                self.name,
                name,
                error,
            )
            return _Step(due, fires=False, following=now + int(SPOILT_SECONDS * 1000))


def check_repeat(
    *,
    every: float | None = None,
    cron: str | None = None,
    tz: str = "UTC",
    first_in: float | None = None,
    catch_up: bool = True,
) -> None:
    """Check when a repeat runs, as its registration would, without sending it.

    Raises:
      InvalidArgument: when it is malformed, or never runs.
    """
    if (every is None) == (cron is None):
        raise InvalidArgument("a repeat has either every= or cron=")
    if not isinstance(catch_up, bool):
        raise InvalidArgument(f"catch_up is True or False, not {catch_up!r}")
    if cron is not None:
        if first_in is not None:
            raise InvalidArgument("first_in= belongs to every=: a cron expression says itself when it runs first")
        # Refused here when it never occurs, by any clock.
        crons.next_runs(crons.parse(cron, tz), int(time.time() * 1000))
        return
    if tz != "UTC":
        raise InvalidArgument("tz= belongs to cron=: an interval is the same in every time zone")
    seconds_to_ms(_interval(every), "every")
    if first_in is not None:
        seconds_to_ms(first_in, "first_in")


def _interval(every: float | None) -> float:
    # Below a millisecond it would round up to one, which is not what was asked for.
    if isinstance(every, (int, float)) and 0 <= every < 0.001:
        raise InvalidArgument(f"every is a number of seconds from 0.001 up, not {every!r}")
    return every  # type: ignore[return-value]  # whatever else it is, seconds_to_ms says what it should be


def _word(value: bytes) -> str:
    """What should be a text, as another runtime may have left it."""
    return value.decode(errors="replace")


def _number(value: bytes | str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and abs(number) <= EXACT else None


def _decide(due: _Due, now: int) -> _Step:
    """What a due registration does now.

    Raises:
      InvalidArgument: when another runtime, or a hand, left it without what it takes.
    """
    if due.whole in (_NO_HASH, _NO_TEMPLATE):
        raise InvalidArgument("it has no template")
    every = _number(due.every_ms)
    if every is None or every <= 0:
        raise InvalidArgument(f"its every_ms is {due.every_ms!r}, which is no number above 0")
    if due.group is not None and not is_branded(_word(due.group)):
        raise InvalidArgument(f"its group is {due.group!r}, which is no branded id")
    score, catch_up = _number(due.seen), due.catch_up != b"0"
    # The earliest instant whose occurrence is still worth a job of its own.
    late = now - int(LATE_SECONDS * 1000)
    if due.cron is None:
        every_ms = max(1, int(every))
        if score is None:
            return _Step(due, fires=False, following=now + every_ms)
        following = crons.next_on_grid(math.floor(score), every_ms, now)
        return _Step(due, catch_up or following - every_ms > late, following)
    parsed = crons.parse(_word(due.cron), "UTC" if due.tz is None else _word(due.tz))
    following, gap = crons.next_runs(parsed, now)
    if score is None or not crons.is_run(parsed, score):
        # A runtime without cron has moved it by every_ms past a run of another distance: it only goes back on its way.
        return _Step(due, fires=False, following=following, every_ms=gap)
    last = crons.next_run(parsed, late)
    fires = catch_up or score > late or (last is not None and last <= now)
    return _Step(due, fires, following, gap)


def _repeat(name: bytes, score: bytes, words: list[bytes]) -> Repeat:
    fields = {_word(field): value for field, value in zip(words[::2], words[1::2], strict=True)}
    every, group = _number(fields.get("every_ms")), fields.get("group")
    cron = _word(fields["cron"]) if "cron" in fields else None
    return Repeat(
        name=_word(name),
        next_run=_instant(float(score)),
        every=None if every is None or cron is not None else every / 1000,
        cron=cron,
        tz=_word(fields.get("tz", b"UTC")),
        limit=_whole_or_none(fields.get("limit")),
        fired=int(_number(fields.get("fired")) or 0),
        catch_up=fields.get("catch_up") != b"0",
        priority=int(_number(fields.get("priority")) or 0),
        group=None if group is None else _word(group),
        group_limit=_whole_or_none(fields.get("group_limit")),
        unique=_unique(fields),
        payload=fields.get("template", b""),
    )


def _whole_or_none(value: bytes | None) -> int | None:
    return int(_number(value) or 0) or None


def _unique(fields: Mapping[str, bytes]) -> Unique | None:
    key, until, ttl = fields.get("dedup"), _word(fields.get("unique", b"")), _number(fields.get("ttl"))
    if key is None or until not in ("done", "start", "window") or ttl is None or ttl <= 0:
        return None
    return Unique(_word(key), until, ttl / 1000)  # type: ignore[arg-type]  # one of the three, as was just seen


def _instant(ms: float) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    except OverflowError:
        # A score of another runtime or a hand, outside of the years that Python can name: it must still be listed.
        return (datetime.max if ms > 0 else datetime.min).replace(tzinfo=UTC)
