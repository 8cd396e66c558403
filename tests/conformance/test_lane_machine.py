"""Lanes against their model: whatever operator and workers do in turn, the ring is exactly what can be served."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from lane_model import LaneModel
from test_queue_machine import COUNT, DATA, GROUPS, LANE, LANES, QueueMachine

from echomq_tasks.connection import Connection
from echomq_tasks.errors import Held, WrongState
from echomq_tasks.queue import LaneInfo, Verdict

CEILING = st.sampled_from([None, 1, 2, 3, 5])


class LaneMachine(QueueMachine):
    """The queue's machine, in which settings are changed by their verbs and not by hand."""

    model: LaneModel

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.model = LaneModel()

    # -- in place of what the other machine does by hand -----------------------------------------------------------

    @rule()
    def pause_or_resume_the_queue(self) -> None:
        if self.model.paused:
            assert not self.queue.pause()
            assert self.queue.resume()
        else:
            assert not self.queue.resume()
            assert self.queue.pause()
        self.model.paused = not self.model.paused

    @rule(group=LANE)
    def pause_or_resume_a_lane(self, group: str) -> None:
        lane, paused = self.queue.lane(group), group in self.model.paused_lanes
        assert lane.pause() is not paused
        if paused:
            assert lane.resume()
        self.model.paused_lanes ^= {group}

    @rule(group=LANE, limit=CEILING)
    def limit_a_lane(self, group: str, limit: int | None) -> None:
        self.queue.lane(group).limit("auto" if limit is None else limit)
        if limit is None:
            self.model.limits.pop(group, None)
        else:
            self.model.limits[group] = limit

    # -- what only the operator does -------------------------------------------------------------------------------

    @rule(group=LANE, weight=CEILING)
    def weigh_a_lane(self, group: str, weight: int | None) -> None:
        self.queue.lane(group).weight(weight)
        if weight is None:
            self.model.weights.pop(group, None)
        else:
            self.model.weights[group] = weight

    @rule(count=st.sampled_from([None, None, 2, 4, 30]))
    def limit_the_rate(self, count: int | None) -> None:
        self.queue.limit_rate(count, per=3600.0)
        self.model.limit_rate(count)

    @rule(count=CEILING)
    def limit_the_concurrency(self, count: int | None) -> None:
        self.queue.limit_concurrency(count)
        self.model.concurrency = count

    @precondition(lambda self: self.model.jobs)
    @rule(random=DATA, group=GROUPS)
    def move(self, random: Random, group: str | None) -> None:
        waiting = self.model.of("pending")
        job = random.choice(waiting if waiting and random.random() < 0.8 else list(self.model.jobs.values()))
        try:
            verdict = self.queue.move(job.id, group)
        except Held:
            assert job.state == "active"
        except WrongState:
            assert job.state in ("scheduled", "dead")
        else:
            assert (verdict, job.state) == (Verdict.OK, "pending")
            job.group = group

    @rule(group=LANE)
    def drain_a_lane(self, group: str) -> None:
        assert self.queue.lane(group).drain() == self.model.drop(group)

    @rule()
    def drain_the_queue(self) -> None:
        dropped = [self.model.drop(group) for group in (None, *LANES)]
        assert self.queue.drain() == sum(dropped)

    @rule(group=LANE, limit=COUNT)
    def reap_a_lane(self, group: str, limit: int) -> None:
        expired = [job for job in self.model.expired(1_000_000) if job.group == group][:limit]
        assert self.queue.lane(group).reap(limit) == len(expired)
        for job in expired:
            self.model.back(job)

    # -- what is always true, beside what is true of any queue -----------------------------------------------------

    @invariant()
    def lanes_are_told_as_they_are(self) -> None:
        waiting, running = self.model.waiting, self.model.running()
        assert self.queue.lanes() == [
            LaneInfo(
                name=group,
                group=group,
                depth=len(waiting(group)),
                active=running.get(group, 0),
                limit=self.model.limits.get(group),
                weight=self.model.weights.get(group, 1),
                paused=group in self.model.paused_lanes,
            )
            for group in sorted(self.model.settings())
        ]

    @invariant()
    def ceilings_are_told_as_they_are(self) -> None:
        limits, metrics = self.queue.limits(), self.queue.metrics()
        assert (limits.rate, limits.concurrency) == (self.model.rate, self.model.concurrency)
        assert limits.paused == metrics.paused == self.model.paused
        assert (metrics.waiting, metrics.lanes) == (len(self.model.of("pending")), len(self.model.lanes()))
        assert (metrics.oldest_waiting is None) == (metrics.waiting == 0)


@pytest.mark.timeout(600)  # only a failure takes long: it is shrunk to its shortest form
def test_lanes_do_what_their_model_does(standalone: Connection) -> None:
    run_state_machine_as_test(
        partial(LaneMachine, standalone),  # type: ignore[arg-type]  # it only calls it
        settings=settings(
            max_examples=130,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
