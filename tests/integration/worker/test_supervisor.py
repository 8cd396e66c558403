"""``echomq worker``: its processes, what happens when one of them dies, and how all of them end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from support.eventually import eventually
from support.servers import free_port
from support.supervised import PATIENCE, Supervised, is_there

from echomq_tasks.queue import Queue


def untouched(queue: Queue) -> list[tuple[int, int]]:
    """Failures and stalls of each job that waits."""
    return [(info.failures, info.stalled) for info in queue.get_many(queue.browse()) if info is not None]


def holds_nothing(command: Supervised, pids: list[int]) -> None:
    """The main process has one thread, and no socket but its end of the line to each process, which no other has."""
    main = Path(f"/proc/{command.process.pid}")
    assert len(list((main / "task").iterdir())) == 1
    own = sockets(command.process.pid)
    assert len(own) == len(pids)
    for pid in pids:
        assert not own & sockets(pid)


def sockets(pid: int) -> set[str]:
    """The sockets that a process holds."""
    links = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            links.add(os.readlink(each))
    return {link for link in links if link.startswith("socket:")}


@pytest.mark.parametrize("how", [[], ["--use-spawn"]])
def test_a_killed_process_is_replaced_while_the_others_go_on(command: Supervised, how: list[str]) -> None:
    pids = command.boot("app", "-p", "2", "-t", "1", *how)
    line = command.said("works on.*")[0]
    assert f"works on the queue {command.queue.name} at valkey://127.0.0.1:" in line
    assert "2 processes" in line
    assert "1 thread each" in line
    command.send("hold", "one")
    holder = int(command.noted("one", "start")[2])
    assert holder in pids
    (other,) = set(pids) - {holder}
    holds_nothing(command, pids)
    os.kill(other, signal.SIGKILL)
    said = command.said(rf"Process [12] \(PID {other}\) was killed by SIGKILL.*: PID (\d+) takes its place")
    replacement = int(said[1])
    # The thread of the first is taken, so this is run by the new one.
    command.send("note", "two")
    assert int(command.noted("two")[2]) == replacement
    assert not command.notes("one", "end")
    command.process.send_signal(signal.SIGTERM)
    command.said("SIGTERM: stopping")
    command.open("one")
    assert command.wait() == 0, command.log
    assert command.notes("one", "end")
    assert command.log.splitlines()[-1].endswith("Stopped.")
    assert (command.queue.counts().completed, command.queue.counts().unfinished) == (2, 0)


def test_a_signal_to_the_whole_group_counts_once(command: Supervised) -> None:
    command.boot("app", "-p", "2", "-t", "1")
    command.send("hold", "one")
    command.noted("one", "start")
    os.killpg(command.process.pid, signal.SIGTERM)
    # As `timeout` does it, and a wrapper that passes on what the terminal has sent to all.
    command.process.send_signal(signal.SIGTERM)
    command.said("SIGTERM: stopping")
    # The other one has nothing to finish.
    command.said("Worker has been shut down")
    command.open("one")
    assert command.wait() == 0, command.log
    assert command.notes("one", "end")
    assert command.queue.counts().completed == 1


def test_a_second_signal_gives_back_what_runs(command: Supervised) -> None:
    pids = command.boot("app", "-p", "2", "-t", "2")
    for word in ("one", "two", "three"):
        command.send("hold", word)
        command.noted(word, "start")
    command.process.send_signal(signal.SIGINT)
    command.said("SIGINT: stopping")

    def pressed_again() -> bool:
        command.process.send_signal(signal.SIGINT)
        return command.process.poll() is not None or "ending at once" in command.log

    eventually(pressed_again, PATIENCE)
    assert command.wait() == 1, command.log
    assert not any(map(is_there, pids))
    assert not [line for line in command.notes() if line[1] == "end"]
    counts = command.queue.counts()
    assert (counts.pending, counts.active, counts.dead, counts.completed) == (3, 0, 0, 0), command.log
    assert untouched(command.queue) == [(0, 0)] * 3


def test_what_outlasts_the_grace_is_given_back(command: Supervised) -> None:
    command.boot("app", "-p", "1", "-t", "2", "--grace", "0.3")
    command.send("hold", "one")
    command.noted("one", "start")
    assert command.stop() == 1, command.log
    command.said("The grace is over: 1 running job was given back")
    assert command.queue.counts().pending == 1
    assert untouched(command.queue) == [(0, 0)]


def test_a_third_signal_kills_what_does_not_even_end_then(command: Supervised) -> None:
    (pid,) = command.boot("app", "-p", "1", "-t", "1")
    os.kill(pid, signal.SIGSTOP)

    def pressed_again() -> bool:
        command.process.send_signal(signal.SIGTERM)
        return command.process.poll() is not None

    eventually(pressed_again, PATIENCE, "it has ended")
    assert command.wait() == 1, command.log
    assert not is_there(pid)
    # On a machine so busy that a third signal is late, its time was over before.
    command.said("all processes are killed|does not end: it is killed")


def test_processes_whose_main_process_is_killed_finish_what_runs_and_end(command: Supervised) -> None:
    command.write(
        "beside.py", "import time\nfrom app import *\ndef f():\n    write('f', os.getpid())\n    time.sleep(99)\n"
    )
    options = ["app", "-t", "1", "--pid-file", "pid"]
    pids = command.boot(*options, "-p", "2", "-f", "beside:f")
    command.send("hold", "one")
    holder = int(command.noted("one", "start")[2])
    others = [*set(pids) - {holder}, int(command.noted("f")[1])]
    command.process.kill()
    eventually(lambda: not any(map(is_there, others)), PATIENCE, "those that have nothing to finish end")
    assert is_there(holder)
    # Its pid file is taken over, although one of its processes is still there.
    command.wait()
    command.forget()
    command.boot(*options, "-p", "1")
    assert int((command.folder / "pid").read_text()) == command.process.pid
    command.open("one")
    eventually(lambda: not is_there(holder), PATIENCE)
    assert command.notes("one", "end")
    assert command.stop() == 0
    assert command.queue.counts().completed == 1


def test_a_process_that_dies_again_and_again_as_it_boots_is_started_with_pauses(command: Supervised) -> None:
    command.write(
        "dying.py",
        "import os, signal\n"
        "with open('tries', 'a') as file:\n"
        "    file.write('x')\n"
        "if os.path.getsize('tries') < 3:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "from app import *\n",
    )
    command.start("dying", "-p", "1", "-t", "1")
    command.said(r"was killed by SIGKILL.*: started again in")
    command.send("note", "one")
    command.noted("one")
    assert (command.folder / "tries").read_text() == "xxx"
    assert command.log.count("started again in") == 2
    assert command.stop() == 0


def test_a_module_that_cannot_be_imported_ends_all_with_one_message(command: Supervised) -> None:
    command.write("wrong.py", "import app\n1 / 0\n")
    command.start("wrong", "-p", "3", "-t", "1")
    assert command.wait() == 2, command.log
    assert command.log == (
        "Traceback (most recent call last):\n"
        f'  File "{command.folder}/wrong.py", line 2, in <module>\n'
        "    1 / 0\n"
        "    ~~^~~\n"
        "ZeroDivisionError: division by zero\n"
        "echomq: the module 'wrong' cannot be imported\n"
    )


def test_a_server_that_refuses_is_an_exit_code_of_its_own(command: Supervised) -> None:
    command.start("app", "-p", "2", "--url", f"valkey://:wrong@127.0.0.1:{command.port}")
    assert command.wait() == 3, command.log
    (line,) = command.log.splitlines()
    assert line.startswith("echomq: ")
    assert "password" in line


def test_a_process_that_is_still_importing_ends_at_once(command: Supervised) -> None:
    command.write("slow.py", "import time\nopen('begun', 'w').close()\ntime.sleep(60)\nfrom app import *\n")
    command.start("slow", "-p", "1")
    eventually((command.folder / "begun").exists, PATIENCE)
    assert command.stop() == 0, command.log


def test_a_terminal_that_is_closed_ends_all(command: Supervised) -> None:
    primary, secondary = os.openpty()
    try:
        command.boot("app", "-p", "1", "-t", "1", terminal=secondary)
    finally:
        os.close(secondary)
    os.close(primary)
    command.process.send_signal(signal.SIGHUP)
    assert command.wait() == 0


def test_queues_that_no_actor_has_are_told(command: Supervised) -> None:
    command.boot("app", "-p", "1", "-t", "1", "-Q", f"{command.queue.name},unheard_of", "other")
    assert "No actor has the queue 'unheard_of': it is not served." in command.log
    assert "No actor has the queue 'other': it is not served." in command.log
    assert command.stop() == 0


def test_queues_of_which_no_actor_has_any_are_refused(command: Supervised) -> None:
    command.start("app", "-p", "2", "-t", "1", "-Q", "unheard_of", "-Q", "other")
    assert command.wait() == 2
    assert command.log == (
        "echomq: no actor has the queue 'other' nor 'unheard_of': there is nothing to serve. "
        f"The actors have {command.queue.name}\n"
    )


def test_a_broker_without_actors_is_refused_and_one_with_bus_handlers_is_not(command: Supervised) -> None:
    made = "import dramatiq\nfrom echomq_tasks.brokers.dramatiq import EchoMQBroker\nbroker = EchoMQBroker()\n"
    command.write("idle.py", made + "dramatiq.set_broker(broker)\n")
    command.start("idle", "-p", "1")
    assert command.wait() == 2
    assert command.log == "echomq: no actors in idle: there is nothing to run\n"
    command.write("hears.py", "from idle import broker\n\n@broker.bus.on('order.paid')\ndef hear(event):\n    pass\n")
    command.start("hears", "-p", "1", "-t", "1")
    command.said("works on no queue")
    assert command.stop() == 0, command.log


def test_what_the_command_line_does_not_serve_is_told(command: Supervised) -> None:
    command.write(
        "two.py",
        "from app import *\n"
        "from echomq_tasks.brokers.dramatiq import EchoMQBroker\n"
        f"dramatiq_broker = EchoMQBroker('valkey://127.0.0.1:{command.port}/0')\n"
        "import dramatiq\n"
        "@actor(broker=dramatiq_broker)\ndef other():\n    pass\n",
    )
    command.boot("two", "-p", "1", "-t", "1")
    assert (
        "The actor other is of another broker, two:dramatiq_broker, and not served here: "
        "run `echomq worker two:dramatiq_broker` for them."
    ) in command.log
    assert command.stop() == 0
    command.forget()
    command.boot("two:dramatiq_broker", "-p", "1", "-t", "1", "--url", f"valkey://:secret@127.0.0.1:{command.port}/1")
    assert (
        f"--url is valkey://127.0.0.1:{command.port}/1, and the broker of these actors has a server of its own: "
        f"valkey://127.0.0.1:{command.port}/0."
    ) in command.log
    assert "another broker" not in command.log
    assert command.stop() == 0


def test_a_server_that_is_away_is_named(command: Supervised) -> None:
    port = free_port()
    command.boot("app", "-p", "1", "-t", "1", "--url", f"valkey://127.0.0.1:{port}/0")
    assert f"at valkey://127.0.0.1:{port}/0, which is not there yet: 1 process" in command.log
    assert "has a server of its own" not in command.log
    assert command.stop() == 0


def test_a_process_that_a_job_ends_is_told_of(command: Supervised) -> None:
    command.write("ends.py", "from app import *\n\n@actor(queue_name=QUEUE)\ndef crash():\n    os._exit(9)\n")
    (pid,) = command.boot("ends", "-p", "1", "-t", "1")
    command.send("crash")
    command.said(rf"Process 1 \(PID {pid}\) ended unasked \(exit code 9\), as when a job calls os._exit: PID \d+ takes")
    assert command.stop() == 0
