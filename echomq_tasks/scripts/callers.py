"""Who calls: ids under which the server keeps a caller's last answer, so that a call can be sent again."""

from __future__ import annotations

import secrets
from collections import deque

from echomq_tasks.forks import after_fork


class Caller:
    """One call at a time goes out under its id. A call keeps its number until it is answered; each try has its own."""

    __slots__ = ("_number", "_try", "_unanswered", "id")

    def __init__(self) -> None:
        self.id = secrets.token_hex(6)
        self._number = 0
        self._try = 0
        self._unanswered = False

    def nonce(self) -> str:
        """The nonce to send, ``<call>.<try>``: of a new call, or of another try at the one that was not answered.

        A try that is held up on its way may arrive after the next one: by its number the server knows it for late.
        """
        if not self._unanswered:
            self._number += 1
            self._try = 0
            self._unanswered = True
        self._try += 1
        return f"{self._number}.{self._try}"

    def answered(self) -> None:
        """The answer has come."""
        self._unanswered = False


class Callers:
    """Callers for the threads of a process; as many as there are calls under way at once.

    The one given back last is taken first: few ids serve a process, and an unanswered call is soon sent again.
    """

    def __init__(self) -> None:
        # deque operations are atomic, so no lock is needed.
        self._idle: deque[Caller] = deque()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # A child under its parent's ids would be given the parent's answers.
        self._idle = deque()

    def take(self) -> Caller:
        """A caller that nobody else uses until it is given back."""
        try:
            return self._idle.pop()
        except IndexError:
            return Caller()

    def give(self, caller: Caller) -> None:
        """Give a caller back."""
        self._idle.append(caller)
