"""Lease renewal: one timer for everything a process holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from echomq_tasks.brokers.dramatiq.delivery import Delivery, lease_end
from echomq_tasks.errors import EchoMQError
from echomq_tasks.forks import after_fork
from echomq_tasks.queue import Job, Queue, extend_all

_log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews the leases of all jobs that a process holds, from a thread of its own, three times a lease.

    The thread starts with the first job. It needs the interpreter for a moment a beat only, so a job that computes
    without a pause keeps its lease; one that runs C code which holds the interpreter for a whole lease does not.

    Parameters:
      lease: seconds a lease lasts.
      lost: told of each job whose lease is found lost.
    """

    def __init__(self, lease: float, lost: Callable[[Delivery], None]) -> None:
        self._lease = lease
        self._lost = lost
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        # A child of a fork holds none of its parent's jobs, and its parent's thread does not run in it.
        # Keyed by object: one process may hold a lost claim of a job and the claim that took it over.
        self._held: dict[int, Delivery] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        # The monotonic second at which renewals began to fail, None while they succeed.
        self._failing_since: float | None = None

    def hold(self, deliveries: list[Delivery]) -> None:
        """Renew these from now on."""
        # Plain dict operations: the thread works on a copy, so the path of every job needs no lock.
        for delivery in deliveries:
            self._held[id(delivery)] = delivery
        if self._thread is None or not self._thread.is_alive():
            self._start()

    @property
    def holding(self) -> int:
        """How many jobs are renewed."""
        return len(self._held)

    def drop(self, delivery: Delivery) -> None:
        """Stop renewing this one."""
        self._held.pop(id(delivery), None)

    def _start(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._stop = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._stop,), name="echomq-leases", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread; what is still held runs out on the server."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._stop.set()
            self._held.clear()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=self._lease)

    def still_held(self, delivery: Delivery) -> bool:
        """Tell whether a job is still ours, asking the server only when its lease may have run out unnoticed."""
        if not delivery.lost and lease_end(0) >= delivery.held_until:
            try:
                self._renew([delivery])
            except EchoMQError:
                # Nobody knows. The settlement shows its token, so the server will decide.
                return True
        return not delivery.lost

    def ask(self, deliveries: list[Delivery]) -> None:
        """Renew these now, to learn which are lost or were asked to stop; without an answer all stays as it is."""
        try:
            self._renew(deliveries)
        except EchoMQError as error:
            _log.debug("%d leases not renewed: %s", len(deliveries), error)

    def _run(self, stop: threading.Event) -> None:
        beat = self._lease / 3
        pause = beat
        while not stop.wait(pause):
            held = list(self._held.copy().values())
            renewed_until = lease_end(self._lease)
            try:
                self._renew(held)
                self._succeeded(held)
                pause = beat
            except EchoMQError as error:
                # In a cluster, only those on a node that is away.
                left_out = [each for each in held if each.held_until < renewed_until and not each.lost]
                self._failed(left_out, len(held), error)
                pause = min(beat / 4, 1.0)
            except Exception:
                pause = beat
                _log.exception("lease renewal failed; trying again in %.1f s", beat)

    def _failed(self, left_out: list[Delivery], held: int, error: EchoMQError) -> None:
        if self._failing_since is not None:
            _log.debug("The leases of %d of %d jobs were not renewed again: %s", len(left_out), held, error)
            return
        self._failing_since = time.monotonic()
        left = min((each.held_until for each in left_out), default=0.0) - lease_end(0)
        _log.warning(
            "The leases of %d of %d jobs that this process holds, running or still to be settled, are not renewed, "
            "which is tried again until it succeeds; in %.0f s other workers may run these jobs: %s",
            len(left_out),
            held,
            max(left, 0.0),
            error,
        )

    def _succeeded(self, held: list[Delivery]) -> None:
        since, self._failing_since = self._failing_since, None
        if since is not None and held:
            # With nothing held, nobody was asked: all was settled meanwhile.
            _log.info("Leases are renewed again, after %.1f s.", time.monotonic() - since)

    def _renew(self, deliveries: list[Delivery]) -> None:
        jobs: dict[Queue, list[Job]] = {}
        for delivery in deliveries:
            jobs.setdefault(delivery.queue, []).append(delivery.job)
        if not jobs:
            return
        held_until = lease_end(self._lease)
        renewal = extend_all(jobs, lease=self._lease)
        lost, unknown, cancelled = (
            {id(job) for job in some} for some in (renewal.lost, renewal.unknown, renewal.cancelled)
        )
        gone: list[Delivery] = []
        for delivery in deliveries:
            if id(delivery.job) in unknown:
                continue
            if id(delivery.job) in cancelled:
                delivery.current.tell_cancelled()
            if id(delivery.job) not in lost:
                delivery.held_until = held_until
            elif not delivery.settling and self._held.pop(id(delivery), None) is not None:
                delivery.lost = True
                _log.warning(
                    "lease lost: job %s (actor %s) was held too long without renewal and may run elsewhere; what this "
                    "run still reports is refused",
                    delivery.job_id,
                    delivery.actor_name,
                )
                gone.append(delivery)
        if gone:
            # By a thread of its own: what is still held must not wait for what is told of the others.
            threading.Thread(target=self._tell, args=(gone,), name="echomq-lost", daemon=True).start()
        if renewal.error is not None:
            raise renewal.error

    def _tell(self, gone: list[Delivery]) -> None:
        for delivery in gone:
            try:
                self._lost(delivery)
            except Exception:
                _log.exception("that job %s lost its lease is told to nobody", delivery.job_id)
