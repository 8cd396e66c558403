"""Flows over two queues against their model: any sequence of verbs leaves the keys exactly as the model says."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from flow_model import OPEN, FlowJob, FlowModel
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
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire, text

from echomq_tasks.connection import Connection, connect
from echomq_tasks.queue import Cancellation, Flow, FlowAdded, Job, NewJob, Queue, Retry, Verdict
from echomq_tasks.scripts import load_scripts

QUEUES = st.integers(0, 1)
DATA = st.randoms(use_true_random=False)
#: Whether the reply of the call is lost, so that it is sent twice.
LOST = st.sampled_from([False, False, False, True])
#: A tree: its queue, whether its death is ignored, its children.
Tree = tuple[int, bool, list[Any]]


def tree_of(random: Random, levels: int) -> Tree:
    """A tree of at most so many levels, mostly with children, over both queues."""
    width = random.choice([0, 1, 2, 2, 3]) if levels > 1 else 0
    return random.randrange(2), random.random() < 0.6, [tree_of(random, levels - 1) for _ in range(width)]


class FlowMachine(RuleBasedStateMachine):
    """Drives two queues behind a proxy; the model follows, and the keys are compared after every step."""

    def __init__(self, proxied: Connection, direct: Connection, proxy: DroppingProxy) -> None:
        super().__init__()
        names = [f"f-{secrets.token_hex(4)}.{number}" for number in range(2)]
        self.proxy = proxy
        self.queues = [Queue(name, proxied) for name in names]
        self.wires = [Wire(direct, name) for name in names]
        self.model = FlowModel(2)
        #: The claim of each job that runs.
        self.claims: dict[str, Job] = {}

    def teardown(self) -> None:
        self.proxy.clear()
        for wire in self.wires:
            for suffix in list(wire.keys()):
                wire.do("DEL", suffix)

    def _lose(self, lost: bool, *scripts: str) -> None:
        for script in scripts if lost else ():
            self.proxy.drop_reply(load_scripts()[script].sha.encode())

    def _pick(self, random: Random, *states: str) -> FlowJob | None:
        found = [job for queue in range(2) for job in self.model.of(queue, *states)]
        return random.choice(found) if found else None

    def _running(self, random: Random) -> tuple[Queue, Job, FlowJob] | None:
        model = self._pick(random, "active")
        return None if model is None else (self.queues[model.queue], self.claims[model.id], model)

    # -- verbs --------------------------------------------------------------------------------------------------

    @initialize(random=DATA)
    def start_with_some(self, random: Random) -> None:
        for _ in range(2):
            self.add(random, 3, False)

    @precondition(lambda self: len(self.model.jobs) < 20)
    @rule(random=DATA, levels=st.integers(1, 4), lost=LOST)
    def add(self, random: Random, levels: int, lost: bool) -> None:
        tree = tree_of(random, levels)
        self._lose(lost, "flow_add", "job_enqueue")
        self._admit(tree, self.queues[tree[0]].add_flow(self._flow(tree)), None)
        self.proxy.clear()

    def _flow(self, tree: Tree) -> Flow:
        queue, ignored, children = tree
        below = [self._flow(child) for child in children]
        return Flow(NewJob("p"), below, self.queues[queue].name, "ignore" if ignored else "fail_parent")

    def _admit(self, tree: Tree, added: FlowAdded, parent: str | None) -> None:
        queue, ignored, children = tree
        assert not added.duplicate
        self.model.add(FlowJob(added.id, queue, parent, ignored, [child.id for child in added.children]))
        for child, below in zip(children, added.children, strict=True):
            self._admit(child, below, added.id)

    @rule(queue=QUEUES, count=st.integers(1, 8), lost=LOST)
    def claim(self, queue: int, count: int, lost: bool) -> None:
        self._lose(lost, "job_claim")
        claimed = self.queues[queue].claim(count)
        expected = list(self.model.claim(queue, count))
        assert [job.id for job in claimed] == [job.id for job in expected]
        for job, model in zip(claimed, expected, strict=True):
            assert (job.token, job.failures, job.stalled) == (model.attempts, model.failures, model.stalled)
            assert job.is_child == (model.parent is not None)
            self.claims[job.id] = job
            self._knows_its_children(queue, model)
        # A claim that only dropped is another one when it is sent again, and may look at what the first one left.
        self.proxy.clear()

    def _knows_its_children(self, queue: int, model: FlowJob) -> None:
        known = self.queues[queue].children(model.id)
        assert known is not None
        assert {child: result.decode() for child, result in known.results.items()} == model.processed
        assert known.ignored == {
            child: error for child, error in model.unsuccessful.items() if child not in model.processed
        }

    @precondition(lambda self: self.model.of(0, "active") or self.model.of(1, "active"))
    @rule(random=DATA, result=st.text(max_size=3), lost=LOST)
    def complete(self, random: Random, result: str, lost: bool) -> None:
        if running := self._running(random):
            queue, job, model = running
            self._lose(lost, "job_complete")
            assert queue.complete(job, result) is (Verdict.GONE if lost else Verdict.OK)
            self.model.complete(model, result)
            assert queue.complete(job, "again") is Verdict.GONE

    @precondition(lambda self: self.model.of(0, "active") or self.model.of(1, "active"))
    @rule(random=DATA, limit=st.sampled_from([0, 0, 2]), lost=LOST)
    def fail(self, random: Random, limit: int, lost: bool) -> None:
        if running := self._running(random):
            queue, job, model = running
            self._lose(lost, "job_retry")
            (verdict,) = queue.settle([Retry(job, "boom", max_retries=limit)])
            expected = self.model.retry(model, "boom", limit)
            if lost and expected == "cancelled":
                assert verdict in (Verdict.GONE, Verdict.STALE)
            else:
                assert verdict.value == expected

    @precondition(lambda self: self.model.of(0, "active") or self.model.of(1, "active"))
    @rule(random=DATA, most=st.integers(1, 2))
    def lose_a_worker(self, random: Random, most: int) -> None:
        if running := self._running(random):
            queue, _, model = running
            self.wires[model.queue].expire(model.id)
            swept = queue.sweep_stalled(max_stalled=most)
            model.stalled += 1
            if model.stalled >= most and model.cancelled:
                assert (swept.dead, swept.recovered) == ((), ())
                self.model.forget(model, "cancelled")
            elif model.stalled >= most:
                assert swept.dead == (model.id,)
                self.model.bury(model, "stalled")
            else:
                assert swept.recovered == (model.id,)
                model.state = "pending"

    @rule(random=DATA)
    def remove(self, random: Random) -> None:
        if model := self._pick(random, "pending", "scheduled", "awaiting_children", "dead"):
            assert self.queues[model.queue].remove(model.id) is Verdict.OK
            self.model.forget(model, "removed")

    @rule(random=DATA)
    def cancel(self, random: Random) -> None:
        if model := self._pick(random, *OPEN, "dead"):
            cancelled = self.queues[model.queue].cancel(model.id)
            if model.state == "dead":
                assert cancelled is Cancellation.ENDED
            elif model.state == "active":
                assert cancelled is Cancellation.REQUESTED
                model.cancelled = True
            else:
                assert cancelled is Cancellation.REMOVED
                self.model.forget(model, "cancelled")

    def _revivable(self) -> list[FlowJob]:
        # A parent whose child was taken away would wait for ever.
        gone = {"removed", "cancelled"}
        dead = [job for number in range(2) for job in self.model.of(number, "dead")]
        return [job for job in dead if not (job.outstanding and gone & set(job.failed.values()))]

    @precondition(lambda self: self._revivable())
    @rule(random=DATA, complete=st.booleans())
    def bring_back(self, random: Random, complete: bool) -> None:
        model = random.choice(self._revivable())
        assert self.queues[model.queue].reprocess(model.id) is Verdict.OK
        self.model.bring_back(model)
        if complete and model.state == "pending":
            self.claim(model.queue, 100, False)
            self.queues[model.queue].complete(self.claims[model.id], "late")
            self.model.complete(model, "late")

    @rule(queue=QUEUES, lost=LOST, script=st.sampled_from(["outbox_read", "flow_deliver", "outbox_trim"]))
    def deliver(self, queue: int, lost: bool, script: str) -> None:
        self._lose(lost, script)
        assert self.queues[queue].deliver() == self.model.deliver(queue)
        self.proxy.clear()

    @precondition(lambda self: any(self.model.outbox))
    @rule(queue=QUEUES)
    def deliver_and_die_before_the_trim(self, queue: int) -> None:
        for fact in self.model.outbox[queue]:
            self.queues[fact.parent_queue].run("flow_deliver", fact.parent, fact.kind, fact.child, fact.value)
            self.model.learn(fact)

    @precondition(lambda self: len(self.model.jobs) >= 10)
    @rule()
    def work_everything_off(self) -> None:
        for _ in range(20):
            self._work_off()
            # A parent that was brought back waits for its dead children until they are dropped.
            for number, queue in enumerate(self.queues):
                for job in self.model.of(number, "dead"):
                    assert queue.remove(job.id) is Verdict.OK
                    self.model.forget(job, "removed")
            if not self.model.jobs and not any(self.model.outbox):
                break
        for wire in self.wires:
            assert set(wire.everything()) <= {"metrics:completed", "metrics:failed", "wake"}

    def _work_off(self) -> None:
        moved = True
        while moved:
            moved = False
            for number, queue in enumerate(self.queues):
                for job in self.model.of(number, "active"):
                    queue.complete(self.claims[job.id], "r")
                    self.model.complete(job, "r")
                    moved = True
                moved = bool(self.model.of(number, "pending", "scheduled")) or moved
                self.claim(number, 100, False)
                delivered = queue.deliver()
                assert delivered == self.model.deliver(number)
                moved = moved or bool(delivered)
        assert {job.state for job in self.model.jobs.values()} <= {"dead", "awaiting_children"}

    # -- what is always true ------------------------------------------------------------------------------------

    def _everything(self, wire: Wire) -> dict[str, Any]:
        """Every key of a queue, in few round trips."""
        suffixes = list(wire.keys())
        read = {"hash": "HGETALL", "string": "GET", "zset": "ZRANGE", "list": "LRANGE"}
        with wire.client.pipeline(transaction=False) as pipe:
            for suffix in suffixes:
                pipe.type(wire.base + suffix)
            kinds = text(pipe.execute())
            for suffix, kind in zip(suffixes, kinds, strict=True):
                pipe.execute_command(read[kind], wire.base + suffix, *([0, -1] if kind in ("zset", "list") else []))
            return dict(zip(suffixes, text(pipe.execute()), strict=True))

    @invariant()
    def the_keys_are_what_the_model_says(self) -> None:
        for number, wire in enumerate(self.wires):
            found = self._everything(wire)
            for key, state in (
                ("pending", "pending"),
                ("active", "active"),
                ("schedule", "scheduled"),
                ("dead", "dead"),
            ):
                assert set(found.pop(key, [])) == {job.id for job in self.model.of(number, state)}, key
            assert found.pop("flow:outbox", []) == list(self._owed(number))
            assert int(found.pop("metrics:completed", {"count": 0})["count"]) == self.model.completed[number]
            assert int(found.pop("metrics:failed", {"count": 0})["count"]) == self.model.failed[number]
            found.pop("wake", None)
            for job in self.model.of(number, *OPEN, "dead"):
                self._row_is(found, job)
            assert {name for name in found if not name.endswith(":lock")} == set(), "a key of no job"

    def _owed(self, number: int) -> Iterator[str]:
        for fact in self.model.outbox[number]:
            name = self.queues[fact.parent_queue].name
            if fact.kind == "done":
                yield "\0".join([name, fact.parent, fact.child, fact.value])
            else:
                yield "\0".join(["", "fail", name, fact.parent, fact.child, fact.kind, fact.value])

    def _row_is(self, found: dict[str, Any], job: FlowJob) -> None:
        row = found.pop(f"job:{job.id}")
        assert (row["state"], int(row["attempts"])) == (job.state, job.attempts)
        assert row.get("parent") == job.parent
        assert found.pop(f"job:{job.id}:processed", {}) == job.processed
        assert found.pop(f"job:{job.id}:failed", {}) == job.failed
        assert found.pop(f"job:{job.id}:unsuccessful", {}) == job.unsuccessful
        left = found.pop(f"job:{job.id}:dependencies", None)
        assert left == (str(job.outstanding) if job.children else None)
        # Counted anew, apart from how the model came to its number.
        assert job.outstanding == len(set(job.children) - job.processed.keys() - job.unsuccessful.keys())

    @invariant()
    def a_job_that_waits_never_waits_without_a_wake_token(self) -> None:
        for number, wire in enumerate(self.wires):
            assert (1 if self.model.of(number, "pending") else 0) <= wire.wakes() <= 64


@pytest.mark.timeout(600)  # only a failure takes long: it is shrunk to its shortest form
def test_flows_do_what_their_model_does(server: ServerProcess, proxy: DroppingProxy) -> None:
    with connect(proxy.url, timeout=10) as proxied, connect(server.url) as direct:
        run_state_machine_as_test(
            partial(FlowMachine, proxied, direct, proxy),  # type: ignore[arg-type]  # it only calls it
            settings=settings(
                max_examples=150,
                stateful_step_count=35,
                deadline=None,
                phases=[Phase.generate, Phase.shrink],
                database=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            ),
        )
