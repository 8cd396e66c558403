"""The message that has no id yet: nobody has asked for it, so that its job's own will do, and need not be sent."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, TypeVar

from dramatiq import Message
from dramatiq.message import generate_unique_id

from echomq_tasks.identity import minted_at_ms

R = TypeVar("R", covariant=True)


class UnsentMessage(Message[R]):
    """A message whose ``message_id`` and ``message_timestamp`` are made when they are first read.

    Sent before that, its id is its JOB id and its timestamp that of the JOB id, which is what a worker fills in where a
    payload has neither (wire §10): the payload is a third as long. All else is Dramatiq's, and so is what it equals.
    """

    @classmethod
    def make(
        cls, queue_name: str, actor_name: str, args: Any, kwargs: dict[str, Any], options: dict[str, Any]
    ) -> UnsentMessage[Any]:
        """A message of these fields. Dramatiq's own constructor would make an id and a timestamp."""
        message = object.__new__(cls)
        vars(message).update(
            queue_name=queue_name,
            actor_name=actor_name,
            args=args if type(args) is tuple else tuple(args),
            kwargs=kwargs,
            options=options,
        )
        return message

    @staticmethod
    def keep_ids(messages: Iterable[Message[Any]], ids: Iterable[str]) -> None:
        """Note the JOB ids under which messages were offered to a server whose answer is unknown.

        Offered again they are other jobs, and whoever runs both can tell that they are one message.
        """
        for message, job_id in zip(messages, ids, strict=False):
            if isinstance(message, UnsentMessage) and "message_id" not in vars(message):
                vars(message).setdefault("message_timestamp", minted_at_ms(job_id))
                vars(message)["message_id"] = job_id

    def __getattr__(self, name: str) -> Any:
        # Called for what is not there only. Two threads that ask at once must be told the same.
        if name == "message_id":
            return vars(self).setdefault(name, self._made_id())
        if name == "message_timestamp":
            return vars(self).setdefault(name, self._made_timestamp())
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _made_id(self) -> str:
        return generate_unique_id()

    def _made_timestamp(self) -> int:
        return int(time.time() * 1000)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self.asdict() == other.asdict()

    # As with Dramatiq's: it holds lists and dicts.
    __hash__ = Message.__hash__

    def __getstate__(self) -> dict[str, Any]:
        # A copy is of the same message, so what tells it from others must stand.
        self.asdict()
        return dict(vars(self))
