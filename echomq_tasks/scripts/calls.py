"""Script calls, and those that are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from echomq_tasks.scripts.cluster import Argument, Packed
from echomq_tasks.scripts.courier import Errand
from echomq_tasks.scripts.wire import Wire


class Call(NamedTuple):
    """One script call.

    Attributes:
      name: the script's name.
      key: the one key it declares.
      args: its arguments.
      events: what it is to announce, as :meth:`echomq_tasks.events.Announcing.arguments` has it; only scripts that
        announce anything are told.
    """

    name: str
    key: bytes
    args: Sequence[Argument]
    events: Sequence[Argument] = ()


class Sent:
    """Calls that were sent, and whose replies are still to be read (:meth:`Scripts.receive`); for one thread.

    Attributes:
      errand: in a cluster, the courier's who exchanges them.
    """

    __slots__ = ("_wire", "calls", "commands", "errand")

    def __init__(
        self, calls: Sequence[Call], commands: list[Packed], wire: Wire | None, errand: Errand | None = None
    ) -> None:
        self.calls = calls
        self.commands = commands
        self.errand = errand
        self._wire = wire

    def fileno(self) -> int | None:
        """The descriptor that becomes readable with the replies; None when there is none to wait for."""
        return None if self._wire is None else self._wire.fileno()

    def take(self) -> Wire | None:
        """The connection, which is the caller's from now on."""
        wire, self._wire = self._wire, None
        return wire

    def close(self) -> None:
        """Read no replies: the connection goes. A courier is left to it."""
        if (wire := self.take()) is not None:
            wire.close()
