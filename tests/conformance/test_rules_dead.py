"""The morgue: pages and conditions, a second life or the end for many at once, and bounds on number and age."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conformance.scenarios import A, B, C, D, E, Start
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import InvalidArgument, InvalidId
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import Flow, JobInfo, NewJob, Queue, State, Unique, Verdict
from echomq_tasks.queue.dead import actor_name

LANE = "GRP0NgWEfAEJ0x"


def bury(wire: Wire, *ids: str, died: int | str | None = None, error: str = "boom", payload: str = "p") -> None:
    """Dead jobs as another runtime leaves them; ``died``, unix ms, is ours alone."""
    for job_id in ids:
        fields = ["state", "dead", "attempts", 1, "payload", payload, "last_error", error]
        wire.do("HSET", f"job:{job_id}", *fields, *([] if died is None else ["died", died]))
        wire.do("ZADD", "dead", 0, job_id)


def ids_of(number: int) -> list[str]:
    """Ids in the order of their mint."""
    return [f"JOB0NgWE{place:06d}" for place in range(number)]


def listed(queue: Queue, **conditions: Any) -> list[str]:
    return [job.id for job in queue.dead(**conditions)]


# -- dead() ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 1, 199, 200, 201, 400, 450])
def test_all_dead_jobs_are_listed_newest_first_however_many_pages_they_fill(
    queue: Queue, wire: Wire, number: int
) -> None:
    ids = ids_of(number)
    with wire.client.pipeline(transaction=False) as pipe:
        for job_id in ids:
            pipe.hset(f"{wire.base}job:{job_id}", mapping={"state": "dead", "attempts": 1, "payload": "p"})
            pipe.zadd(f"{wire.base}dead", {job_id: 0})
        pipe.execute()
    assert listed(queue) == ids[::-1]


def test_a_dead_job_shows_when_it_died_and_why(queue: Queue, wire: Wire) -> None:
    queue.enqueue("p", id=A)
    before = wire.now_ms()
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    (job,) = queue.dead()
    assert (job.id, job.state, job.last_error, job.failures) == (A, State.DEAD, "boom", 1)
    assert job.died is not None
    assert before <= int(job.fields["died"]) <= wire.now_ms()
    assert job.died == datetime.fromtimestamp(int(job.fields["died"]) / 1000, tz=UTC)


@pytest.mark.parametrize("how", ["retries used up", "stalled", "with its child"])
def test_every_way_to_die_notes_the_time(queue: Queue, wire: Wire, how: str) -> None:
    if how == "with its child":
        queue.add_flow(Flow(NewJob(payload="p", id=A), [NewJob(payload="p", id=B)]))
        queue.retry(queue.claim().jobs[0], max_retries=0)
    else:
        queue.enqueue("p", id=A)
        (job,) = queue.claim()
        if how == "stalled":
            wire.expire(A)
            queue.sweep_stalled(max_stalled=1)
        else:
            queue.retry(job, max_retries=0)
    now = wire.now_ms()
    assert all(now - 60_000 < int(job.fields["died"]) <= now for job in queue.dead())
    assert A in listed(queue)


def test_conditions_are_and_ed_and_each_holds_by_itself(queue: Queue, wire: Wire) -> None:
    now = wire.now_ms()
    mail, report = '{"actor_name":"mail","args":[]}', '{"actor_name":"report","args":[]}'
    bury(wire, A, died=now - 10_000_000, error="Timeout: slow", payload=mail)
    bury(wire, B, died=now - 10_000_000, error="KeyError: x", payload=mail)
    bury(wire, C, died=now, error="Timeout: slow", payload=report)
    bury(wire, D, died=now, error="Timeout: slow", payload=mail)
    bury(wire, E, died=now, error="", payload="no message")
    assert listed(queue, older_than=1000) == [B, A]
    assert listed(queue, actor="mail") == [D, B, A]
    assert listed(queue, error="Timeout") == [D, C, A]
    assert listed(queue, older_than=1000, actor="mail", error="Timeout") == [A]
    assert listed(queue, actor="report", older_than=1000) == []
    assert listed(queue, actor="no message") == []
    assert listed(queue, older_than=0) == [E, D, C, B, A]


def test_the_age_of_a_dead_job_is_that_of_its_death_and_not_of_its_id(queue: Queue, wire: Wire) -> None:
    fresh, now = queue.new_id(), wire.now_ms()
    # The old id died just now, the new one long ago; of the third nobody knows, so its mint counts.
    bury(wire, A, died=now)
    bury(wire, fresh, died=now - 3_600_000)
    bury(wire, B)
    assert now - minted_at_ms(B) > 3_600_000
    assert listed(queue, older_than=1800) == [fresh, B]
    young = queue.new_id()
    bury(wire, young)
    assert young not in listed(queue, older_than=1800)


def test_the_age_is_by_the_servers_clock(queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    bury(wire, A, died=wire.now_ms() - 100_000)
    far = datetime.now(UTC) + timedelta(days=1000)

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return far

    monkeypatch.setattr("echomq_tasks.queue.dead.datetime", Wrong)
    assert listed(queue, older_than=50) == [A]
    assert listed(queue, older_than=200) == []


@pytest.mark.parametrize(
    "conditions",
    [
        {"older_than": -1},
        {"older_than": "9"},
        {"older_than": True},
        {"older_than": float("nan")},
        {"actor": ""},
        {"actor": 7},
        {"error": ""},
        {"error": b"boom"},
    ],
    ids=repr,
)
@pytest.mark.parametrize("verb", ["dead", "retry_dead", "purge_dead"])
def test_a_malformed_condition_is_refused_at_once(queue: Queue, wire: Wire, verb: str, conditions: Any) -> None:
    bury(wire, A)
    before = wire.dumps()
    with pytest.raises(InvalidArgument):
        getattr(queue, verb)(**conditions)
    assert wire.dumps() == before


@pytest.mark.parametrize(
    ("payload", "name"),
    [
        (b'{"actor_name":"mail"}', "mail"),
        (b'{"actor_name":7}', None),
        (b'["actor_name"]', None),
        (b'"actor_name"', None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"", None),
        (b"[" * 100_000, None),
    ],
)
def test_the_actor_of_a_payload_is_read_when_there_is_one(payload: bytes, name: str | None) -> None:
    assert actor_name(payload) == name


def test_an_id_without_a_row_and_one_that_lives_again_are_left_out(queue: Queue, wire: Wire) -> None:
    bury(wire, A, B, C)
    wire.do("DEL", f"job:{B}")
    assert listed(queue) == [C, A]
    found = queue.dead()
    assert next(found).id == C
    queue.reprocess(A)
    assert listed(queue) == [C]


def test_jobs_that_die_while_the_list_is_read_do_not_disturb_it(queue: Queue, wire: Wire) -> None:
    ids = ids_of(250)
    bury(wire, *ids)
    found = queue.dead()
    seen = [next(found).id for _ in range(200)]
    bury(wire, "JOB0NgWF000000")
    queue.remove(ids[10])
    seen += [job.id for job in found]
    assert seen == [job_id for job_id in reversed(ids) if job_id != ids[10]]


# -- another life, or the end ------------------------------------------------------------------------------------------


def test_a_second_life_forgets_the_first_but_for_what_it_was(start: Start, queue: Queue, wire: Wire) -> None:
    start.dead(A, group=LANE, error="boom")
    wire.do("HSET", f"job:{A}", "died", 1, "stalled", 2, "failures", 3, "priority", 4)
    row = wire.row(A)
    assert queue.reprocess(A, payload="q") is Verdict.OK
    for gone in ("died", "stalled", "failures", "last_error"):
        del row[gone]
    assert wire.row(A) == row | {"state": "pending", "payload": "q"}
    assert wire.read(f"g:{LANE}:pending") == {A: 4}
    assert wire.read("dead") is None
    (info,) = queue.get_many([A])
    assert info is not None
    assert info.died is None


def test_many_live_again_in_the_order_in_which_they_were_made(queue: Queue, wire: Wire) -> None:
    ids = ids_of(450)
    bury(wire, *ids, died=1)
    assert queue.retry_dead() == 450
    assert wire.ids("pending") == ids
    assert [job.id for job in queue.claim(450)] == ids
    assert queue.retry_dead() == 0


@pytest.mark.parametrize("limit", [1, 199, 200, 201, 449, 450, 1000])
def test_a_limit_takes_the_newest_and_no_more(queue: Queue, wire: Wire, limit: int) -> None:
    ids = ids_of(450)
    bury(wire, *ids)
    assert queue.retry_dead(limit=limit) == min(limit, 450)
    assert wire.ids("pending") == ids[-limit:]
    assert queue.counts().dead == 450 - min(limit, 450)


def test_a_limit_counts_those_that_are_meant(queue: Queue, wire: Wire) -> None:
    ids = ids_of(450)
    bury(wire, *ids[:50], error="sought")
    bury(wire, *ids[50:], error="other")
    assert queue.retry_dead(error="sought", limit=20) == 20
    assert wire.ids("pending") == ids[30:50]


@pytest.mark.parametrize("limit", [0, -1, 1.5, True, "9"])
def test_a_limit_that_is_none_is_refused(queue: Queue, wire: Wire, limit: Any) -> None:
    bury(wire, A)
    with pytest.raises(InvalidArgument):
        queue.retry_dead(limit=limit)
    assert queue.state(A) is State.DEAD


def test_each_may_get_a_new_payload_or_keep_its_own(queue: Queue, wire: Wire) -> None:
    bury(wire, A, B)

    def payload(job: JobInfo) -> bytes | None:
        return b"new" if job.id == A else None

    assert queue.retry_dead(payload=payload) == 2
    assert [(job.id, job.payload) for job in queue.claim(2)] == [(A, b"new"), (B, b"p")]


def test_a_payload_that_cannot_be_made_leaves_its_page_as_it_is(queue: Queue, wire: Wire) -> None:
    bury(wire, A, B)
    with pytest.raises(InvalidArgument, match="bytes or str"):
        queue.retry_dead(payload=lambda job: 7)  # type: ignore[arg-type, return-value]
    with pytest.raises(ZeroDivisionError):
        queue.retry_dead(payload=lambda job: b"%d" % (1 // 0))
    assert listed(queue) == [B, A]


def test_a_purge_drops_those_that_are_meant_with_all_that_is_kept_of_them(queue: Queue, wire: Wire) -> None:
    ids = ids_of(450)
    bury(wire, *ids[:430], error="sought")
    bury(wire, *ids[430:], error="other")
    queue.add_log(ids[0], "a line")
    assert queue.purge_dead(error="sought") == 430
    assert wire.ids("dead") == ids[430:]
    assert queue.purge_dead() == 20
    assert list(wire.keys()) == []


class Meanwhile:
    """A queue's dead jobs, with something that happens between their being read and what is done with them."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
        attempt, left = queue.scripts.attempt, [happens]
        self._left = left

        def interrupted(calls: Any, *args: Any, **kwargs: Any) -> Any:
            if left and calls[0][0] in ("job_reprocess", "job_remove"):
                left.pop()()
            return attempt(calls, *args, **kwargs)

        monkeypatch.setattr(queue.scripts, "attempt", interrupted)

    @property
    def happened(self) -> bool:
        return not self._left


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
@pytest.mark.parametrize("fate", ["lives again", "runs", "is scheduled", "is gone"])
def test_what_became_of_a_job_since_it_was_read_is_left_alone(
    queue: Queue, wire: Wire, connection: Connection, monkeypatch: pytest.MonkeyPatch, verb: str, fate: str
) -> None:
    bury(wire, A, B)
    other = Queue(queue.name, connection)

    def happens() -> None:
        if fate == "is gone":
            other.remove(A)
            return
        other.reprocess(A)
        if fate != "lives again":
            (job,) = other.claim()
            if fate == "is scheduled":
                other.retry(job, delay=60)

    between = Meanwhile(queue, monkeypatch, happens)
    assert getattr(queue, verb)() == 1
    assert between.happened
    expected = {
        "lives again": State.PENDING,
        "runs": State.ACTIVE,
        "is scheduled": State.SCHEDULED,
        "is gone": State.ABSENT,
    }[fate]
    assert queue.state(A) is expected
    assert queue.state(B) is (State.PENDING if verb == "retry_dead" else State.ABSENT)


@pytest.mark.parametrize("verb", ["retry_dead", "purge_dead"])
def test_only_those_that_are_named_are_meant_however_many_and_if_they_are_dead(
    queue: Queue, wire: Wire, verb: str
) -> None:
    queue.enqueue_many(["p"] * 460)
    for job in queue.claim(460).jobs:
        queue.retry(job, "no luck", max_retries=0)
    waits = queue.enqueue("p").id
    ids = sorted(job.id for job in queue.dead())
    named = [*ids[:450], waits, queue.new_id(), ids[0]]
    assert getattr(queue, verb)(only=[]) == 0
    assert getattr(queue, verb)(only=named, error="no such error") == 0
    assert getattr(queue, verb)(only=named) == 450
    assert sorted(job.id for job in queue.dead()) == ids[450:]
    assert queue.state(waits) is State.PENDING
    with pytest.raises(InvalidId):
        getattr(queue, verb)(only=["GRP48IbgTeK9Cr"])


def test_the_servers_clock_is_told_as_an_instant(queue: Queue, wire: Wire) -> None:
    before = wire.now_ms()
    now = queue.now()
    assert now.utcoffset() == timedelta(0)
    assert before <= round(now.timestamp() * 1000) <= wire.now_ms()


def test_retries_and_purges_race_and_each_job_meets_one_of_them(connection: Connection, queue: Queue) -> None:
    queue.enqueue_many(["p"] * 600)
    while jobs := queue.claim(200).jobs:
        for job in jobs:
            queue.retry(job, max_retries=0)
    start = threading.Barrier(8)

    def take(verb: str) -> int:
        start.wait()
        done: int = getattr(queue, verb)()
        return done

    with ThreadPoolExecutor(8) as pool:
        revived = [pool.submit(take, "retry_dead") for _ in range(4)]
        dropped = [pool.submit(take, "purge_dead") for _ in range(4)]
        lives, ends = (sum(each.result() for each in some) for some in (revived, dropped))
    assert lives + ends == 600
    counts = queue.counts()
    assert (counts.pending, counts.dead) == (lives, 0)


# -- bounds ------------------------------------------------------------------------------------------------------------


def trim_all(queue: Queue, **bounds: Any) -> int:
    """Step by step until all that are left are within the bounds; each step no more than a hundred times."""
    total, behind = 0, None
    for _ in range(100):
        dropped, behind = queue.trim_dead(behind=behind, **bounds)
        total += dropped
        if behind is None:
            return total
    raise AssertionError("it never comes to an end")


@pytest.mark.parametrize("limit", [1, 3, 4, 5, 6, 10_000])
def test_the_oldest_go_when_there_are_too_many(queue: Queue, wire: Wire, limit: int) -> None:
    ids = ids_of(10)
    bury(wire, *ids, died=1)
    assert trim_all(queue, most=5, limit=limit) == 5
    assert wire.ids("dead") == ids[5:]
    assert sorted(key for key in wire.keys() if key.startswith("job:")) == [f"job:{job_id}" for job_id in ids[5:]]
    assert queue.trim_dead(most=5, limit=limit) == (0, None)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 9, 10, 11, 500])
def test_those_go_that_have_been_dead_for_too_long_wherever_they_stand(queue: Queue, wire: Wire, limit: int) -> None:
    ids, now = ids_of(10), wire.now_ms()
    old = {ids[0], ids[3], ids[4], ids[9]}
    for job_id in ids:
        bury(wire, job_id, died=now - 1_000_000 if job_id in old else now)
    assert trim_all(queue, ttl=500, limit=limit) == 4
    assert wire.ids("dead") == [job_id for job_id in ids if job_id not in old]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 7, 500])
def test_both_bounds_hold_together(queue: Queue, wire: Wire, limit: int) -> None:
    ids, now = ids_of(12), wire.now_ms()
    for place, job_id in enumerate(ids):
        bury(wire, job_id, died=now - 1_000_000 if place % 3 == 0 else now)
    # The four oldest are too many; of the others, the seventh and the tenth are too old.
    assert trim_all(queue, most=8, ttl=500, limit=limit) == 6
    assert wire.ids("dead") == [job_id for place, job_id in enumerate(ids) if place in (4, 5, 7, 8, 10, 11)]


@pytest.mark.parametrize(
    "bounds", [{"most": 3}, {"ttl": 500.0}, {"most": 3, "ttl": 500.0}, {"most": 18, "ttl": 500.0}], ids=str
)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_one_step_looks_at_no_more_than_its_limit(queue: Queue, wire: Wire, bounds: dict[str, Any], limit: int) -> None:
    ids = ids_of(20)
    bury(wire, *ids)
    dropped, behind = queue.trim_dead(limit=limit, **bounds)
    looked_at = dropped + sum("died" in wire.row(job_id) for job_id in wire.ids("dead"))
    assert looked_at == limit
    assert behind is not None


def test_a_step_goes_on_where_the_last_one_ended_whatever_became_of_that_job(queue: Queue, wire: Wire) -> None:
    ids, now = ids_of(6), wire.now_ms()
    bury(wire, *ids, died=now)
    assert queue.trim_dead(ttl=500, limit=3) == (0, ids[2])
    queue.remove(ids[2])
    bury(wire, ids[0], ids[4], died=1)
    assert queue.trim_dead(ttl=500, limit=3, behind=ids[2]) == (1, ids[5])
    assert queue.trim_dead(ttl=500, limit=3, behind=ids[5]) == (0, None)
    assert wire.ids("dead") == [ids[0], ids[1], ids[3], ids[5]]


def test_one_of_another_runtime_counts_from_when_it_is_first_seen(queue: Queue, wire: Wire) -> None:
    bury(wire, A)
    before = wire.now_ms()
    assert queue.trim_dead(ttl=500) == (0, None)
    assert before <= int(wire.row(A)["died"]) <= wire.now_ms()
    wire.do("HSET", f"job:{A}", "died", wire.now_ms() - 500_001)
    assert queue.trim_dead(ttl=500) == (1, None)


@pytest.mark.parametrize("died", ["", "x", "nan", "inf", "99999999999999", "1e400"])
def test_a_time_of_death_that_cannot_be_counts_from_when_it_is_first_seen(queue: Queue, wire: Wire, died: str) -> None:
    bury(wire, A, died=died)
    assert queue.trim_dead(ttl=500) == (0, None)
    assert abs(int(wire.row(A)["died"]) - wire.now_ms()) < 60_000
    assert listed(queue) == [A]


def test_an_id_whose_row_is_gone_goes_too(queue: Queue, wire: Wire) -> None:
    wire.do("ZADD", "dead", 0, A, 0, B)
    bury(wire, C, died=wire.now_ms())
    wire.do("RPUSH", f"job:{B}", "of a wrong type")
    assert queue.trim_dead(ttl=500) == (2, None)
    assert set(wire.keys()) == {"dead", f"job:{C}"}
    assert wire.ids("dead") == [C]


def test_what_is_dropped_leaves_nothing_and_lets_go_of_its_key(queue: Queue, wire: Wire) -> None:
    bury(wire, A, died=1)
    queue.add_log(A, "a line")
    wire.do("HSET", f"job:{A}", "dedup", "key", "unique", "done")
    wire.do("SET", "de:key", A)
    assert queue.trim_dead(ttl=500) == (1, None)
    assert list(wire.keys()) == []


def test_a_dead_child_that_is_dropped_tells_its_parent_nothing_twice(queue: Queue, wire: Wire) -> None:
    child = Flow(NewJob(payload="p", id=B), on_failure="ignore")
    queue.add_flow(Flow(NewJob(payload="p", id=A), [child, Flow(NewJob(payload="p", id=C))]))
    queue.retry(queue.claim().jobs[0], "boom", max_retries=0)
    assert queue.trim_dead(most=1) == (0, None)
    wire.do("HSET", f"job:{B}", "died", 1)
    assert queue.trim_dead(ttl=1) == (1, None)
    children = queue.children(A)
    assert children is not None
    assert dict(children.ignored) == {B: "boom"}
    assert wire.read(f"job:{A}:dependencies") == "1"


def test_without_bounds_nothing_happens(queue: Queue, wire: Wire) -> None:
    bury(wire, A, B, died=1)
    before = wire.everything()
    assert queue.trim_dead() == (0, None)
    assert wire.everything() == before


def test_two_that_trim_at_once_drop_no_more_than_one_would(queue: Queue, wire: Wire) -> None:
    ids = ids_of(400)
    bury(wire, *ids, died=wire.now_ms())
    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(trim_all, queue, most=100, ttl=500.0, limit=17) for _ in range(4)]
        assert sum(run.result() for run in runs) == 300
    assert wire.ids("dead") == ids[300:]


@pytest.mark.parametrize(
    "bounds",
    [
        {"most": 0},
        {"most": -1},
        {"most": 1.5},
        {"most": True},
        {"ttl": 0},
        {"ttl": -1},
        {"ttl": float("inf")},
        {"ttl": "9"},
        {"limit": 0},
        {"limit": 10_001},
    ],
    ids=repr,
)
def test_a_bound_out_of_range_is_refused(queue: Queue, wire: Wire, bounds: Any) -> None:
    bury(wire, A, died=1)
    before = wire.dumps()
    with pytest.raises(InvalidArgument):
        queue.trim_dead(**bounds)
    with pytest.raises(InvalidId):
        queue.trim_dead(behind="oldest")
    assert wire.dumps() == before


def test_a_unique_job_that_lives_again_holds_its_key_again(queue: Queue, wire: Wire) -> None:
    queue.enqueue(json.dumps("p"), id=A, unique=Unique("key"))
    queue.retry(queue.claim().jobs[0], max_retries=0)
    assert queue.retry_dead() == 1
    assert wire.read("de:key") == A
    assert queue.enqueue("p", id=B, unique=Unique("key")).id == A
    assert queue.complete(queue.claim().jobs[0]) is Verdict.OK
    assert wire.read("de:key") is None
