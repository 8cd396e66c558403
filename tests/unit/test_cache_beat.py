"""The beat: everybody reports again and again, nobody is kept alive, an error stops nobody, the last one ends it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from support.children import in_child
from support.eventually import eventually

from echomq_tasks.cache import beat as beats
from echomq_tasks.cache.beat import Beat


class One:
    """Counts how often it was to report, and raises the first time when it is told to."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.times = 0

    def report(self) -> None:
        self.times += 1
        error, self.error = self.error, None
        if error is not None:
            raise error


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "echomq-cache-beat"]


@pytest.fixture
def beat() -> Iterator[Beat]:
    before = threads()
    made = Beat(0.001)
    yield made
    made.close()
    assert [thread for thread in threads() if thread not in before] == []


def goes_on(one: One) -> None:
    before = one.times
    eventually(lambda: one.times > before + 1)


def test_all_who_were_added_report_until_they_are_removed(beat: Beat) -> None:
    one, two = One(), One()
    beat.add(one)
    beat.add(two)
    beat.add(two)
    goes_on(one)
    goes_on(two)
    beat.remove(one)
    goes_on(two)
    at = one.times
    goes_on(two)
    assert one.times == at
    beat.add(one)
    goes_on(one)


def test_one_that_raises_is_logged_and_the_others_report_all_the_same(
    beat: Beat, caplog: pytest.LogCaptureFixture
) -> None:
    ill, well = One(ValueError("no figures")), One()
    beat.add(ill)
    beat.add(well)
    goes_on(ill)
    goes_on(well)
    assert [record.message for record in caplog.records] == ["A cache table could not report what it has counted"]
    assert "no figures" in caplog.text


def test_nobody_is_kept_alive_and_the_thread_ends_with_the_last_one_and_begins_with_the_next(beat: Beat) -> None:
    before = set(threads())
    one = One()
    beat.add(one)
    goes_on(one)
    assert len(set(threads()) - before) == 1
    del one
    gc.collect()
    eventually(lambda: not set(threads()) - before)
    another = One()
    beat.add(another)
    goes_on(another)


def test_closing_ends_the_thread_at_once_and_a_later_one_begins_anew() -> None:
    others = set(threads())
    slow = Beat(3600.0)
    one = One()
    slow.add(one)
    (thread,) = set(threads()) - others
    assert slow.close()
    assert not thread.is_alive()
    assert one.times == 1  # the last time
    assert not slow.close()
    assert one.times == 1
    slow.add(one)
    assert len(set(threads()) - others) == 1
    slow.remove(one)
    eventually(lambda: not set(threads()) - others)


def test_after_a_fork_the_child_has_none_until_one_is_added(beat: Beat) -> None:
    one = One()
    beat.add(one)
    goes_on(one)

    def child() -> tuple[int, bool]:
        begun = len(threads())
        mine = One()
        beat.add(mine)
        goes_on(mine)
        beat.close()
        return begun, mine.times > 0

    assert in_child(child) == (0, True)
    goes_on(one)


def test_without_another_thread_nothing_is_reported_and_nothing_is_raised(
    beat: Beat, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = One()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        beat.add(one)
    assert one.times == 0
    beat.add(one)
    goes_on(one)


def test_one_that_leaves_reports_a_last_time_and_does_not_make_the_others_wait() -> None:
    slow = Beat(3600.0)
    one, other = One(), One()
    slow.add(one)
    slow.add(other)
    slow.remove(one)
    eventually(lambda: one.times == 1)
    slow.remove(one)
    slow.close()
    assert (one.times, other.times) == (1, 1)


def test_a_report_that_waits_for_a_slow_server_does_not_put_the_next_one_off(beat: Beat) -> None:
    """Only work does; by the clock the next one would come after two hundred times as long."""
    go, one = threading.Event(), One()

    class Waits(One):
        def report(self) -> None:
            go.wait(0.2)
            super().report()

    slow = Waits()
    beat.add(slow)
    eventually(lambda: slow.times == 1)
    beat.add(one)
    goes_on(one)
    go.set()


def test_a_last_report_that_hangs_is_waited_for_a_moment_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "_PATIENCE", 0.01)
    go = threading.Event()

    class Hangs(One):
        def report(self) -> None:
            assert go.wait(30)
            super().report()

    others = set(threads())
    slow, one = Beat(3600.0), Hangs()
    slow.add(one)
    (thread,) = set(threads()) - others
    slow.close()
    assert thread.is_alive()
    # One that is added meanwhile is not dismissed with it.
    later = One()
    slow.add(later)
    go.set()
    eventually(lambda: one.times == 1)
    slow.close()
    eventually(lambda: not set(threads()) - others)
    assert later.times == 1


def test_all_report_a_last_time_at_the_end_of_a_process_and_of_one_of_multiprocessing() -> None:
    program = """
import multiprocessing, os, sys, time
from echomq_tasks.cache.beat import Beat

class One:
    def __init__(self, name): self.name = name
    def report(self): print(self.name, "in", "child" if os.getpid() != parent else "parent", flush=True)

def use(name):
    beat, one = Beat(3600.0), One(name)
    beat.add(one)
    kept.append((beat, one))

parent, kept = os.getpid(), []
use("one")
child = multiprocessing.get_context("fork").Process(target=use, args=("two",))
child.start()
child.join()
if os.fork() == 0:
    sys.exit()  # this one has used nothing
os.wait()
print("ends", flush=True)
"""
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.stdout.split("\n"), ended.stderr) == (["two in child", "ends", "one in parent", ""], "")
