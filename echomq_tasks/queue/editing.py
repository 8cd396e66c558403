"""The verbs on one job: its payload, progress and log, its removal, and its second life."""

from __future__ import annotations

from echomq_tasks.errors import InvalidArgument
from echomq_tasks.identity import check_id
from echomq_tasks.queue.arguments import EXACT, payload_bytes, shown, whole
from echomq_tasks.queue.handle import Handle
from echomq_tasks.queue.model import Cancellation, Verdict
from echomq_tasks.queue.replies import text


class Editing(Handle):
    """What can be done to one job by its id."""

    def update_data(self, job_id: str, payload: bytes | str) -> Verdict:
        """Replace a job's payload: OK or GONE. A worker that runs it already has the old one.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        return self._verb("job_update", job_id, payload_bytes(payload))

    def update_progress(self, job_id: str, progress: float | str) -> Verdict:
        """Note how far a job is, as a number or a text of yours, and publish it on the queue's events: OK or GONE.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        if isinstance(progress, bool) or not isinstance(progress, (int, float, str)):
            raise InvalidArgument(f"a progress is a number or a text, not {shown(progress)}")
        if isinstance(progress, int):
            progress = whole(progress, "a progress", -EXACT, EXACT)
        note = payload_bytes(str(progress))
        return Verdict(text(self.run_once("job_progress", check_id(job_id, "JOB"), note)))

    def add_log(self, job_id: str, line: str, *, keep: int | None = None) -> int | None:
        """Add a line to a job's log; answers how many lines there are, None when the job is gone.

        Parameters:
          job_id: the job.
          line: the text.
          keep: keep only so many last lines; all by default.

        Raises:
          InvalidId, InvalidArgument: before a byte is sent.
        """
        kept = 0 if keep is None else whole(keep, "keep", 1)
        args = (check_id(job_id, "JOB"), payload_bytes(line), kept)
        lines = int(self.scripts.call("job_log", self.base, args, repeat=False))
        return None if lines < 0 else lines

    def logs(self, job_id: str, *, count: int = 1000) -> list[str]:
        """The last lines of a job's log, oldest first."""
        args = (check_id(job_id, "JOB"), whole(count, "count", 1))
        return [line.decode(errors="replace") for line in self.scripts.call("job_logs", self.base, args)]

    def remove(self, job_id: str) -> Verdict:
        """Remove a job that waits, is scheduled or dead, with all that is kept of it: OK or GONE.

        Raises:
          Held: when a worker holds it.
          InvalidId: when ``job_id`` is not a JOB id.
        """
        verdict = self._verb("job_remove", job_id)
        if verdict is Verdict.OK:
            self.send_signal("removed", job_id)
        return verdict

    def cancel(self, job_id: str) -> Cancellation:
        """Cancel a job: one that waits is removed; one that runs is asked to stop, and will not run again.

        The code that runs sees it by :func:`echomq_tasks.current_job`. A flow parent that waits for it learns that it
        failed.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        cancellation = Cancellation(text(self.run("job_cancel", check_id(job_id, "JOB"), repeat=False)))
        if cancellation is Cancellation.REMOVED:
            self.send_signal("cancelled", job_id)
        return cancellation

    def is_cancelled(self, job_id: str) -> bool:
        """Whether a job that runs was asked to stop.

        Raises:
          InvalidId: when ``job_id`` is not a JOB id.
        """
        return bool(self.run("job_stopping", check_id(job_id, "JOB")))

    def reprocess(self, job_id: str, *, payload: bytes | str | None = None) -> Verdict:
        """Let a dead job run again, with its failures forgotten: OK or GONE.

        An actor's message counts its retries itself: use :meth:`EchoMQBroker.reprocess` for those.

        Parameters:
          job_id: the dead job.
          payload: replaces the row's payload when given.

        Raises:
          WrongState: when it is not dead.
          InvalidId: when ``job_id`` is not a JOB id.
        """
        kept, data = (b"1", b"") if payload is None else (b"0", payload_bytes(payload))
        verdict = Verdict(text(self.run("job_reprocess", check_id(job_id, "JOB"), kept, data, repeat=False)))
        if verdict is Verdict.OK:
            self.send_signal("enqueued", job_id)
        return verdict

    def _verb(self, script: str, job_id: str, *args: bytes) -> Verdict:
        return Verdict(text(self.run(script, check_id(job_id, "JOB"), *args)))
