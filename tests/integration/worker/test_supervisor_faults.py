"""``echomq worker`` when its processes cannot do what they are there for: a pump that ends, a server that is away."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from support.servers import ServerProcess
from support.supervised import APP, Supervised

from echomq_tasks.connection import connect
from echomq_tasks.queue import Queue

#: The first process to boot has its pump ended by a hook.
EXITS = """
import sys

import dramatiq
from dramatiq import Middleware


class Exits(Middleware):
    def after_consumer_thread_boot(self, broker, thread):
        try:
            (HERE / "exited").touch(exist_ok=False)
        except FileExistsError:
            return
        sys.exit(3)


dramatiq.get_broker().add_middleware(Exits())
"""


def test_a_process_whose_pump_a_hook_has_ended_is_replaced(command: Supervised) -> None:
    command.write("app.py", APP + EXITS)
    (pid,) = command.boot("app", "-p", "1", "-t", "1")
    command.said("CRITICAL.*SystemExit in a hook ends the worker")
    command.said(rf"Process 1 \(PID {pid}\) .* takes its place")
    command.send("note", "one")
    assert int(command.noted("one")[2]) != pid
    assert command.stop() == 0, command.log


def test_the_exit_code_says_that_the_server_was_not_told_of_an_end(
    own_server: ServerProcess, queue_name: str, tmp_path: Path
) -> None:
    with connect(own_server.url) as connection:
        command = Supervised(tmp_path, own_server.url, Queue(queue_name, connection))
        try:
            command.boot("app", "-p", "1", "-t", "1", "--grace", "0.2")
            command.send("hold", "one")
            command.noted("one", "start")
            own_server.kill()
            command.open("one")
            command.noted("one", "end")
            command.process.send_signal(signal.SIGTERM)
            assert command.wait() == 1, command.log
            command.said("the server was not told how 1 job ended")
        finally:
            command.close()


def test_what_runs_when_the_server_is_away_is_not_taken_for_finished(
    own_server: ServerProcess, queue_name: str, tmp_path: Path
) -> None:
    with connect(own_server.url) as connection:
        command = Supervised(tmp_path, own_server.url, Queue(queue_name, connection))
        try:
            (pid,) = command.boot("app", "-p", "1", "-t", "1", "--grace", "0.2")
            command.send("hold", "one")
            command.noted("one", "start")
            # It answers nothing, so the pump is in the middle of a round trip.
            own_server.pause(60_000)
            command.process.send_signal(signal.SIGTERM)
            assert command.wait() == 1, command.log
            assert not os.path.exists(f"/proc/{pid}")
        finally:
            command.close()
            own_server.kill()
