"""Group commit: threads that finish jobs together settle them in one script call."""

from __future__ import annotations

import threading

from echomq_tasks.errors import EchoMQError, ServerError, ServerUnavailable
from echomq_tasks.queue import Complete, Discard, Queue, Retry, Verdict

#: The most settlements in one call; the server is held for its length.
_MOST = 256


class _Ticket:
    """One thread's settlement, and its answer once there is one."""

    __slots__ = ("error", "settlement", "verdict")

    def __init__(self, settlement: Complete | Retry | Discard) -> None:
        self.settlement = settlement
        self.verdict: Verdict | None = None
        self.error: BaseException | None = None

    @property
    def answered(self) -> bool:
        return self.verdict is not None or self.error is not None


class Settler:
    """Settles the jobs of one queue for all threads of a process.

    Whoever holds the line sends everything that is there; while it waits for the answer, the others gather in front of
    the line, and the next one of them sends it all. A thread returns when the server has answered for its job, so an
    acknowledged job is a settled job. A thread that is torn away by an exception thrown into it leaves the line to the
    next, and its settlement to whoever sends next.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._waiting: list[_Ticket] = []
        # Guards the list, for moments.
        self._gate = threading.Lock()
        # Held by the thread that talks to the server.
        self._line = threading.Lock()

    def settle(self, settlement: Complete | Retry | Discard) -> Verdict:
        """Settle one job.

        Raises:
          EchoMQError: what the batch's call raised; the job is not settled and the call can be repeated.
        """
        mine = _Ticket(settlement)
        with self._gate:
            self._waiting.append(mine)
        while not mine.answered:
            with self._line:
                if not mine.answered:
                    with self._gate:
                        batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                        if mine not in batch:
                            # Whoever had taken it was torn away before it was sent.
                            batch.append(mine)
                    self._send(batch)
        if mine.error is not None:
            raise mine.error
        assert mine.verdict is not None
        return mine.verdict

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
                ticket.error = type(error)(*error.args) if isinstance(error, EchoMQError) else _torn(error)
                ticket.error.__cause__ = error
            if not isinstance(error, EchoMQError):
                # Thrown into this thread, and meant for it alone.
                raise
        else:
            for ticket, verdict in zip(batch, verdicts, strict=True):
                ticket.verdict = verdict


def _torn(error: BaseException) -> EchoMQError:
    return ServerUnavailable(f"the settlement was torn off by {type(error).__name__}; it can be repeated")
