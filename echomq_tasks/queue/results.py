"""Results: one short-lived value beside a job, for which any number of callers wait without polling."""

from __future__ import annotations

import redis

from echomq_tasks.errors import InvalidArgument, ScriptError, ServerUnavailable
from echomq_tasks.identity import check_id
from echomq_tasks.keyspace import job_key
from echomq_tasks.queue.arguments import payload_bytes, seconds_to_ms, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.waiting import Waiting, now

#: Seconds for which a result is kept: Dramatiq's own ten minutes.
RESULT_TTL = 600.0
#: Bytes from which a broken connection may mean that the server does not take so much: the least it can be set to.
_LARGE = 1 << 20


class Results(Handle):
    """What came of a job, under its id; the job itself may be long gone, or may never have been in this queue."""

    def store_result(self, job_id: str, value: bytes | str, *, ttl: float = RESULT_TTL) -> None:
        """Keep a result, in place of any before it, and wake all who wait for it. Safe to repeat.

        Parameters:
          job_id: a JOB id; no job has to have it.
          value: the encoded result; text as UTF-8.
          ttl: seconds to keep it, from a thousandth up: nothing is kept for ever.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent; InvalidArgument also when the server takes no value of this
            size.
          ServerOutOfMemory: when the server's memory is full; nothing was written.
          ServerUnavailable: when the server did not answer.
        """
        check_id(job_id, "JOB")
        kept = whole(seconds_to_ms(ttl, "ttl"), "ttl in milliseconds", 1)
        try:
            data = payload_bytes(value)
        except InvalidArgument as error:
            raise InvalidArgument(f"the result of {job_id} cannot be stored: {error}") from None
        if len(data) < _LARGE:
            self.run("result_store", job_id, data, kept)
        else:
            self._store_large(job_id, data, kept)

    def result(self, job_id: str, *, timeout: float | None = 0) -> bytes | None:
        """The result of a job; None when there is none, or none came in time.

        A wait costs the server one command in twenty seconds, and ends within a round trip of the result's arrival.
        When the connection drops, it goes on over another one, until its time is up.

        Parameters:
          job_id: a JOB id.
          timeout: seconds to wait; 0 looks once, None waits for ever.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
          ServerUnavailable: when the server could not be asked, a wait's last try included.
          ServerOutOfMemory: when there is none and the server has no memory left for those who wait.
          WrongState: when something else stands in the result's place; :meth:`forget_result` removes it.
        """
        key = job_key(self.name, job_id, "result")
        if timeout is None:
            deadline = None
        else:
            seconds = seconds_to_ms(timeout, "timeout") / 1000
            if not seconds:
                return self._look(job_id)
            deadline = now() + seconds
        return Waiting.of(self.connection).wait(key, deadline, lambda: self._look(job_id))

    def forget_result(self, job_id: str) -> bool:
        """Drop a result before its time; whether there was one.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return bool(self.run("result_forget", check_id(job_id, "JOB")))

    def _store_large(self, job_id: str, data: bytes, kept: int) -> None:
        """Store what may be more than the server takes: it then hangs up, and its reason may be lost on the way."""
        for _ in range(2):
            try:
                self.run("result_store", job_id, data, kept)
                return
            except ScriptError as error:
                if "Protocol error" not in str(error):
                    raise
                refusal: Exception = error
                break
            except ServerUnavailable as error:
                if isinstance(error.__cause__, redis.TimeoutError):
                    raise
                # A server that is away raises here. One that answers this, and hangs up on the value again, refuses it.
                self.run("job_state", job_id)
                refusal = error
        raise InvalidArgument(
            f"the result of {job_id} has {len(data)} bytes, which {self.connection.config.address} does not take: "
            "raise its proto-max-bulk-len (512 MB by default), or store the data elsewhere and return its address"
        ) from refusal

    def _look(self, job_id: str) -> bytes | None:
        found: bytes | None = self.run("result_get", check_id(job_id, "JOB"))
        return found
