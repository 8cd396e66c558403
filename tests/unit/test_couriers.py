"""Couriers: what they are sent for is done once, its end is told once, and idle ones are used again and end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest
from support.eventually import eventually

from echomq_tasks.connection import Connection
from echomq_tasks.scripts import courier
from echomq_tasks.scripts.courier import Couriers, Errand


@pytest.fixture
def couriers() -> Iterator[Couriers]:
    # It is asked for nothing.
    made = Couriers(cast(Connection, None))
    yield made
    made.close()


def test_an_errand_brings_what_was_returned_or_raised(couriers: Couriers) -> None:
    def fail() -> None:
        raise SystemExit(3)

    assert couriers.send(lambda: "done").result() == "done"
    failed = couriers.send(fail)
    with pytest.raises(SystemExit):
        failed.result()
    assert failed.done


def test_its_end_is_told_once_also_to_who_asks_afterwards(couriers: Couriers) -> None:
    gate, told = threading.Event(), threading.Semaphore(0)
    errand = couriers.send(lambda: gate.wait(10))
    errand.when_done(told.release)
    assert not errand.wait(0)
    gate.set()
    assert told.acquire(timeout=10)
    errand.when_done(told.release)
    assert told.acquire(timeout=0)
    assert not told.acquire(timeout=0)


def test_an_idle_courier_is_sent_again_and_a_busy_one_is_not_waited_for(couriers: Couriers) -> None:
    gate = threading.Event()
    first = couriers.send(threading.get_ident).result()
    eventually(lambda: couriers._idle)  # noqa: SLF001
    busy = couriers.send(lambda: (gate.wait(10), threading.get_ident())[1])
    assert couriers.send(threading.get_ident).result() != first
    gate.set()
    assert busy.result() == first


@pytest.mark.parametrize("seconds", [0.01, 60.0])
def test_couriers_end_when_they_are_idle_for_long_or_closed(
    couriers: Couriers, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(courier, "_IDLE_SECONDS", seconds)
    thread = couriers.send(threading.current_thread).result()
    if seconds > 1:
        eventually(lambda: couriers._idle)  # noqa: SLF001
        couriers.close()
    thread.join(10)
    assert not thread.is_alive()
    assert not couriers._idle  # noqa: SLF001
    assert couriers.send(lambda: "done").result() == "done"


def test_one_that_is_taken_as_it_is_about_to_end_does_its_errand(
    couriers: Couriers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "_IDLE_SECONDS", 0.01)
    couriers.send(lambda: None).result()
    inbox = eventually(lambda: taken(couriers))
    # Longer than it would have stayed.
    assert not threading.Event().wait(0.1)
    errand = Errand(lambda: "done")
    inbox.put(errand)
    assert errand.wait(10)


def taken(couriers: Couriers) -> Any:
    try:
        return couriers._idle.pop()  # noqa: SLF001
    except IndexError:
        couriers.send(lambda: None).result()
        return None
