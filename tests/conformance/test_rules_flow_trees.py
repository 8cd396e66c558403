"""Adding flows: trees of every depth land whole or by level, and what cannot be one is refused before any write."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from conformance.flow_steps import chain, ids_of, take, work_off
from conformance.scenarios import A, B, C, D, E
from support.proxy import DroppingProxy
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks.connection import Connection, connect
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName, ServerOutOfMemory, WrongState
from echomq_tasks.identity import group_id
from echomq_tasks.queue import Flow, FlowAdded, NewJob, Queue, State, Unique
from echomq_tasks.scripts import load_scripts

LEVELS = [f"JOB0NgWEfAEJ1{level}" for level in range(9)]


@pytest.fixture
def far(connection: Connection, queue_name: str) -> Queue:
    """Another queue; in the cluster of another slot."""
    return Queue(f"{queue_name}.far", connection)


@pytest.fixture
def far_wire(connection: Connection, queue_name: str) -> Wire:
    return Wire(connection, f"{queue_name}.far")


# -- depth --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spans", [False, True], ids=["one-queue", "two-queues"])
@pytest.mark.parametrize("depth", range(1, 9))
def test_a_chain_of_every_depth_runs_from_the_bottom_up_and_leaves_nothing(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire, depth: int, spans: bool
) -> None:
    ids = LEVELS[:depth]
    added = queue.add_flow(chain(*ids, queues=(queue.name, far.name) if spans else (None,)))
    assert list(ids_of(added)) == ids
    for place, job_id in enumerate(ids):
        home = far if spans and place % 2 else queue
        last = place == depth - 1
        assert home.state(job_id) is (State.PENDING if last else State.AWAITING_CHILDREN)
    assert work_off(queue, far) == ids[::-1]
    left = set(wire.everything()) | set(far_wire.everything())
    assert left <= {"metrics:completed"}
    assert queue.counts().completed + far.counts().completed == depth


@pytest.mark.parametrize("spans", [False, True])
def test_nine_levels_are_refused_before_any_write(queue: Queue, wire: Wire, far: Queue, spans: bool) -> None:
    before = wire.dumps()
    wide = Flow(NewJob("p"), [NewJob("a"), chain(*LEVELS[:8], queues=(far.name,) if spans else (None,)), NewJob("b")])
    with pytest.raises(InvalidArgument, match="8 levels"):
        queue.add_flow(wide)
    with pytest.raises(InvalidArgument, match="8 levels"):
        queue.add_flows([Flow(NewJob("fine")), wide])
    assert wire.dumps() == before


# -- what is no flow ----------------------------------------------------------------------------------------------

BAD: dict[str, tuple[Callable[[str], Flow], type[Exception], str]] = {
    "an id twice": (lambda far: Flow(NewJob("p", id=A), [NewJob("p", id=B), NewJob("p", id=B)]), InvalidArgument, B),
    "an id twice, in two queues": (
        lambda far: Flow(NewJob("p", id=A), [NewJob("p", id=B), Flow(NewJob("p", id=B), queue=far)]),
        InvalidArgument,
        "twice",
    ),
    "an id twice, far apart": (
        lambda far: Flow(NewJob("p", id=A), [Flow(NewJob("p"), [Flow(NewJob("p"), [NewJob("p", id=A)])])]),
        InvalidArgument,
        "twice",
    ),
    "a delayed parent": (lambda far: Flow(NewJob("p", delay=1), [NewJob("c")]), InvalidArgument, "children"),
    "a parent of zero seconds": (lambda far: Flow(NewJob("p", delay=0), [NewJob("c")]), InvalidArgument, "children"),
    "a parent for later": (lambda far: Flow(NewJob("p", at=4e9), [NewJob("c")]), InvalidArgument, "children"),
    "a delayed parent below": (
        lambda far: Flow(NewJob("p"), [Flow(NewJob("m", delay=1), [NewJob("c")], queue=far)]),
        InvalidArgument,
        "children",
    ),
    "a bad queue": (lambda far: Flow(NewJob("p"), [Flow(NewJob("c"), queue="a b")]), InvalidName, "a b"),
    "the reserved queue": (lambda far: Flow(NewJob("p"), queue="emq"), InvalidName, "emq"),
    "braces in a queue": (lambda far: Flow(NewJob("p"), [Flow(NewJob("c"), queue="{x}")]), InvalidName, "{x}"),
    "a bad id": (lambda far: Flow(NewJob("p"), [NewJob("c", id="JOB1")]), InvalidId, "JOB1"),
    "an id of another kind": (lambda far: Flow(NewJob("p", id="EVT0NgWEfAEJfs")), InvalidId, "EVT"),
    "a bad policy": (
        lambda far: Flow(NewJob("p"), [Flow(NewJob("c"), on_failure="fp")]),  # type: ignore[arg-type]
        InvalidArgument,
        "on_failure",
    ),
    "a unique child": (lambda far: Flow(NewJob("p"), [NewJob("c", unique=Unique("k"))]), InvalidArgument, "unique"),
    "a unique parent": (lambda far: Flow(NewJob("p", unique=Unique("k")), [NewJob("c")]), InvalidArgument, "unique"),
    "a string child": (lambda far: Flow(NewJob("p"), ["c"]), InvalidArgument, "NewJob"),  # type: ignore[list-item]
    "a payload of no bytes": (
        lambda far: Flow(NewJob("p"), [NewJob({"a": 1})]),  # type: ignore[arg-type]
        InvalidArgument,
        "payload",
    ),
    "a delay and an at": (lambda far: Flow(NewJob("p"), [NewJob("c", delay=1, at=4e9)]), InvalidArgument, "not both"),
    "a limit without a group": (lambda far: Flow(NewJob("p", group_limit=1), [NewJob("c")]), InvalidArgument, "group"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("spans", [False, True], ids=["one-queue", "two-queues"])
def test_what_is_no_flow_is_refused_before_any_write(
    queue: Queue, wire: Wire, far: Queue, name: str, spans: bool
) -> None:
    make, error, words = BAD[name]
    flow = make(far.name if spans else queue.name)
    before = wire.dumps()
    with pytest.raises(error, match=words):
        queue.add_flow(flow)
    with pytest.raises(error, match=words):
        queue.add_flows([Flow(NewJob("first", id=E), [NewJob("c")]), flow])
    with pytest.raises(InvalidArgument):
        queue.add_flow("p")  # type: ignore[arg-type]
    assert wire.dumps() == before


# -- what children and parents may be -----------------------------------------------------------------------------


def test_a_flow_of_one_node_is_a_job(queue: Queue, wire: Wire) -> None:
    added = queue.add_flow(Flow(NewJob("p", id=A)))
    assert added == FlowAdded(A, queue.name, ())
    assert wire.row(A) == {"state": "pending", "attempts": "0", "payload": "p"}
    later = queue.add_flow(Flow(NewJob("p", delay=60)))
    assert queue.state(later.id) is State.SCHEDULED
    (job,) = queue.claim(5)
    assert (job.id, job.is_child) == (A, False)


def test_children_wait_by_their_own_delay_lane_and_priority(queue: Queue, wire: Wire) -> None:
    lane = group_id("acme")
    flow = Flow(
        NewJob("p", id=A),
        [
            NewJob("c", id=B, delay=60),
            NewJob("c", id=C, group="acme", priority=4, group_limit=1),
            NewJob("c", id=D, priority=-2),
            NewJob("c", id=E, at=4_000_000_000),
        ],
    )
    queue.add_flow(flow)
    assert wire.read("pending") == {D: -2}
    assert wire.read(f"g:{lane}:pending") == {C: 4}
    assert (wire.ring(), wire.read("gnames"), wire.read("glimit")) == ([lane], {lane: "acme"}, {lane: "1"})
    assert set(wire.ids("schedule")) == {B, E}
    assert wire.read("schedule")[E] == 4_000_000_000_000
    wire.come_due(B, E)
    assert sorted(work_off(queue)[:-1]) == [B, C, D, E]
    assert queue.state(A) is State.ABSENT
    assert "gactive" not in wire.everything()


def test_a_parent_with_a_group_and_a_priority_waits_there_when_its_children_are_done(queue: Queue, wire: Wire) -> None:
    lane = group_id("acme")
    queue.add_flow(Flow(NewJob("p", id=A, group="acme", group_limit=1, priority=7), [NewJob("c", id=B)]))
    assert (wire.ring(), wire.read(f"g:{lane}:pending"), wire.read("glimit")) == ([], None, None)
    queue.lane("acme").pause()
    queue.complete(take(queue, B), "r")
    assert (wire.read(f"g:{lane}:pending"), wire.read("glimit")) == ({A: 7}, {lane: "1"})
    assert not queue.claim(5), "its lane is paused"
    queue.lane("acme").resume()
    (parent,) = queue.claim(5)
    assert (parent.id, parent.group) == (A, lane)
    assert wire.running() == {lane: 1}
    queue.complete(parent)
    assert wire.running() == {}


def test_children_in_a_full_lane_finish_one_by_one_and_their_parent_after_them(queue: Queue, wire: Wire) -> None:
    below = [NewJob("c", group="acme", group_limit=1) for _ in range(3)]
    added = queue.add_flow(Flow(NewJob("p", group="acme"), below))
    for _ in range(3):
        (job,) = queue.claim(10)
        assert job.is_child
        queue.complete(job)
    (job,) = queue.claim(10)
    assert (job.id, job.is_child) == (added.id, False)


def test_a_paused_queue_holds_the_children_and_the_parent(queue: Queue) -> None:
    queue.pause()
    added = queue.add_flow(Flow(NewJob("p"), [NewJob("c")]))
    assert not queue.claim(5)
    queue.resume()
    assert work_off(queue) == [added.children[0].id, added.id]


# -- many ---------------------------------------------------------------------------------------------------------


def test_many_flows_land_in_few_trips_each_answered_in_its_place(queue: Queue, far: Queue, wire: Wire) -> None:
    flows = [
        Flow(NewJob(f"p{n}"), [NewJob("c"), Flow(NewJob("d"), queue=far.name if n % 7 == 3 else None)])
        for n in range(150)
    ]
    added = queue.add_flows(flows)
    assert len(added) == 150
    rows = queue.get_many([each.id for each in added])
    assert [row.payload for row in rows if row] == [f"p{n}".encode() for n in range(150)]
    assert [each.children[1].queue for each in added] == [far.name if n % 7 == 3 else queue.name for n in range(150)]
    assert len(work_off(queue, far)) == 450
    assert set(wire.everything()) == {"metrics:completed"}


def test_flows_of_many_bytes_travel_in_several_trips(queue: Queue) -> None:
    added = queue.add_flows([Flow(NewJob(b"x" * 3_000_000), [NewJob(b"y")]) for _ in range(5)])
    assert len({each.id for each in added}) == 5
    assert queue.counts().pending == 5


def test_no_flows_are_none(queue: Queue, wire: Wire) -> None:
    assert queue.add_flows([]) == []
    assert wire.everything() == {}


def test_a_flow_of_six_thousand_jobs_lands_level_by_level(queue: Queue, wire: Wire) -> None:
    flow = Flow(NewJob("root"), [Flow(NewJob("mid"), [NewJob("leaf")] * 1_199) for _ in range(5)])
    added = queue.add_flow(flow)
    ids = list(ids_of(added))
    assert len(ids) == len(set(ids)) == 6_001
    assert queue.counts().pending == 5 * 1_199
    assert wire.read(f"job:{added.id}:dependencies") == "5"
    assert [wire.read(f"job:{child.id}:dependencies") for child in added.children] == ["1199"] * 5
    while jobs := queue.claim(1000).jobs:
        queue.complete_many(jobs)
    assert set(wire.everything()) == {"metrics:completed"}
    assert queue.counts().completed == 6_001


def test_a_flow_of_large_payloads_lands_by_level(queue: Queue) -> None:
    payload = b"x" * 3_000_000
    added = queue.add_flow(Flow(NewJob("p", id=A), [NewJob(payload), NewJob(payload), NewJob(payload)]))
    assert not added.duplicate
    jobs = queue.claim(5).jobs
    assert [len(job.payload) for job in jobs] == [3_000_000] * 3
    queue.complete_many(jobs)
    assert queue.state(A) is State.PENDING


# -- what is there already ----------------------------------------------------------------------------------------


def test_the_same_flow_again_is_a_duplicate_and_changes_nothing(queue: Queue, wire: Wire) -> None:
    flow = Flow(NewJob("p", id=A), [NewJob("c", id=B), Flow(NewJob("m", id=C), [NewJob("l")])])
    assert not queue.add_flow(flow).duplicate
    queue.complete(take(queue, B), "r")
    before = wire.everything()
    again = queue.add_flow(flow)
    assert again.duplicate
    assert all(child.duplicate for child in again.children)
    assert wire.everything() == before


def test_a_root_with_another_payload_is_refused(queue: Queue, wire: Wire) -> None:
    queue.enqueue("another", id=A)
    before = wire.everything()
    with pytest.raises(WrongState, match=A):
        queue.add_flow(Flow(NewJob("p", id=A), [NewJob("c")]))
    assert wire.everything() == before


@pytest.mark.parametrize("root", [A, None], ids=["own-root", "minted-root"])
@pytest.mark.parametrize("spans", [False, True], ids=["one-queue", "two-queues"])
def test_a_childs_id_that_is_taken_is_refused_before_any_write(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire, spans: bool, root: str | None
) -> None:
    (far if spans else queue).enqueue("c", id=C)
    before = wire.dumps()
    leaf = Flow(NewJob("c", id=C), queue=far.name if spans else None)
    with pytest.raises(WrongState, match=f"{C} exists"):
        queue.add_flow(Flow(NewJob("p", id=root), [NewJob("c", id=B), Flow(NewJob("m"), [leaf])]))
    assert wire.dumps() == before


def test_one_flow_that_is_refused_leaves_the_others_of_its_call(queue: Queue, wire: Wire) -> None:
    queue.enqueue("x", id=B)
    flows = [Flow(NewJob("p", id=A), [NewJob("c")]), Flow(NewJob("q"), [NewJob("c", id=B)]), Flow(NewJob("r", id=C))]
    for _ in range(3):
        with pytest.raises(WrongState, match=B):
            queue.add_flows(flows)
    assert (queue.state(A), queue.state(C)) == (State.AWAITING_CHILDREN, State.PENDING)
    assert len(wire.ids("pending")) == 3
    # However often it is refused, the same callers are used: the server keeps an answer for each.
    assert len(wire.do("HKEYS", "replies")) <= 4


def test_a_job_of_another_flow_cannot_be_taken_along(queue: Queue, wire: Wire, far: Queue) -> None:
    other = Flow(NewJob("p", id=D), [Flow(NewJob("c", id=C), queue=far.name)])
    mine = Flow(NewJob("p", id=A), [NewJob("c", id=B), Flow(NewJob("c", id=C), queue=far.name)])
    queue.add_flow(other)
    queue.add_flow(Flow(NewJob("p", id=A), [NewJob("x")]))  # half of mine
    before = wire.dumps()
    with pytest.raises(WrongState, match=C):
        queue.add_flow(mine)
    assert wire.dumps() == before


def half_landed(queue: Queue, wire: Wire, flow: Flow, monkeypatch: pytest.MonkeyPatch, levels: int) -> None:
    """Add a flow over queues, of which only so many levels land."""
    from echomq_tasks.queue import flows

    left = itertools.count()
    admit = flows.admit_offers

    def broken(*args: Any, **options: Any) -> None:
        if next(left) >= levels:
            raise ServerOutOfMemory("full")
        admit(*args, **options)

    monkeypatch.setattr(flows, "admit_offers", broken)
    with pytest.raises(ServerOutOfMemory) as caught:
        queue.add_flow(flow)
    assert len(caught.value.admitted) >= levels
    monkeypatch.undo()


def test_a_half_landed_flow_is_completed_by_adding_it_again(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow(NewJob("p", id=A), [NewJob("c", id=B), Flow(NewJob("m", id=C), [NewJob("l", id=D)], queue=far.name)])
    half_landed(queue, wire, flow, monkeypatch, 2)
    assert (queue.state(A), queue.state(B), far.state(C)) == (State.AWAITING_CHILDREN, State.PENDING, State.ABSENT)
    assert work_off(queue, far) == [B]
    assert queue.state(A) is State.AWAITING_CHILDREN
    again = queue.add_flow(flow)
    assert again.duplicate
    assert queue.state(B) is State.ABSENT, "what is done is not done again"
    assert work_off(queue, far) == [D, C, A]
    assert set(wire.everything()) | set(far_wire.everything()) == {"metrics:completed"}


def test_adding_a_flow_again_sends_no_child_whose_id_is_minted(
    queue: Queue, wire: Wire, far: Queue, far_wire: Wire
) -> None:
    # They would be other children than the first ones, and one too many would let the parent run early.
    flow = Flow(NewJob("p", id=A), [Flow(NewJob("c"), queue=far.name), Flow(NewJob("d"), [NewJob("e")])])
    queue.add_flow(flow)
    before = wire.everything(), far_wire.everything()
    assert queue.add_flow(flow).duplicate
    assert (wire.everything(), far_wire.everything()) == before
    assert len(work_off(queue, far)) == 4


def test_adding_a_flow_again_leaves_alone_what_died_in_it(queue: Queue, far: Queue) -> None:
    flow = Flow(
        NewJob("p", id=A),
        [Flow(NewJob("c", id=B), queue=far.name, on_failure="ignore"), Flow(NewJob("d", id=C), queue=far.name)],
    )
    queue.add_flow(flow)
    far.retry(take(far, B), "boom", max_retries=0)
    far.deliver()
    far.remove(B)
    assert queue.add_flow(flow).duplicate
    assert far.state(B) is State.ABSENT
    assert work_off(far, queue) == [C, A]


class Forced:
    """A mint that says these ids first."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, *first: str) -> None:
        self._mint, self._first = queue.scripts.mint, list(first)
        monkeypatch.setattr(queue.scripts, "mint", self)

    def mint(self, kind: str) -> str:
        return self._first.pop(0) if self._first else self._mint.mint(kind)

    def snowflake(self) -> int:
        return self._mint.snowflake()


@pytest.mark.parametrize("spans", [False, True], ids=["one-queue", "two-queues"])
@pytest.mark.parametrize("place", range(3))
def test_a_minted_id_that_is_taken_is_minted_anew(
    queue: Queue, wire: Wire, far: Queue, monkeypatch: pytest.MonkeyPatch, place: int, spans: bool
) -> None:
    # In every queue, with the very payload that the flow brings: a collision must not look like a repeated call.
    for name, payload in ((queue, "p"), (queue, "m"), (far, "m"), (queue, "c"), (far, "c")):
        name.enqueue(payload, id=A)
        name.drain()
        name.enqueue(payload, id=A)
    before = wire.row(A), far.get(A)
    minted = [B, C, D]
    minted[place] = A
    Forced(queue, monkeypatch, *minted)
    away = far.name if spans else None
    added = queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("m"), [NewJob("c")], queue=away)]))
    assert not added.duplicate
    ids = list(ids_of(added))
    assert A not in ids
    assert (wire.row(A), far.get(A)) == before
    order = [job_id for job_id in work_off(queue, far) if job_id != A]
    assert order == ids[::-1]


def test_only_the_flow_that_collided_is_sent_again(queue: Queue, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue("x", id=A)
    Forced(queue, monkeypatch, B, C, D, A)
    first, second = queue.add_flows([Flow(NewJob("p"), [NewJob("c")]), Flow(NewJob("q"), [NewJob("d")])])
    assert list(ids_of(first)) == [B, C]
    assert not {A, B, C, D} & set(ids_of(second))
    assert len(wire.ids("pending")) == 3


# -- faults -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["flow_add", "job_enqueue"])
@pytest.mark.parametrize("what", ["request", "reply"])
def test_a_flow_whose_call_or_answer_is_lost_is_added_once(
    proxy: DroppingProxy, server: ServerProcess, queue_name: str, what: str, script: str
) -> None:
    with connect(proxy.url, timeout=10) as connection, connect(server.url) as direct:
        queue, far = Queue(queue_name, connection), Queue(f"{queue_name}.far", connection)
        queue.add_flow(Flow(NewJob("warm"), [Flow(NewJob("up"), queue=far.name)]))
        queue.add_flow(Flow(NewJob("warm"), [NewJob("up")]))
        server.flush()
        (proxy.drop_reply if what == "reply" else proxy.drop_request)(load_scripts()[script].sha.encode())
        away = far.name if script == "job_enqueue" else None
        added = queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=away), Flow(NewJob("d"), queue=away)]))
        assert proxy.counts.dropped_replies + proxy.counts.dropped_requests == 1
        wires = Wire(direct, queue.name), Wire(direct, far.name)
        rows = [name for wire in wires for name in wire.keys() if name.startswith("job:") and name.count(":") == 1]
        assert sorted(rows) == sorted(f"job:{job_id}" for job_id in ids_of(added))
        assert wires[0].read(f"job:{added.id}:dependencies") == "2"
        assert not added.duplicate
        assert len(work_off(queue, far)) == 3
        queue.scripts.close()


@pytest.mark.parametrize("spans", [False, True], ids=["one-queue", "two-queues"])
def test_a_full_server_takes_no_flow_and_lets_those_that_are_there_finish(
    own_server: ServerProcess, queue_name: str, spans: bool
) -> None:
    with connect(own_server.url) as connection:
        queue, far = Queue(queue_name, connection), Queue(f"{queue_name}.far", connection)
        wire = Wire(connection, queue_name)
        away = far.name if spans else None
        added = queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=away)]))
        before = wire.dumps()
        own_server.client().config_set("maxmemory", 1)
        with pytest.raises(ServerOutOfMemory, match="maxmemory") as caught:
            queue.add_flow(Flow(NewJob("p"), [Flow(NewJob("c"), queue=away)]))
        assert caught.value.admitted == ()
        assert wire.dumps() == before
        assert work_off(queue, far) == [added.children[0].id, added.id]


def test_a_server_that_forgot_its_scripts_learns_them_again(connection: Connection, queue: Queue, far: Queue) -> None:
    def forget() -> None:
        connection.client.script_flush()

    forget()
    added = queue.add_flow(Flow(NewJob("p"), [NewJob("b"), Flow(NewJob("c"), queue=far.name)]))
    forget()
    queue.complete(take(queue, added.children[0].id), "1")
    forget()
    far.complete(take(far, added.children[1].id), "2")
    forget()
    assert far.deliver() == 1
    forget()
    known = queue.children(added.id)
    assert known is not None
    assert sorted(known.results.values()) == [b"1", b"2"]
    assert queue.state(added.id) is State.PENDING
