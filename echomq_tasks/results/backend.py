"""The result backend: Dramatiq's contract on one key beside the job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

from dramatiq import Encoder, Message
from dramatiq.common import compute_backoff, q_name
from dramatiq.results import ResultBackend, ResultMissing, ResultTimeout
from dramatiq.results.backend import DEFAULT_TIMEOUT
from dramatiq.results.middleware import DEFAULT_RESULT_TTL
from dramatiq.results.result import wrap_exception, wrap_result

from echomq_tasks.config import Config
from echomq_tasks.connection import Connection
from echomq_tasks.errors import ConfigError, InvalidArgument, ServerUnavailable
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import job_key
from echomq_tasks.queue.results import Results
from echomq_tasks.results.ids import result_id

_log = logging.getLogger(__name__)

#: Our own options, for a misspelled one to be told.
_OPTIONS = ("broker", "connection", "encoder")
#: Seconds for which a result is offered to a server that does not answer. The job is done: if this gives up, its result
#: is lost, because the middleware that called has no second try.
_STORE_SECONDS = 15.0


class Connected(Protocol):
    """What has a connection, opened at the latest when it is asked for: a broker."""

    @property
    def connection(self) -> Connection:
        """The connection."""


class EchoMQBackend(ResultBackend):
    """A Dramatiq result backend on Valkey: a waiting caller is woken by the server, in a cluster too.

    Nothing connects until a result is stored or asked for.

    Examples:

      >>> broker.add_middleware(Results(backend=EchoMQBackend(broker=broker)))

    Parameters:
      url: where the server is, see :func:`echomq_tasks.connect`; ``EMQ_URL``, else the embedded server, by default.
      broker: take the connection of this broker (of anything with a ``connection``), whenever it is opened.
      connection: a connection that you made; it is yours to close.
      encoder: how results become bytes; Dramatiq's encoder of messages by default.
      **options: connection options, see :func:`echomq_tasks.connect`.

    Raises:
      ConfigError: when the URL or an option is wrong.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        broker: Connected | None = None,
        connection: Connection | None = None,
        encoder: Encoder | None = None,
        **options: Any,
    ) -> None:
        if (broker is not None) + (connection is not None) + (url is not None or bool(options)) > 1:
            raise ConfigError("give one of broker=, connection=, or a URL and options")
        for name in ("namespace", "use_namespace_prefix_keys"):
            if name in options:
                raise ConfigError(f"{name} has no meaning here: a result's key is its queue's, emq:{{queue}}:job:<id>")
        super().__init__(encoder=encoder)
        self._broker = broker
        self._given = self._own = connection
        if broker is None and connection is None:
            self._config = Config.parse(url, also=_OPTIONS, **options)
        self._after_fork()
        after_fork(self._after_fork)

    def _after_fork(self) -> None:
        # It may have been held by a thread that the child does not have.
        self._lock = threading.Lock()

    @property
    def connection(self) -> Connection:
        """The connection, opened on first use.

        Raises:
          ServerError: when the server cannot serve us.
        """
        if self._broker is not None:
            return self._broker.connection
        if self._own is None:
            with self._lock:
                if self._own is None:
                    self._own = Connection(self._config)
        return self._own

    def close(self) -> None:
        """Close the connection, unless it was given or is the broker's. A closed backend opens again on use."""
        with self._lock:
            connection, self._own = self._own, self._given
        if connection is not None and connection is not self._given:
            connection.close()

    def build_message_key(self, message: Message[Any]) -> str:
        """The key of a message's result on the server.

        Raises:
          InvalidName, InvalidId: when the message's queue or id cannot be part of a key.
        """
        return job_key(q_name(message.queue_name), result_id(message.message_id), "result").decode()

    def get_result(self, message: Message[Any], *, block: bool = False, timeout: int | None = None) -> Any:
        """The result of a message.

        Parameters:
          message: the message, or one with its queue and id.
          block: whether to wait; the wait goes on over a restart of the server.
          timeout: milliseconds to wait when ``block`` is True, ten seconds by default.

        Raises:
          ResultMissing: when there is none and ``block`` is False.
          ResultTimeout: when none came in time.
          ResultFailure: when the actor failed.
          ServerUnavailable: when the server could not be asked.
        """
        seconds = max(DEFAULT_TIMEOUT if timeout is None else timeout, 0) / 1000 if block else 0
        data = self._results(message).result(result_id(message.message_id), timeout=seconds)
        if data is None:
            raise ResultTimeout(message) if block else ResultMissing(message)
        unwrap: Callable[[Any], Any] = self.unwrap_result  # which Dramatiq leaves untyped
        return unwrap(self.encoder.decode(data))

    def store_result(self, message: Message[Any], result: Any, ttl: int | None) -> None:
        """Keep the result of a message for ``ttl`` milliseconds, and wake all who wait for it.

        A result that cannot be stored becomes the message's failure, so that whoever waits is told why.

        Raises:
          InvalidArgument: when it cannot be encoded, or is too large.
          ServerOutOfMemory: when the server's memory is full.
          ServerUnavailable: when the server did not answer for a while.
        """
        try:
            try:
                data = self.encoder.encode(wrap_result(result))
            except Exception as error:
                # Whatever an encoder raises.
                raise InvalidArgument(
                    f"{type(self.encoder).__name__} cannot encode the result of {message.actor_name}, a "
                    f"{type(result).__name__}: {error}. Return what it can, or give the backend another encoder="
                ) from error
            self._keep(message, data, ttl)
        except InvalidArgument as error:
            self.store_exception(message, error, ttl)
            raise

    def store_exception(self, message: Message[Any], exception: BaseException, ttl: int | None) -> None:
        """Keep the failure of a message for ``ttl`` milliseconds, and wake all who wait for its result.

        Raises:
          ServerOutOfMemory, ServerUnavailable: as :meth:`store_result`.
        """
        self._keep(message, self.encoder.encode(wrap_exception(exception)), ttl)

    def forget_result(self, message: Message[Any]) -> bool:
        """Drop the result of a message before its time; whether there was one."""
        return self._results(message).forget_result(result_id(message.message_id))

    def _results(self, message: Message[Any]) -> Results:
        # Made for each call: a broker that was closed has another connection by the next one.
        return Results(q_name(message.queue_name), self.connection)

    def _keep(self, message: Message[Any], data: bytes, ttl: int | None) -> None:
        # What `Results` itself makes of no time, and of one that is over at once.
        kept = DEFAULT_RESULT_TTL if ttl is None else max(ttl, 1)
        end = time.monotonic() + _STORE_SECONDS
        tries = 0
        while True:
            try:
                self._results(message).store_result(result_id(message.message_id), data, ttl=kept / 1000)
                return
            except ServerUnavailable as error:
                tries, delay = compute_backoff(tries, factor=50)
                if time.monotonic() + delay / 1000 > end:
                    raise
                if tries == 1:
                    _log.warning("The result of message %r is offered again: %s", message.message_id, error)
            time.sleep(delay / 1000)
