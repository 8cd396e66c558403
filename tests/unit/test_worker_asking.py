"""How the pump of a worker shares its places out: what it asks for, and what it counts as held."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from echomq_tasks.worker.asking import Ask, Asking
from echomq_tasks.worker.line import Line
from echomq_tasks.worker.places import FreePlaces

PLACES = 8


class House:
    """Lines that share the places of threads and of tasks; the server is not asked anything."""

    def __init__(self, *kinds: str, apart: bool = False) -> None:
        self.threads, self.tasks = (FreePlaces(PLACES, None, 1.0) for _ in range(2))  # type: ignore[arg-type]
        self.asking = Asking((self.threads, self.tasks))
        actors = {
            f"{kind}-{number}": SimpleNamespace(actor_name=f"{kind}-{number}", queue_name=str(number))
            for number, kinds_of in enumerate(kinds)
            for kind in kinds_of.split("+")
        }
        broker: Any = SimpleNamespace(actors=actors, batches={}, lease=30.0)
        coroutines: Any = SimpleNamespace(has=lambda name: name.startswith("async"))
        self.lines = [Line(broker, str(number), self.threads, self.tasks, coroutines) for number in range(len(kinds))]
        for line in self.lines:
            line.gathering = SimpleNamespace(asks=0)  # type: ignore[assignment]
            line.apart = apart

    def asks(self) -> list[Ask]:
        return self.asking.asks(self.lines, time.monotonic(), claiming=True)

    def send(self) -> list[Ask]:
        asked = self.asks()
        for ask in asked:
            ask.sent()
        return asked

    def end(self, line: Line, runs: int) -> None:
        line.unsettled.extend(object() for _ in range(runs))  # type: ignore[misc]

    def held(self, trips: list[list[Ask]]) -> int:
        """How many jobs the server may hold for this worker, whichever of these round trips it has heard of."""
        running = PLACES - self.threads.free
        untold = sum(len(line.unsettled) for line in self.lines)
        # What one tells is done before what it claims.
        return running + untold + sum(max(sum(len(a.runs) for a in t), sum(a.count for a in t)) for t in trips)


@pytest.mark.parametrize("apart", [False, True], ids=["one-server", "cluster"])
@pytest.mark.parametrize("runs", [(0, 0), (8, 0), (0, 8), (4, 4), (1, 3), (3, 1), (1, 7)])
def test_whatever_has_ended_no_more_is_asked_for_than_there_are_places(runs: tuple[int, int], apart: bool) -> None:
    house = House("plain", "plain", apart=apart)
    for line, ended in zip(house.lines, runs, strict=True):
        line.backlog = True
        house.end(line, ended)
    trips: list[list[Ask]] = []
    for _ in range(3):
        if asked := house.send():
            # In a cluster each goes to a node of its own, which knows nothing of what another is told.
            trips += [[ask] for ask in asked] if apart else [asked]
        assert house.held(trips) <= PLACES
    assert sum(ask.count for trip in trips for ask in trip) >= PLACES // 2


def test_what_is_late_takes_nothing_from_others() -> None:
    house = House("plain", "plain", apart=True)
    first = house.lines[0]
    first.backlog, house.lines[1].stuck = True, True
    house.lines[1].seen_at = float("inf")
    house.end(first, 3)
    (ask,) = house.send()
    assert first.claims
    ask.lag()
    assert (house.threads.asked, first.held, first.late) == (0, 0, True)
    ask.failed()
    assert (first.telling, first.claims, first.held, house.threads.asked, first.late) == (0, 0, 0, 0, False)
    assert len(first.unsettled) == 3


def test_a_queue_that_has_no_room_in_one_pool_takes_nobodys_place_in_the_other() -> None:
    house = House("plain+async", "plain")
    house.threads.free, house.tasks.free = 1, 0
    assert [(ask.line.queue_name, ask.count) for ask in house.asks()] == [("1", 1)]


def test_a_queue_whose_ends_are_not_taken_is_asked_for_no_jobs() -> None:
    house = House("plain")
    (line,) = house.lines
    line.stuck = True
    house.end(line, 2)
    (ask,) = house.asks()
    assert (len(ask.runs), ask.count, line.may_claim) == (2, 0, False)
