"""Group commit: threads that finish jobs together settle them in one script call."""

from __future__ import annotations

import threading

from echomq_tasks.errors import EchoMQError, ServerError
from echomq_tasks.queue import Complete, Queue, Retry, Verdict

#: The most settlements in one call; the server is held for its length.
_MOST = 256


class _Ticket:
    """One thread's settlement. The thread sleeps on ``turn`` until it is answered or asked to lead."""

    __slots__ = ("error", "settlement", "turn", "verdict")

    def __init__(self, settlement: Complete | Retry) -> None:
        self.settlement = settlement
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class Settler:
    """Settles the jobs of one queue for all threads of a process.

    Whoever comes first leads: it sends what is there, and while it waits for the answer the others gather for the next
    call, which one of them leads. A thread returns when the server has answered for its job, so an acknowledged job is
    a settled job.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._gate = threading.Lock()
        self._waiting: list[_Ticket] = []
        self._led = False

    def settle(self, settlement: Complete | Retry) -> Verdict:
        """Settle one job.

        Raises:
          EchoMQError: what the batch's call raised; the job is not settled and the call can be repeated.
        """
        mine = _Ticket(settlement)
        with self._gate:
            self._waiting.append(mine)
            leader, self._led = not self._led, True
        if not leader:
            mine.turn.acquire()
        if mine.verdict is None and mine.error is None:
            self._lead()
        if mine.error is not None:
            raise mine.error
        assert mine.verdict is not None
        return mine.verdict

    def _lead(self) -> None:
        with self._gate:
            batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
        try:
            self._send(batch)
        finally:
            with self._gate:
                heir = self._waiting[0] if self._waiting else None
                self._led = heir is not None
            for ticket in (*batch, *((heir,) if heir else ())):
                ticket.turn.release()

    def _send(self, batch: list[_Ticket]) -> None:
        try:
            verdicts = self._queue.settle([ticket.settlement for ticket in batch])
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, EchoMQError) and not isinstance(error, ServerError):
                # One of them cannot be settled as it is. It must not take the others along; repeats are harmless.
                for ticket in batch:
                    self._send([ticket])
                return
            for ticket in batch:
                # Each thread raises an exception object of its own, or their tracebacks would grow into each other.
                ticket.error = type(error)(*error.args) if isinstance(error, EchoMQError) else error
                ticket.error.__cause__ = error
        else:
            for ticket, verdict in zip(batch, verdicts, strict=True):
                ticket.verdict = verdict
