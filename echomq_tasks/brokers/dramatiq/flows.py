"""Flows of messages: a parent that runs when its children are done, and reads what they returned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dramatiq import Broker, Message, get_broker

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.queue import Flow, FlowAdded, NewJob

if TYPE_CHECKING:
    from echomq_tasks.brokers.dramatiq.broker import EchoMQBroker


class flow:
    """A message with the messages that it waits for; :meth:`run` sends them all.

    The parent's function reads what the children returned with ``current_job().children()``. Children run at once, on
    their own queues, and may be flows themselves, up to 8 levels.

    Examples:

      >>> flow(report.message("may"), [fetch.message(shop) for shop in shops]).run()  # doctest: +SKIP

    Parameters:
      parent: the message that waits.
      children: messages or flows; none makes a parent that runs at once.
      ignore_failures: what a child that failed for good means: by default the parent goes to dead too. With True it
        runs, and finds the error in ``current_job().children().ignored``.
    """

    def __init__(
        self, parent: Message[Any], children: Iterable[Message[Any] | flow] = (), *, ignore_failures: bool = False
    ) -> None:
        if not isinstance(parent, Message):
            raise InvalidArgument(f"a flow's parent is a message, as report.message(...) makes it, not {parent!r}")
        self.parent = parent
        self.children: list[Message[Any] | flow] = list(children)
        for child in self.children:
            if not isinstance(child, (Message, flow)):
                raise InvalidArgument(f"a flow's child is a message or a flow, not {child!r}")
        self.ignore_failures = ignore_failures

    def __repr__(self) -> str:
        return f"flow({self.parent}, {len(self.children)} children)"

    def __iter__(self) -> Iterator[Message[Any]]:
        """All messages, the parent before its children."""
        yield self.parent
        for child in self.children:
            if isinstance(child, flow):
                yield from child
            else:
                yield child

    def run(self, *, broker: Broker | None = None) -> flow:
        """Send all messages; within one queue all or none (see :meth:`echomq_tasks.queue.Queue.add_flow`).

        Afterwards each message knows its job, as one that ``send`` returned: ``job_id``, ``cancel()``. A flow that runs
        a second time has copies of its messages.

        Parameters:
          broker: an :class:`EchoMQBroker`; Dramatiq's global one by default.

        Raises:
          InvalidArgument, InvalidName: before anything is sent; also for more than 8 levels, and for a message that is
            there twice.
          ConnectionClosed: when the server did not answer; the parents that are in are held and never run early.
          ServerOutOfMemory: when the server's memory is full.
        """
        run_flows([self], broker=broker)
        return self

    def get_result(self, **options: Any) -> Any:
        """The parent's result; see :meth:`dramatiq.Message.get_result`."""
        return self.parent.get_result(**options)


def run_flows(flows: Iterable[flow], *, broker: Broker | None = None) -> None:
    """Send many flows in few round trips; see :meth:`flow.run`. All are checked before anything is sent.

    Parameters:
      flows: the flows.
      broker: an :class:`EchoMQBroker`; Dramatiq's global one by default.

    Raises:
      InvalidArgument, InvalidName, ConnectionClosed, ServerOutOfMemory: as :meth:`flow.run`.
    """
    target: EchoMQBroker | Broker = broker or get_broker()
    if not hasattr(target, "enqueue_flows"):
        raise InvalidArgument(f"a flow runs on an EchoMQBroker, not on a {type(target).__name__}: give broker=")
    target.enqueue_flows(list(flows))


def check_messages(flows: Sequence[flow]) -> None:
    """Refuse a message that stands in flows twice: its job would have two parents, or run twice.

    Raises:
      InvalidArgument: when there is one.
    """
    seen: set[int] = set()
    for tree in flows:
        if not isinstance(tree, flow):
            raise InvalidArgument(f"run_flows takes flows, not {tree!r}")
        for message in tree:
            if id(message) in seen:
                raise InvalidArgument(f"{message} stands in the flow twice: make a message for each place")
            seen.add(id(message))


def renew(tree: flow) -> None:
    """Put copies in the places of messages that were sent before: those go on knowing the jobs that they were."""
    if "job_id" in vars(tree.parent):
        tree.parent = tree.parent.copy()
    for place, child in enumerate(tree.children):
        if isinstance(child, flow):
            renew(child)
        elif "job_id" in vars(child):
            tree.children[place] = child.copy()


def tree_of(tree: flow, prepare: Callable[[Message[Any]], NewJob]) -> Flow:
    """The flow of jobs that carry these messages; ``prepare`` makes the job of each."""
    job = prepare(tree.parent)
    children = []
    for child in tree.children:
        below = tree_of(child if isinstance(child, flow) else flow(child), prepare)
        children.append(replace(below, on_failure="ignore" if tree.ignore_failures else "fail_parent"))
    return Flow(job, children, tree.parent.queue_name)


def added_to(tree: flow, added: FlowAdded) -> Iterator[tuple[Message[Any], str]]:
    """Each message with the id of its job."""
    yield tree.parent, added.id
    for child, below in zip(tree.children, added.children, strict=True):
        if isinstance(child, flow):
            yield from added_to(child, below)
        else:
            yield child, below.id
