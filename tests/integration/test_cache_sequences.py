"""Newer wins in every short sequence of what two processes can do, and in those others that some fault needed."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence

import pytest
from support.processes import TAG, Processes
from support.stepping import Overhearing

from echomq_tasks.cache.frames import tag_id
from echomq_tasks.cache.store import Store
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_base

KEY = brand("ROW", 1)
#: What the clocks of both are ahead.
CLOCKS = {"agree": (0.0, 0.0), "an-hour-ahead-and-behind": (3600.0, -3600.0)}

#: What the processes a and b do; with "!" when the first request is lost on its way, with "?" when its answer is.
HOLD = ["fetch", "fetch!", "load", "put", "put!"]
WRITE = ["drop", "drop!", "drop?", "put", "refresh!"]
OTHER = ["fetch", "hear", "apply", "expire", "reconnect"]

#: Sequences of more than three, or of what is not among the above, each of which some fault needed.
SEQUENCES: dict[str, str] = {
    "the-lane-tells-who-cannot-tell-the-server-and-is-loading": "a.load b.drop! a.apply! a.fetch a.end a.fetch",
    "a-load-without-a-lease-whose-version-is-newer-than-the-news": "a.load! b.drop a.hear a.fetch a.end a.fetch",
    "a-row-that-is-newer-than-the-news-and-cannot-be-looked-up": "a.fetch a.expire b.drop a.hear a.fetch!",
    "a-refresh-of-a-row-that-a-server-has-forgotten": "b.fetch a.fetch a.begin-anew a.refresh a.fetch",
    "two-refreshes-of-which-the-last-has-the-clock-that-is-behind": "a.refresh b.refresh a.hear a.fetch",
    "a-tag-of-a-row-whose-clock-is-ahead": "a.put b.tag a.hear a.fetch b.fetch",
    "all-is-dropped-and-nothing-of-that-is-heard": "a.fetch b.clear a.reconnect a.fetch",
}


class Play(Processes):
    """Two processes that do one thing after the other."""

    def step(self, text: str) -> None:
        who, _, what = text.partition(".")
        cache = "ab".index(who)
        reach = self.caches[cache].reach
        reach.missing, reach.losing = what.endswith("!"), what.endswith("?")
        match what.rstrip("!?"):
            case "fetch":
                self.ask(cache, KEY, 40)
            case "load":
                # Until the value is loaded, and not yet stored: a claim that is lost has one step, not two.
                self.ask(cache, KEY, 3 if reach.missing else 4)
            case "end":
                for asked in [each for each in self.asked if each.cache == cache]:
                    self.go_on(asked, 40)
            case "refresh":
                self.ask_anew(cache, KEY, 40)
            case "hear":
                self.hear(cache, 1000)
            case "apply":
                self.apply(cache, 0)
            case "reconnect":
                self.cut(cache)
                self.heal(cache)
            case "expire":
                self.forget(*_names(self.table)[:2])
            case "begin-anew":
                self.forget(*_names(self.table))
            case how:
                written = self.writes(KEY, how)
                self.tell(cache, KEY, how)
                self.drain(written)
                self.wrote(cache, written)
        reach.missing = reach.losing = False


def _names(table: str) -> list[bytes]:
    """All keys that there may be: first the row and its dropped version, which end after ten minutes."""
    base, id = cache_base(table), KEY.encode()
    return [base + each for each in (id, id + b":dropped", id + b":flight", b"tag:top", b"tag:" + tag_id(TAG).encode())]


def play(
    connection: Connection, table: str, clocks: Sequence[float], steps: Sequence[str], overhearing: Overhearing
) -> None:
    processes = Play(connection, table, clocks, [KEY], overhearing)
    processes.forget(*_names(table))
    for step in steps:
        processes.step(step)
    processes.settle()


def every(clocks: Sequence[float]) -> Iterator[tuple[str, str, str]]:
    """All sequences of three after which something can be wrong."""
    # Where the clocks agree, it is all the same which of the two is called a.
    first = [f"{who}.{what}" for who in ("ab" if clocks[0] != clocks[1] else "a") for what in HOLD]
    then = [f"{who}.{what}" for who in "ab" for what in dict.fromkeys(WRITE + OTHER) if (who, what) != ("b", "expire")]
    # In the end both fetch and hear anyway.
    last = [each for each in then if each[2:] not in ("fetch", "hear")]
    for steps in itertools.product(first, then, last):
        whats = [each[2:] for each in steps]
        told = [what in WRITE for what in whats]
        if not any(told[1:]) or steps[1] == steps[2]:
            continue
        if any(what in ("hear", "apply") and not any(told[:at]) for at, what in enumerate(whats)):
            continue
        yield steps


Playing = Callable[[Sequence[float], Sequence[str]], None]


@pytest.fixture
def playing(standalone: Connection) -> Iterator[Playing]:
    """Plays a sequence: one table and one ear are enough for all of them."""
    table = f"sequences-{secrets.token_hex(6)}"
    overhearing = Overhearing(standalone, Store(table, "ROW", standalone))

    def play_(clocks: Sequence[float], steps: Sequence[str]) -> None:
        try:
            play(standalone, table, clocks, steps, overhearing)
        except AssertionError as error:
            raise AssertionError(f"{' '.join(steps)}: {error}") from error

    yield play_
    overhearing.close()


@pytest.mark.parametrize("clocks", CLOCKS.values(), ids=list(CLOCKS))
def test_no_short_sequence_shows_a_caller_what_its_process_knows_to_be_old(
    playing: Playing, clocks: tuple[float, float]
) -> None:
    sequences = list(every(clocks))
    assert len(sequences) > 500
    for steps in sequences:
        playing(clocks, steps)


@pytest.mark.parametrize("clocks", CLOCKS.values(), ids=list(CLOCKS))
@pytest.mark.parametrize("steps", SEQUENCES.values(), ids=list(SEQUENCES))
def test_no_sequence_that_some_fault_needed_does(playing: Playing, clocks: tuple[float, float], steps: str) -> None:
    playing(clocks, steps.split())
    playing(clocks[::-1], steps.split())
