"""Who calls: ids under which the server keeps a caller's last answer, so that a call can be sent again."""

from __future__ import annotations

import secrets
from collections import deque

from echomq_tasks.forks import after_fork


class Caller:
    """One call at a time goes out under its id. A call keeps its number until it is answered; each try has its own."""

    __slots__ = ("_number", "_try", "id", "unanswered")

    def __init__(self) -> None:
        self.id = secrets.token_hex(6)
        self._number = 0
        self._try = 0
        #: Whether an answer is still to be had: what its last call has done, nobody knows of.
        self.unanswered = False

    def nonce(self) -> str:
        """The nonce to send, ``<call>.<try>``: of a new call, or of another try at the one that was not answered.

        A try that is held up on its way may arrive after the next one: by its number the server knows it for late.
        """
        if not self.unanswered:
            self._number += 1
            self._try = 0
            self.unanswered = True
        self._try += 1
        return f"{self._number}.{self._try}"

    def answered(self) -> None:
        """The answer has come."""
        self.unanswered = False


class Callers:
    """Callers for the threads of a process; as many as there are calls under way at once.

    The one given back last is taken first, so that few ids serve a process; but before all others one whose call was
    not answered, which is then sent again.
    """

    def __init__(self) -> None:
        # deque operations are atomic, so no lock is needed.
        self._idle: deque[Caller] = deque()
        self._unanswered: deque[Caller] = deque()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A child under its parent's ids would be given the parent's answers.
        self._idle = deque()
        self._unanswered = deque()

    def take(self) -> Caller:
        """A caller that nobody else uses until it is given back."""
        try:
            if self._unanswered:
                return self._unanswered.popleft()
            return self._idle.pop()
        except IndexError:
            return Caller()

    @property
    def owed(self) -> bool:
        """Whether there is a call of which it is not known what it did."""
        return bool(self._unanswered)

    def give(self, caller: Caller) -> None:
        """Give a caller back."""
        (self._unanswered if caller.unanswered else self._idle).append(caller)
