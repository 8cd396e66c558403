"""The broker: Dramatiq's contract on the emq: wire."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import redis
from dramatiq import Actor, Broker, Message, MessageProxy, Middleware, Worker
from dramatiq import middleware as stock
from dramatiq.common import q_name
from dramatiq.errors import ConnectionFailed, QueueJoinTimeout, QueueNotFound
from redis.cluster import RedisCluster

from echomq_tasks import signals
from echomq_tasks.brokers.dramatiq.batches import Batch, BatchRule, Member, batch_rule
from echomq_tasks.brokers.dramatiq.consumer import EchoMQConsumer
from echomq_tasks.brokers.dramatiq.delivery import ERROR_TAIL, Delivery, RetryIntent, fresh_payload, lease_end
from echomq_tasks.brokers.dramatiq.final import emit_final
from echomq_tasks.brokers.dramatiq.flows import added_to, check_messages, flow, renew, tree_of
from echomq_tasks.brokers.dramatiq.hooks import THREAD_HOOKS, Hooks
from echomq_tasks.brokers.dramatiq.leases import LeaseKeeper
from echomq_tasks.brokers.dramatiq.listening import BrokerBus, listening
from echomq_tasks.brokers.dramatiq.options import ACTOR_OPTIONS, check_options
from echomq_tasks.brokers.dramatiq.outgoing import check_delay, encode, new_job, settle_options, take_eta
from echomq_tasks.brokers.dramatiq.sent import SentMessage
from echomq_tasks.brokers.dramatiq.settler import Settler
from echomq_tasks.brokers.dramatiq.signalling import Signalling
from echomq_tasks.brokers.dramatiq.slots import Slots
from echomq_tasks.brokers.dramatiq.time_limits import start_timers
from echomq_tasks.brokers.dramatiq.transport import transport
from echomq_tasks.brokers.dramatiq.unreported import emit_unreported
from echomq_tasks.brokers.dramatiq.unsent import UnsentMessage
from echomq_tasks.config import Config
from echomq_tasks.connection import Connection
from echomq_tasks.current import enter
from echomq_tasks.errors import ConfigError, EchoMQError, InvalidArgument, JobCancelled, ServerError, ServerUnavailable
from echomq_tasks.events import Announcing
from echomq_tasks.forks import after_fork
from echomq_tasks.keyspace import check_queue
from echomq_tasks.middleware import Lifecycle, Retries
from echomq_tasks.queue import Admission, Enqueued, NewJob, Queue, Verdict, check_job

#: Our own options, for a misspelled one to be told.
_OPTIONS = ("connection", "dead_max", "dead_ttl", "lease", "max_stalled", "middleware", "trim_messages")
#: A batch that has gathered for more than so many seconds asks once more which of its members are still to run.
_GATHERED_LONG = 1.0
_ENQUEUED = "Enqueued message %r on queue %r as job %s."
#: Milliseconds before a retry whose delay is no delay: Dramatiq's default backoff.
_RETRY_DELAY = 15_000


def _positive(value: Any, what: str, kind: str) -> float:
    numbers = (int,) if kind == "a whole number" else (int, float)
    if isinstance(value, bool) or not isinstance(value, numbers) or not 0.001 <= value <= 10**10:
        raise ConfigError(f"{what} is {kind} above 0, or None for no bound, not {value!r}")
    return float(value)


class EchoMQBroker(Broker):
    """A Dramatiq broker on Valkey: leases, fencing, server-side delays and priorities, atomic retries.

    Nothing connects until a message is sent or consumed.

    Examples:

      >>> broker = EchoMQBroker("valkey://127.0.0.1:6379/0")

    Parameters:
      url: where the server is, see :func:`echomq_tasks.connect`; ``EMQ_URL``, else the embedded server, by default.
      middleware: all middleware, as for :class:`dramatiq.Broker`; Dramatiq's default with our
        :class:`~echomq_tasks.middleware.Retries` by default.
      connection: a connection that you made; it is yours to close.
      lease: seconds after which a job of a worker that died runs again. Renewed three times a lease.
      max_stalled: a job whose worker died this often goes to dead. More than one, because the jobs that ran beside a
        killer are counted with it.
      dead_ttl: seconds after which a dead message is dropped, by whichever worker looks; None keeps it for ever.
      dead_max: how many dead messages a queue keeps; the oldest are dropped. None keeps all.
      trim_messages: leave out of a payload what a worker fills in: the message id of what our ``actor`` sends is then
        its JOB id. False gives every message a random id of its own and sends all of it, as Dramatiq does.
      **options: connection options, see :func:`echomq_tasks.connect`.

    Raises:
      ConfigError: when the URL or an option is wrong.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        middleware: list[Middleware] | None = None,
        connection: Connection | None = None,
        lease: float = 30.0,
        max_stalled: int = 5,
        dead_ttl: float | None = 7 * 86_400.0,
        dead_max: int | None = 100_000,
        trim_messages: bool = True,
        **options: Any,
    ) -> None:
        if connection is not None and (url is not None or options):
            raise ConfigError("give connection= or a URL and options, not both")
        if isinstance(lease, bool) or not isinstance(lease, (int, float)) or not 0.1 <= lease <= 86_400:
            raise ConfigError(f"lease is a number of seconds from 0.1 to 86400, not {lease!r}")
        if isinstance(max_stalled, bool) or not isinstance(max_stalled, int) or max_stalled < 1:
            raise ConfigError(f"max_stalled is a whole number from 1 up, not {max_stalled!r}")
        if not isinstance(trim_messages, bool):
            raise ConfigError(f"trim_messages is True or False, not {trim_messages!r}")
        self._config = connection.config if connection is not None else Config.parse(url, also=_OPTIONS, **options)
        self._given = connection
        self._connection = connection
        self.lease = float(lease)
        self.max_stalled = max_stalled
        self.trim_messages = trim_messages
        self.dead_ttl = None if dead_ttl is None else _positive(dead_ttl, "dead_ttl", "a number of seconds")
        self.dead_max = None if dead_max is None else int(_positive(dead_max, "dead_max", "a whole number"))
        self.leases = LeaseKeeper(self.lease, self._lease_lost)
        #: What its queues announce on the Bus; :class:`~echomq_tasks.middleware.Lifecycle` chooses.
        self.announcing = Announcing()
        self._after_fork()
        after_fork(self._after_fork)
        self._hooks = Hooks(self)
        # Of a message whose function is a task: what they throw into their thread would hit another's. Our worker
        # interrupts the task.
        self._task_hooks = Hooks(self, without=THREAD_HOOKS)
        # What starts a timer, which a worker may have started before.
        self._boot_hooks = Hooks(self, without=(stock.TimeLimit.after_process_boot,))
        #: Whether the middleware is what it has by default, to which our ``actor`` adds Lifecycle.
        self._default_middleware = middleware is None
        if middleware is None:
            middleware = [(Retries if m is stock.Retries else m)() for m in stock.default_middleware]
        super().__init__(middleware=middleware)
        self.signalling = Signalling(self.actors)
        self._bus = BrokerBus(self)
        self.queues: set[str] = set()
        self.actor_options |= ACTOR_OPTIONS
        #: How the messages of batch actors are gathered, by the actor's name.
        self.batches: dict[str, BatchRule] = {}

    def _after_fork(self) -> None:
        # Locks may have been held by threads that the child does not have; the connection itself is safe to go on with.
        self._lock = threading.Lock()
        self._queues: dict[str, Queue] = {}
        self._settlers: dict[Queue, Settler] = {}
        # Of each worker, by the queue that feeds its threads. A stopped worker's stay, closed: its middleware consumes
        # every queue that is declared from then on.
        self._slots: weakref.WeakKeyDictionary[Any, Slots] = weakref.WeakKeyDictionary()
        #: The actors that repeat whose registration this process has made, by name.
        self.repeating: dict[str, Actor[..., Any]] = {}
        # The delivery whose run this thread's hooks are being told of.
        self._reporting = threading.local()

    # -- what is underneath -------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        """The connection, opened on first use.

        Raises:
          ServerError: when the server cannot serve us.
        """
        if self._connection is None:
            with self._lock:
                if self._connection is None:
                    self._connection = Connection(self._config)
        return self._connection

    @property
    def address(self) -> str:
        """Where its server is, without user and password: for messages to people. No I/O."""
        return self._config.address

    @property
    def client(self) -> redis.Redis | RedisCluster:
        """The redis-py client of the connection."""
        return self.connection.client

    @property
    def bus(self) -> BrokerBus:
        """The bus on this broker's connection; a worker runs the functions that are registered with it. No I/O."""
        return self._bus

    def queue(self, queue_name: str) -> Queue:
        """The :class:`~echomq_tasks.queue.Queue` of that name on this broker's connection."""
        queue = self._queues.get(queue_name)
        if queue is None:
            made = Queue(queue_name, self.connection, announcing=self.announcing)
            queue = self._queues.setdefault(queue_name, made)
        return queue

    def settler(self, queue: Queue) -> Settler:
        """The one settler of ``queue`` in this process."""
        settler = self._settlers.get(queue)
        if settler is None:
            settler = self._settlers.setdefault(queue, Settler(queue))
        return settler

    def close(self) -> None:
        """Stop renewing leases and close the connection, unless it was given. A closed broker opens again on use.

        Leases of jobs that still run are renewed until they end: stop the worker first to have none.
        """
        self._bus.close()
        if self.leases.holding:
            self.logger.warning("Closed while jobs run (%d): their leases are kept.", self.leases.holding)
        else:
            self.leases.stop()
        with self._lock:
            connection, self._connection = self._connection, self._given
            self._queues.clear()
            self._settlers.clear()
        if connection is not None and connection is not self._given:
            connection.close()

    def add_middleware(self, middleware: Middleware, **where: Any) -> None:
        """Add a middleware, as :meth:`dramatiq.Broker.add_middleware`; a second Lifecycle replaces the first one."""
        if isinstance(middleware, Lifecycle):
            # Our actor may have added one by default, and two would announce each worker twice.
            self.middleware = [each for each in self.middleware if not isinstance(each, Lifecycle)]
        super().add_middleware(middleware, **where)
        if isinstance(middleware, Lifecycle):
            middleware.configure(self.announcing)

    def announce_by_default(self) -> None:
        """Add :class:`~echomq_tasks.middleware.Lifecycle` to a broker whose middleware nobody has chosen, once."""
        if self._default_middleware:
            self._default_middleware = False
            if not any(isinstance(each, Lifecycle) for each in self.middleware):
                self.add_middleware(Lifecycle())

    def _lease_lost(self, delivery: Delivery) -> None:
        self.signalling.lease_lost(delivery)
        try:
            about = delivery.about() | {"attempt": str(delivery.job.token)}
            delivery.queue.publish_event("lease_lost", delivery.job_id, about=about)
        except EchoMQError as error:
            self.logger.warning("That job %s lost its lease is not announced: %s", delivery.job_id, error)

    # -- declaring ----------------------------------------------------------------------------------------------

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; no I/O, and nothing happens when it is declared already.

        Raises:
          InvalidName: when the wire does not allow the name.
        """
        if queue_name not in self.queues:
            check_queue(queue_name)
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            # No delay queue is declared: delayed messages wait in the server's schedule, not in a worker's memory.
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """The names of all queues declared so far."""
        return self.queues.copy()

    # -- sending ------------------------------------------------------------------------------------------------

    def enqueue(self, message: Message[Any], *, delay: float | None = None) -> Message[Any]:
        """Enqueue a message.

        The message's ``priority`` option, else its actor's priority, orders it on the server: lower runs first. Its
        ``group`` option, else its actor's, puts it into a lane.

        Parameters:
          message: the message; a copy is sent when it is one that a worker is running, or that was sent before.
          delay: milliseconds before it may run.

        Returns:
          The message that was sent; its ``job_id`` attribute is the JOB id.

        Raises:
          InvalidArgument, InvalidName: when the delay, priority, group or queue name is not allowed.
          ConnectionClosed: when the server did not answer.
          ServerOutOfMemory: when the server's memory is full; nothing was sent.
        """
        if isinstance(message, Delivery) and message.failure is not None:
            if message.final:
                message.fail()
                return message.copy()
            return self._intend_retry(message, delay)
        check_delay(delay)
        message, job = self._prepare(message, delay)
        reported: Delivery | None = getattr(self._reporting, "delivery", None)
        with transport():
            queue = self.queue(message.queue_name)
            if reported is None:
                (enqueued,) = self._admit(queue, (message,), (job,))
            else:
                enqueued = self._follow_up(reported, queue, job)
        self._sent(message, enqueued, delay)
        return message

    def _follow_up(self, reported: Delivery, queue: Queue, job: NewJob) -> Enqueued:
        """Send what follows from a run that is being reported: the next step of a pipeline, a callback.

        A hook that raised here would be logged, and the job acknowledged: what follows would be lost. So what cannot be
        sent now is sent before the acknowledgement, which is repeated until that succeeds.
        """
        job = dataclasses.replace(job, id=queue.new_id())
        try:
            (enqueued,) = queue.enqueue_many((job,))
        except (ServerError, ConfigError) as error:
            self.logger.warning("What follows job %s is sent before it is acknowledged: %s", reported.job_id, error)
            reported.owe(queue, job)
            later = job.delay is not None or job.at is not None
            enqueued = Enqueued(str(job.id), Admission.SCHEDULED if later else Admission.ENQUEUED)
        return enqueued

    def enqueue_many(self, messages: Iterable[Message[Any]], *, delay: float | None = None) -> list[Message[Any]]:
        """Enqueue many messages in few round trips; hooks run for each, as with :meth:`enqueue`.

        Parameters:
          messages: the messages, of any queues.
          delay: milliseconds before they may run.

        Returns:
          The messages that were sent, in order.

        Raises:
          InvalidArgument, InvalidName: when one of them is not allowed; none was sent.
          ConnectionClosed, ServerOutOfMemory: when the server could not take them all; ``admitted`` of the error, or of
            its ``__cause__``, lists the JOB ids that are in from the queue that failed.
        """
        check_delay(delay)
        seen: set[int] = set()
        prepared: list[tuple[Message[Any], NewJob]] = []
        for message in messages:
            # One that is there twice is two jobs, and each message knows its own.
            prepared.append(self._prepare(message.copy() if id(message) in seen else message, delay))
            seen.add(id(message))
        places: dict[str, list[int]] = {}
        for place, (message, _) in enumerate(prepared):
            places.setdefault(message.queue_name, []).append(place)
        if len(places) > 1:
            # A queue checks its jobs before it sends one; here all queues' jobs are checked before the first is sent.
            for _, job in prepared:
                check_job(job)
        for queue_name, mine in places.items():
            with transport():
                messages_here, jobs = zip(*(prepared[place] for place in mine), strict=True)
                answers = self._admit(self.queue(queue_name), messages_here, jobs)
            for place, enqueued in zip(mine, answers, strict=True):
                self._sent(prepared[place][0], enqueued, delay)
        return [message for message, _ in prepared]

    def enqueue_flows(self, flows: Sequence[flow]) -> None:
        """Enqueue flows of messages in few round trips; see :class:`~echomq_tasks.flow`. Hooks run for each message.

        Raises:
          InvalidArgument, InvalidName: before anything is sent.
          ConnectionClosed, ServerOutOfMemory: when the server could not take them all; ``admitted`` of the error, or of
            its ``__cause__``, lists the JOB ids that are in.
        """
        check_messages(flows)
        if not flows:
            return
        for each in flows:
            renew(each)

        def prepare(message: Message[Any]) -> NewJob:
            if message.queue_name != q_name(message.queue_name):
                raise InvalidArgument(f"{message} is of a delay queue: a flow takes messages of actors")
            return self._prepare(message, None)[1]

        trees = [tree_of(each, prepare) for each in flows]
        with transport():
            answers = self.queue(flows[0].parent.queue_name).add_flows(trees)
        for each, added in zip(flows, answers, strict=True):
            for message, job_id in added_to(each, added):
                self._sent(message, Enqueued(job_id, Admission.ENQUEUED), None)

    def _admit(self, queue: Queue, messages: Sequence[Message[Any]], jobs: Sequence[NewJob]) -> list[Enqueued]:
        try:
            return queue.enqueue_many(jobs)
        except ServerError as error:
            UnsentMessage.keep_ids(messages, error.offered)
            raise

    def _prepare(self, message: Message[Any], delay: float | None) -> tuple[Message[Any], NewJob]:
        if isinstance(message, MessageProxy) or "job_id" in vars(message):
            # Who sent it before has it, and goes on knowing which job that was.
            message = message.copy()
        if message.queue_name != (canonical := q_name(message.queue_name)):
            message = message.copy(queue_name=canonical)
        if message.queue_name not in self.queues:
            # Declared ones have been checked.
            check_queue(message.queue_name)
        if not self.trim_messages:
            # What has an id of its own is sent whole.
            _ = message.message_id
        self.emit_before("enqueue", message, delay)
        settle_options(message, self.actors)
        message, wait, at = take_eta(message, delay)
        return message, new_job(message, wait, at, self.actors.get(message.actor_name))

    def _sent(self, message: Message[Any], enqueued: Enqueued, delay: float | None) -> None:
        SentMessage.of(message, enqueued.id, self, duplicate=enqueued.duplicate)
        if self.logger.isEnabledFor(logging.DEBUG):
            what = "Message %r on queue %r is a duplicate of job %s." if enqueued.duplicate else _ENQUEUED
            self.logger.debug(what, message.message_id, message.queue_name, enqueued.id)
        self.signalling.sent(message, enqueued, delay)
        self.emit_after("enqueue", message, delay)

    def _intend_retry(self, delivery: Delivery, delay: float | None) -> Message[Any]:
        """Note a retry: the acknowledgement that follows carries it out, or raises and is repeated."""
        try:
            check_delay(delay)
        except InvalidArgument as error:
            # Raised from here, Dramatiq's own Retries would log it and the failed message would be acknowledged.
            self.logger.error("%s; message %r is retried in %d ms.", error, delivery.message_id, _RETRY_DELAY)
            delay = _RETRY_DELAY
        # The intent stands before any hook runs: a hook that fails must not turn the retry into an acknowledgement.
        intent = delivery.intent = RetryIntent(max(delay or 0, 0) / 1000)
        message: Message[Any] = delivery.copy()
        if isinstance(text := message.options.get("traceback"), str):
            # It travels in the payload, past the server's memory limit: a settlement is never refused.
            message.options["traceback"] = text[-ERROR_TAIL:]
        # Twice, so that the retry is counted also when a hook fails, and what a hook adds is kept when none does.
        known = delivery.job_id if self.trim_messages else None
        intent.payload = encode(message, known)
        self.emit_before("enqueue", message, delay)
        intent.payload = encode(message, known)
        SentMessage.of(message, delivery.job_id, self)
        self.emit_after("enqueue", message, delay)
        return message

    # -- consuming ----------------------------------------------------------------------------------------------

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> EchoMQConsumer:
        """Make a consumer.

        Parameters:
          queue_name: a declared queue.
          prefetch: how many jobs it may hold at once. Under a worker, its threads bound all its consumers together.
          timeout: milliseconds that one ``next()`` waits for a message before it answers None.

        Raises:
          QueueNotFound: when the queue was never declared.
          ConnectionClosed: when the server did not answer.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        # A worker's consumer threads carry the work queue they fill, which tells whose they are.
        work_queue = getattr(threading.current_thread(), "work_queue", None)
        slots = None if work_queue is None else self._slots.get(work_queue)
        with transport():
            return EchoMQConsumer(self, self.queue(queue_name), prefetch, timeout, slots)

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the ``before_`` hooks, those of a batch for each member.

        Also learns how many threads a booting worker has, when it shuts down, and which actors take batches, and sees
        to it that time limits hold where nobody has emitted ``process_boot``.
        """
        if args and isinstance(args[0], Batch):
            self._before_batch(signal, args[0])
            return
        if signal == "worker_boot":
            self._refuse_to_boot_in_vain()
            worker: Worker = args[0]
            # Dramatiq's; our own counts its places itself.
            if (work_queue := getattr(worker, "work_queue", None)) is not None:
                self._slots[work_queue] = Slots(worker.worker_threads)
            start_timers(self)
            listening.start()
        elif signal == "worker_shutdown":
            listening.ask()
            self.signalling.worker(signals.worker_stopping, args[0])
            work_queue = getattr(args[0], "work_queue", None)
            if work_queue is not None and (slots := self._slots.get(work_queue)) is not None:
                # Its consumers go on until the last job ends: what they claimed meanwhile, no thread would start.
                slots.close()
        elif signal == "declare_actor":
            check_options(args[0])
            # Before the actor is there: from then on a worker may run its messages.
            self._declare_batch(args[0])
        elif signal == "process_message" and isinstance(args[0], Delivery):
            self._start(args[0])
            self._hooks_of(args[0]).before(signal, args[0])
            return
        self._hooks.before(signal, *args, **kwargs)

    def has_hook(self, hook: str) -> bool:
        """Whether any middleware does something in this hook, as in ``after_ack``."""
        return bool(self._hooks.who(hook))

    def hooking(self, hook: str) -> tuple[Middleware, ...]:
        """The middleware that is asked in this hook for a message whose function is a task."""
        return self._task_hooks.who(hook)

    def _hooks_of(self, delivery: Delivery) -> Hooks:
        return self._task_hooks if delivery.in_task else self._hooks

    def _start(self, delivery: Delivery) -> None:
        enter(delivery.see)
        delivery.started_at = time.monotonic()
        delivery.on_progress = self.signalling.progressed
        self.signalling.started(delivery)

    def _declare_batch(self, actor: Actor[..., Any]) -> None:
        rule = batch_rule(actor.options)
        if rule is not None:
            self.batches[actor.actor_name] = rule
        else:
            self.batches.pop(actor.actor_name, None)

    def _before_batch(self, signal: str, batch: Batch) -> None:
        before = self._hooks.before
        if signal == "process_message":
            if time.monotonic() - batch.claimed_at > _GATHERED_LONG:
                self.leases.ask(list(batch.members))

            def start(member: Member) -> None:
                self._start(member)
                try:
                    self._hooks_of(member).before(signal, member)
                finally:
                    # The function runs all of them: none is the current one.
                    enter(None)

            batch.start(start)
            return
        # An acknowledgement that is repeated is not told again of what was settled before.
        for member in batch.unsettled():
            before("nack" if member.failed else "ack", member)

    def _refuse_to_boot_in_vain(self) -> None:
        """Fail now on what waiting cannot mend; a server that is only away is waited for by the consumers."""
        try:
            _ = self.connection
        except ServerUnavailable:
            pass
        except (ServerError, ConfigError) as error:
            raise ConnectionFailed(error) from error

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the ``after_`` hooks; for a processed message, tells the hooks' own calls of its failure.

        Those of a batch are called for each member, with the member's own result or exception.
        """
        if args and isinstance(args[0], Batch):
            self._after_batch(signal, args[0], kwargs.get("result"), kwargs.get("exception"))
        elif signal == "process_boot":
            self._boot_hooks.after(signal, *args, **kwargs)
            start_timers(self)
        elif signal != "process_message" or not isinstance(args[0], Delivery):
            if signal == "skip_message":
                enter(None)
            self._hooks.after(signal, *args, **kwargs)
            if signal in ("worker_boot", "worker_shutdown"):
                told = signals.worker_started if signal == "worker_boot" else signals.worker_stopped
                self.signalling.worker(told, args[0])
            if signal == "worker_shutdown":
                listening.stop()
        else:
            self._report(*args, **kwargs)

    def _report(self, delivery: Delivery, *, ask: bool = True, **kwargs: Any) -> None:
        """Tell the hooks how a run ended; without ``ask``, the server is not asked whether it still counts."""
        delivery.accuse()
        if delivery.started_at is not None:
            delivery.duration = time.monotonic() - delivery.started_at
        exception: BaseException | None = kwargs.get("exception")
        fault = None if exception is not None else delivery.keep_result(kwargs.get("result"))
        if fault is not None:
            self.logger.error("Message %s failed: %s", delivery, fault)
            delivery.stuff_exception(fault)
            delivery.fail()
            kwargs, exception = {"exception": fault}, fault
        # Another run would return the same.
        delivery.final = fault is not None or isinstance(exception, JobCancelled)
        # Only within these hooks is enqueueing the delivery a retry: an actor may send its own message again.
        delivery.failure = exception
        self._reporting.delivery = delivery
        try:
            if not (self.leases.still_held(delivery) if ask else not delivery.lost):
                emit_unreported(self, delivery, **kwargs)
            elif delivery.final and exception is not None:
                emit_final(self, delivery, exception=exception)
            else:
                self._hooks_of(delivery).after("process_message", delivery, **kwargs)
        finally:
            delivery.failure = self._reporting.delivery = None
            enter(None)

    def _after_batch(self, signal: str, batch: Batch, result: Any, exception: BaseException | None) -> None:
        after = self._hooks.after
        if signal != "process_message":
            for member in batch.members:
                if not member.given_up:
                    after("nack" if member.failed else "ack", member)
            return
        ask = True

        def tell(member: Member) -> None:
            nonlocal ask
            enter(None if member.skipped else member.see)
            if member.skipped:
                after("skip_message", member)
            elif member.error is not None:
                self._report(member, ask=ask, exception=member.error)
            else:
                self._report(member, ask=ask, result=member.result)
            # A server that did not answer for one is not waited for again for each of the others.
            ask = ask and (member.lost or lease_end(0) < member.held_until)

        batch.conclude(result, exception)
        batch.tell(tell)

    # -- tending ------------------------------------------------------------------------------------------------

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue: waiting, delayed, dead, flow parents, and those that workers hold.

        A flow parent in another queue is told that its children here failed.
        """
        with transport():
            queue = self.queue(queue_name)
            # The dead last: what is dropped before may bury its parent.
            queue.drain("pending", "lanes", "schedule", "active", "awaiting", "dead")
            while queue.deliver():
                pass

    def flush_all(self) -> None:
        """Drop all messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)
        for queue_name in self.queues:
            # Parents that were told of children in other queues.
            self.flush(queue_name)

    def reprocess(self, queue_name: str, job_id: str) -> bool:
        """Let a dead message run again, with all of its retries; False when it is gone.

        Parameters:
          queue_name: its queue.
          job_id: its JOB id, as :meth:`echomq_tasks.queue.Queue.browse` lists the dead.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
          WrongState: when the job is not dead.
        """
        with transport():
            queue = self.queue(queue_name)
            info = queue.get(job_id)
            payload = None if info is None else fresh_payload(info.payload)
            return queue.reprocess(job_id, payload=payload) is Verdict.OK

    def retry_dead(
        self,
        queue_name: str,
        *,
        older_than: float | None = None,
        actor: str | None = None,
        error: str | None = None,
        limit: int | None = None,
    ) -> int:
        """Let dead messages run again, with all of their retries; answers how many.

        Parameters:
          queue_name: their queue.
          older_than: only those that have been dead for more than so many seconds.
          actor: only this actor's.
          error: only those whose error contains this text.
          limit: at most so many, newest first.

        Raises:
          InvalidArgument: when a condition is malformed.
        """
        with transport():
            return self.queue(queue_name).retry_dead(
                older_than=older_than,
                actor=actor,
                error=error,
                limit=limit,
                payload=lambda job: fresh_payload(job.payload),
            )

    def join(self, queue_name: str, *, interval: int = 50, timeout: int | None = None) -> None:
        """Wait until all messages of a queue are processed, delayed ones and retries included.

        Parameters:
          queue_name: the queue.
          interval: milliseconds between two looks.
          timeout: the most milliseconds to wait.

        Raises:
          QueueNotFound: when the queue was never declared.
          QueueJoinTimeout: when the timeout ends first.
        """
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        with transport():
            # One script counts all states at one instant, or a job on its way between two would be missed.
            while self.queue(queue_name).counts().unfinished:
                if deadline is not None and time.monotonic() >= deadline:
                    raise QueueJoinTimeout(queue_name)
                time.sleep(interval / 1000)

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """How many messages of a queue are ready, delayed and dead."""
        with transport():
            counts = self.queue(queue_name).counts()
        return counts.waiting, counts.scheduled, counts.dead
