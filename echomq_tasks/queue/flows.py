"""Flows (wire §7): trees of jobs in which a parent waits for its children, in one queue or across several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from echomq_tasks.errors import EchoMQError, InvalidArgument, ScriptError, WrongState
from echomq_tasks.identity import check_id
from echomq_tasks.keyspace import check_queue, queue_key
from echomq_tasks.queue.admission import Offer, admit_offers, offer
from echomq_tasks.queue.arguments import shown
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import MAX_LEVELS, NewJob
from echomq_tasks.queue.replies import text
from echomq_tasks.scripts import Call, Scripts
from echomq_tasks.scripts.callers import Callers

#: A flow of one queue lands in one script call, which holds the server for its length; a larger one lands level by
#: level, as one that spans queues does.
_JOBS_AT_ONCE = 5_000
_BYTES_AT_ONCE = 8 << 20
#: And so many flows travel in one round trip, of so many bytes together.
_FLOWS_A_TRIP = 64
#: So many rows are looked at in one script call.
_ROWS_A_CALL = 250
#: Freshly minted ids that exist already are a collision; this many times in a row is something else.
_MAX_COLLISIONS = 100


@dataclass(frozen=True, slots=True)
class Flow:
    """A job with the jobs that it waits for.

    Attributes:
      job: the job itself. One with children takes no ``delay`` and no ``at``: it runs when they are done.
      children: jobs, or flows of their own.
      queue: its queue; that of its parent, or the one that it is added to, by default.
      on_failure: what its death means to its parent: ``fail_parent`` (the parent goes to dead too) or ``ignore`` (the
        parent runs, and finds the error among :class:`Children`).
    """

    job: NewJob
    children: Sequence[NewJob | Flow] = ()
    queue: str | None = None
    on_failure: Literal["fail_parent", "ignore"] = "fail_parent"


@dataclass(frozen=True, slots=True)
class FlowAdded:
    """The ids of a flow, in the shape of its tree.

    Attributes:
      id: the job's id.
      queue: the queue it is in.
      children: in the order in which they were given; those with ids of your own when it is a duplicate.
      duplicate: True when its root was there already, and nothing was changed.
    """

    id: str
    queue: str
    children: tuple[FlowAdded, ...]
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Children:
    """What a parent knows of its children.

    Attributes:
      results: child id to the result that it was completed with.
      failures: child id to error, of children whose death is the parent's.
      ignored: child id to error, of children that died and were ignored.
      outstanding: how many have still to end.
    """

    results: Mapping[str, bytes]
    failures: Mapping[str, str]
    ignored: Mapping[str, str]
    outstanding: int


class _Node:
    """One job of a tree on its way in."""

    __slots__ = ("children", "job", "level", "offer", "on_failure", "parent", "queue")

    def __init__(self, flow: Flow, parent: _Node | None, queue: str) -> None:
        if flow.on_failure not in ("fail_parent", "ignore"):
            raise InvalidArgument(f"on_failure is 'fail_parent' or 'ignore', not {flow.on_failure!r}")
        if not isinstance(flow.job, NewJob):
            raise InvalidArgument(f"the job of a Flow is a NewJob, not {shown(flow.job)}")
        if not isinstance(flow.children, Iterable):
            raise InvalidArgument(f"the children of a Flow are a list of NewJob and Flow, not {shown(flow.children)}")
        self.job = flow.job
        self.parent = parent
        self.level: int = 1 if parent is None else parent.level + 1
        self.queue = check_queue(flow.queue) if flow.queue is not None else queue
        self.on_failure = flow.on_failure
        self.children: list[_Node] = []
        self.offer: Offer

    @property
    def id(self) -> str:
        return str(self.offer.args[0])

    def check(self) -> None:
        """Check the job and pack its entry; ids that are minted, here and in its parent, are filled in later."""
        job = self.job
        if job.unique is not None:
            raise InvalidArgument("a job of a flow cannot be unique: its parent would wait for one that was refused")
        if self.children and (job.delay is not None or job.at is not None):
            raise InvalidArgument("a flow parent runs when its children are done: give delay= or at= to the children")
        self.offer = offer(job)

    def pack(self) -> None:
        """Pack the entry anew, now that all ids are known."""
        ties: dict[str, str | int] = {}
        if self.parent is not None:
            ties["parent"] = self.parent.id
            if self.parent.queue != self.queue:
                ties["parent_queue"] = self.parent.queue
            ties["policy"] = "id" if self.on_failure == "ignore" else "fp"
        if self.children:
            ties["children"] = len(self.children)
        minted = self.offer.minted
        self.offer = offer(replace(self.job, id=self.id), **ties)
        self.offer.minted = minted

    def added(self, *, duplicate: bool = False) -> FlowAdded:
        # Of a flow that was there already, the ids that this call has minted are nobody's.
        known = [child for child in self.children if not (duplicate and child.offer.minted)]
        return FlowAdded(self.id, self.queue, tuple(child.added(duplicate=duplicate) for child in known), duplicate)


class _Tree:
    """A checked flow, its nodes level by level."""

    def __init__(self, flow: Flow, queue: str) -> None:
        self.nodes: list[_Node] = []
        self.root = self._grow(flow, None, queue)
        for node in self.nodes:
            node.check()
        given = [node.job.id for node in self.nodes if node.job.id is not None]
        if len(set(given)) != len(given):
            twice = next(job_id for job_id in given if given.count(job_id) > 1)
            raise InvalidArgument(f"{twice} is in this flow twice: every job of a flow has an id of its own")
        self.nodes.sort(key=lambda node: node.level)

    def _grow(self, flow: Flow | NewJob, parent: _Node | None, queue: str) -> _Node:
        if isinstance(flow, NewJob):
            flow = Flow(flow)
        elif not isinstance(flow, Flow):
            raise InvalidArgument(f"a flow is made of NewJob and Flow, not {type(flow).__name__}")
        node = _Node(flow, parent, queue)
        if node.level > MAX_LEVELS:
            raise InvalidArgument(f"a flow has at most {MAX_LEVELS} levels: let a job at the bottom add another flow")
        self.nodes.append(node)
        node.children = [self._grow(child, node, node.queue) for child in flow.children]
        return node

    def mint(self, mint: Callable[[], str]) -> None:
        """Give new ids to all nodes that brought none."""
        for node in self.nodes:
            if node.offer.minted:
                node.offer.args[0] = mint()
        for node in self.nodes:
            node.pack()

    @property
    def at_once(self) -> bool:
        """Whether it lands in one script call."""
        if len({node.queue for node in self.nodes}) > 1 or len(self.nodes) > _JOBS_AT_ONCE:
            return False
        return self.size <= _BYTES_AT_ONCE

    @property
    def size(self) -> int:
        return sum(node.offer.size for node in self.nodes)


class Flows(Handle):
    """Adding flows, and reading what a parent knows."""

    _senders: Callers

    def add_flow(self, flow: Flow) -> FlowAdded:
        """Add a flow: jobs without children wait to be claimed, every parent is held until its children are done.

        A flow within one queue lands whole or not at all (up to 5,000 jobs or 8 MB). One that spans queues, or is
        larger, lands from the top down: when that breaks off, its parents are held and never run early. With ids of
        your own, add it again: what is there already stays as it is.

        Raises:
          InvalidArgument, InvalidId, InvalidName: before a byte is sent; also for more than 8 levels or an id that is
            there twice.
          WrongState: when an id that you gave names a job that exists already, below a root that does not.
          ServerError: when the server could not take it; ``admitted`` lists the ids that are in.
        """
        return self.add_flows([flow])[0]

    def add_flows(self, flows: Iterable[Flow]) -> list[FlowAdded]:
        """Add many flows in few round trips; one answer for each, in order. All are checked before a byte is sent.

        Each lands by itself: when one is refused for an id that exists, others may be in.

        Raises:
          InvalidArgument, InvalidId, InvalidName, WrongState, ServerError: as :meth:`add_flow`.
        """
        trees = [_Tree(flow, self.name) for flow in flows]
        for tree in trees:
            tree.mint(self._mint_job)
        answers: dict[int, FlowAdded] = {}
        whole_ones = [place for place, tree in enumerate(trees) if tree.at_once]
        landed: list[str] = []
        try:
            for places in _trips(whole_ones, [tree.size for tree in trees]):
                for place, added in zip(places, self._add_whole([trees[place] for place in places]), strict=True):
                    answers[place] = added
                    landed += [] if added.duplicate else [node.id for node in trees[place].nodes]
            for place, tree in enumerate(trees):
                if place not in answers:
                    answers[place] = self._add_by_level(tree, landed)
        except EchoMQError as error:
            error.admitted = (*landed, *error.admitted)
            raise
        return [answers[place] for place in range(len(trees))]

    def _mint_job(self) -> str:
        return self.scripts.mint.mint("JOB")

    def _add_whole(self, trees: list[_Tree]) -> list[FlowAdded]:
        """Land flows of one queue each, one script call a flow, all in one round trip."""
        answers: list[FlowAdded | None] = [None] * len(trees)
        for _ in range(_MAX_COLLISIONS):
            left = [place for place, answer in enumerate(answers) if answer is None]
            if not left:
                break
            mine = [self._senders.take() for _ in left]
            calls = [
                Call(
                    "flow_add",
                    queue_key(trees[place].root.queue),
                    [caller.id, caller.nonce(), *(arg for node in trees[place].nodes for arg in node.offer.args)],
                    self.event_args(),
                )
                for place, caller in zip(left, mine, strict=True)
            ]
            failure: EchoMQError | None = None
            for place, caller, reply in zip(left, mine, self.scripts.attempt(calls), strict=True):
                caller.answered()
                self._senders.give(caller)
                if isinstance(reply, EchoMQError):
                    failure = failure or reply
                    continue
                try:
                    answers[place] = self._landed(trees[place], reply)
                except WrongState as error:
                    # The answers of the other flows are heard first: their callers are free again.
                    failure = failure or error
            if failure is not None:
                failure.admitted = tuple(
                    node.id
                    for tree, answer in zip(trees, answers, strict=True)
                    if answer is not None and not answer.duplicate
                    for node in tree.nodes
                )
                raise failure
        else:
            raise ScriptError(f"a flow met ids that exist already {_MAX_COLLISIONS} times in a row")
        return [answer for answer in answers if answer is not None]

    def _landed(self, tree: _Tree, reply: int | bytes) -> FlowAdded | None:
        """Read what flow_add answered; None when minted ids collided and others were minted."""
        root = tree.root
        if reply == 1 or (reply == 0 and not root.offer.minted):
            return root.added(duplicate=reply == 0)
        there = root.id if reply == 0 else text(reply)  # type: ignore[arg-type]
        if not next(node for node in tree.nodes if node.id == there).offer.minted:
            raise _exists(there)
        tree.mint(self._mint_job)
        return None

    def _add_by_level(self, tree: _Tree, landed: list[str]) -> FlowAdded:
        """Land a flow from the top down: what a child reports to is there before the child is."""
        self._refuse_strangers(tree)
        duplicate = False
        settled: set[_Node] = set()
        for level in range(1, MAX_LEVELS + 1):
            nodes = [node for node in tree.nodes if node.level == level and node not in settled]
            for queue in dict.fromkeys(node.queue for node in nodes):
                mine = [node for node in nodes if node.queue == queue]
                for node in mine:
                    node.pack()
                offers = [node.offer for node in mine]
                # Their minted ids are given already; a collision is met by minting another before the children go.
                admit_offers(self, self._senders, offers, key=queue_key(queue), mint_first=False)
                landed += [each.answer.id for each in offers if each.answer and not each.answer.duplicate]
                there = [node for node in mine if node.offer.answer and node.offer.answer.duplicate]
                if level == 1 and there:
                    duplicate = True
                    self._deliver_from(tree)
                settled.update(self._settled_below(queue, there))
            # What is not sent, its own children are not either.
            settled.update(child for node in tree.nodes if node in settled for child in node.children)
        return tree.root.added(duplicate=duplicate)

    def _refuse_strangers(self, tree: _Tree) -> None:
        """Refuse a flow before any of it lands when a given id is that of another flow's job, or of none's.

        Raises:
          WrongState: when there is one.
        """
        parents: dict[str, bytes | None] = {}
        for queue in dict.fromkeys(node.queue for node in tree.nodes):
            ids = [node.id for node in tree.nodes if node.queue == queue and not node.offer.minted]
            parents.update(_rows(self.scripts, queue, ids))
        for node in tree.nodes:
            if node.parent is None or node.id not in parents:
                continue
            if tree.root.id not in parents or parents[node.id] != node.parent.id.encode():
                raise _exists(node.id)

    def _deliver_from(self, tree: _Tree) -> None:
        """Let the parents of a flow that is there already know which children have ended: those must not run again."""
        for queue in dict.fromkeys(node.queue for node in tree.nodes):
            while type(self)(queue, self.connection).deliver():  # type: ignore[attr-defined]  # of Outbox
                pass

    def _settled_below(self, queue: str, parents: list[_Node]) -> list[_Node]:
        """The children that must not be sent when their parents were there before.

        Those that have ended would run again. Those with a minted id may be there under another, and one too many would
        let the parent run early.
        """
        parents = [parent for parent in parents if parent.children]
        calls = [Call("flow_read", queue_key(queue), [parent.id]) for parent in parents]
        found: list[_Node] = []
        for parent, reply in zip(parents, self.scripts.batch(calls) if calls else [], strict=True):
            # A parent that is gone meanwhile waits for nobody.
            ended = {text(child) for known in reply[1:] for child in known[::2]} if reply else None
            found += [child for child in parent.children if child.offer.minted or ended is None or child.id in ended]
        return found

    def children(self, parent_id: str) -> Children | None:
        """What a flow parent knows of its children; None when it has no row, as after its completion.

        Raises:
          InvalidId: when ``parent_id`` is not a JOB id.
        """
        reply = self.run("flow_read", check_id(parent_id, "JOB"))
        if not reply:
            return None
        outstanding, results, failures, ignored = reply
        done = dict(_pairs(results))
        return Children(
            done,
            # One that was brought back from the dead and completed has not failed any more.
            {child: error.decode(errors="replace") for child, error in _pairs(failures) if child not in done},
            {child: error.decode(errors="replace") for child, error in _pairs(ignored) if child not in done},
            outstanding,
        )


def _trips(places: list[int], sizes: list[int]) -> Iterator[list[int]]:
    """The flows that travel together in one round trip."""
    trip: list[int] = []
    for place in places:
        if trip and (len(trip) >= _FLOWS_A_TRIP or sum(sizes[each] for each in trip) + sizes[place] > _BYTES_AT_ONCE):
            yield trip
            trip = []
        trip.append(place)
    if trip:
        yield trip


def _rows(scripts: Scripts, queue: str, ids: list[str]) -> Iterator[tuple[str, bytes | None]]:
    """The ids of jobs that are there, each with that of its parent."""
    for first in range(0, len(ids), _ROWS_A_CALL):
        chunk = ids[first : first + _ROWS_A_CALL]
        for job_id, row in zip(chunk, scripts.call("job_get", queue_key(queue), chunk), strict=True):
            if row:
                yield job_id, dict(zip(row[2::2], row[3::2], strict=True)).get(b"parent")


def _exists(job_id: str) -> WrongState:
    return WrongState(f"{job_id} exists already: a flow is made of new jobs, and none of this one was added")


def _pairs(flat: list[bytes]) -> Iterator[tuple[str, bytes]]:
    return ((text(name), value) for name, value in zip(flat[::2], flat[1::2], strict=True))
