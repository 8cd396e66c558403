"""The queue against its model: any sequence of verbs leaves the server's keys exactly as the model says."""

from __future__ import annotations

import secrets
from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from queue_model import ModelJob, QueueModel
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import StaleToken
from echomq_tasks.queue import Complete, Job, Queue, Release, Retry, Verdict

LANES = ["GRP0NgWEfAEJ0x", "GRP0NgWEfAEJ0y", "GRP0NgWEfAEJ0z"]
GROUPS = st.sampled_from([None, *LANES])
LANE = st.sampled_from(LANES)
COUNT = st.integers(1, 6)
DATA = st.randoms(use_true_random=False)


class QueueMachine(RuleBasedStateMachine):
    """Drives a queue of its own on one server; the model follows, and the keys are compared after every step."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        name = f"m-{secrets.token_hex(4)}"
        self.queue, self.wire = Queue(name, connection), Wire(connection, name)
        self.model = QueueModel()
        #: Every claim ever handed out: the old ones are used too, to see them refused.
        self.claims: list[Job] = []

    def teardown(self) -> None:
        for suffix in list(self.wire.keys()):
            self.wire.do("DEL", suffix)

    # -- verbs --------------------------------------------------------------------------------------------------

    @initialize(groups=st.lists(GROUPS, max_size=6))
    def start_with_a_backlog(self, groups: list[str | None]) -> None:
        for group in groups:
            self.enqueue(group, 0, False)

    @rule(group=GROUPS, priority=st.sampled_from([0, 0, 0, -2, 3]), delayed=st.booleans())
    def enqueue(self, group: str | None, priority: int, delayed: bool) -> None:
        answer = self.queue.enqueue("p", group=group, priority=priority, delay=1000 if delayed else None)
        state = "scheduled" if delayed else "pending"
        self.model.jobs[answer.id] = ModelJob(answer.id, group, priority, state)

    @precondition(lambda self: self.model.jobs)
    @rule(random=DATA)
    def enqueue_a_duplicate(self, random: Random) -> None:
        assert self.queue.enqueue("p", id=random.choice(sorted(self.model.jobs))).duplicate

    @rule(count=COUNT)
    def claim(self, count: int) -> None:
        if not self.model.paused:
            self.model.promote()
        expected = min(count, self.model.claimable())
        claimed = self.queue.claim(count)
        assert len(claimed) == expected
        for job in claimed:
            model = self.model.claim(job.id)
            assert (job.token, job.group) == (model.attempts, model.group)
            assert (job.failures, job.stalled) == (model.failures, model.stalled)
            self.claims.append(job)

    def _pick(self, random: Random) -> tuple[Job, ModelJob | None, bool]:
        """Some claim, mostly a recent one; the job in the model; and whether the token is still good."""
        job = random.choice(self.claims[-6:] if random.random() < 0.8 else self.claims)
        model = self.model.jobs.get(job.id)
        return job, model, model is not None and model.attempts == job.token

    @precondition(lambda self: self.claims)
    @rule(random=DATA, verb=st.sampled_from(["complete", "retry", "release"]), limit=st.integers(0, 2))
    def settle(self, random: Random, verb: str, limit: int) -> None:
        job, model, good = self._pick(random)
        settlements: dict[str, Complete | Retry | Release] = {
            "complete": Complete(job, "r"),
            "retry": Retry(job, "boom", delay=1000, max_retries=limit),
            "release": Release(job),
        }
        (verdict,) = self.queue.settle([settlements[verb]])
        if model is None:
            assert verdict is (Verdict.STALE if verb == "retry" else Verdict.GONE)
        elif not good:
            assert verdict is Verdict.STALE
        elif verb == "complete":
            assert verdict is Verdict.OK
            self.model.complete(model)
        elif verb == "retry":
            assert verdict.value == self.model.retry(model, limit)
        else:
            assert verdict is Verdict.OK
            if model.state == "active":
                self.model.back(model)

    @precondition(lambda self: self.claims)
    @rule(random=DATA)
    def extend(self, random: Random) -> None:
        job, model, good = self._pick(random)
        try:
            verdict = self.queue.extend(job, lease=600)
        except StaleToken:
            verdict = Verdict.STALE
        if model is None:
            assert verdict is Verdict.GONE
        elif good and model.state == "active":
            assert verdict is Verdict.OK
            model.late = False
        else:
            assert verdict is Verdict.STALE

    @rule(limit=COUNT)
    def promote(self, limit: int) -> None:
        assert self.queue.promote(limit) == self.model.promote(limit)

    @rule(limit=COUNT)
    def reap(self, limit: int) -> None:
        expired = self.model.expired(limit)
        assert self.queue.reap(limit) == len(expired)
        for job in expired:
            self.model.back(job)

    @rule(limit=COUNT, most=st.integers(1, 3))
    def sweep(self, limit: int, most: int) -> None:
        expired = self.model.expired(limit)
        swept = self.queue.sweep_stalled(limit=limit, max_stalled=most)
        for job in expired:
            job.stalled += 1
        dead = [job for job in expired if job.stalled >= most]
        assert swept.dead == tuple(job.id for job in dead)
        assert swept.recovered == tuple(job.id for job in expired if job not in dead)
        for job in expired:
            self.model.bury(job) if job in dead else self.model.back(job)

    # -- time, and what other runtimes do -----------------------------------------------------------------------

    @precondition(lambda self: self.model.of("active"))
    @rule(random=DATA)
    def let_a_lease_end(self, random: Random) -> None:
        job = random.choice(self.model.of("active"))
        self.wire.do("ZADD", "active", 1, job.id)
        job.late = True

    @precondition(lambda self: self.model.of("scheduled"))
    @rule(random=DATA)
    def let_a_time_come(self, random: Random) -> None:
        job = random.choice(self.model.of("scheduled"))
        self.wire.do("ZADD", "schedule", 1, job.id)
        job.late = True

    @rule()
    def pause_or_resume_the_queue(self) -> None:
        self.model.paused = not self.model.paused
        self.wire.do("HSET", "meta", "paused", int(self.model.paused))
        self.wire.do("LPUSH", "wake", 1)

    @rule(group=LANE)
    def pause_or_resume_a_lane(self, group: str) -> None:
        self.wire.do("SREM" if group in self.model.paused_lanes else "SADD", "paused", group)
        self.model.paused_lanes ^= {group}
        self._mend_ring(group)

    @rule(group=LANE, limit=st.sampled_from([None, 0, 1, 2, 3]))
    def limit_a_lane(self, group: str, limit: int | None) -> None:
        if limit is None:
            self.wire.do("HDEL", "glimit", group)
            self.model.limits.pop(group, None)
        else:
            self.wire.do("HSET", "glimit", group, limit)
            self.model.limits[group] = limit
        self._mend_ring(group)

    def _mend_ring(self, group: str) -> None:
        """What the verbs of lanes do in the same step: the ring holds the lane exactly when it can be served."""
        if group not in self.model.serviceable():
            self.wire.do("LREM", "ring", 0, group)
        elif group not in self.wire.ring():
            self.wire.do("RPUSH", "ring", group)
            self.wire.do("LPUSH", "wake", 1)
            self.wire.do("LTRIM", "wake", 0, 63)

    # -- what is always true ------------------------------------------------------------------------------------

    @invariant()
    def each_job_is_in_exactly_one_place_and_in_its_order(self) -> None:
        assert self.wire.ids("pending") == [job.id for job in self.model.waiting(None)]
        for group in LANES:
            assert self.wire.ids(f"g:{group}:pending") == [job.id for job in self.model.waiting(group)]
        for key, state in (("active", "active"), ("schedule", "scheduled"), ("dead", "dead")):
            assert set(self.wire.ids(key)) == {job.id for job in self.model.of(state)}

    @invariant()
    def the_ring_is_exactly_the_lanes_that_can_be_served(self) -> None:
        ring = self.wire.ring()
        assert len(ring) == len(set(ring))
        assert set(ring) == self.model.serviceable()

    @invariant()
    def the_running_counts_are_those_of_active(self) -> None:
        assert self.wire.running() == self.model.running()

    @invariant()
    def rows_and_counts_say_the_same(self) -> None:
        infos = self.queue.get_many(sorted(self.model.jobs))
        for info, job in zip(infos, (self.model.jobs[job_id] for job_id in sorted(self.model.jobs)), strict=True):
            assert info is not None
            assert (info.state.value, info.fields["state"].decode()) == (job.state, job.state)
            assert (info.attempts, info.failures, info.stalled) == (job.attempts, job.failures, job.stalled)
            assert (info.priority, info.group) == (job.priority, job.group)
        counts = self.queue.counts()
        flat = len(self.model.waiting(None))
        assert (counts.pending, counts.in_lanes) == (flat, len(self.model.of("pending")) - flat)
        states = ("active", "scheduled", "dead")
        assert (counts.active, counts.scheduled, counts.dead) == tuple(len(self.model.of(state)) for state in states)
        assert (counts.completed, counts.failed) == (self.model.completed, self.model.failed)
        assert counts.paused == self.model.paused

    @invariant()
    def a_job_that_can_be_claimed_never_waits_without_a_wake_token(self) -> None:
        # Nobody takes tokens here, so only a claim that finds nothing may take them all.
        assert (1 if self.model.claimable() else 0) <= self.wire.wakes() <= 64


@pytest.mark.timeout(600)  # only a failure takes long: it is shrunk to its shortest form
def test_the_queue_does_what_its_model_does(standalone: Connection) -> None:
    run_state_machine_as_test(
        partial(QueueMachine, standalone),  # type: ignore[arg-type]  # it only calls it
        settings=settings(
            max_examples=130,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
