"""Newer wins in every interleaving: no caller sees a value older than a write that its process knows of."""

from __future__ import annotations

import random
import secrets
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from support.processes import Processes

from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_base, cache_key

KEYS = [brand("ROW", 1), brand("ROW", 2)]
KEY, CACHE, WHICH = st.sampled_from(KEYS), st.integers(0, 2), st.integers(0, 5)
#: What each process's clock is ahead, in seconds.
WRONG = (-3600.0, 0.0, 3600.0)
RIGHT = (0.0, 0.0, 0.0)


class NewerWins(RuleBasedStateMachine):
    """Three processes that do anything in any order."""

    def __init__(self, connection: Connection, skews: tuple[float, ...]) -> None:
        super().__init__()
        self.all = Processes(connection, f"newer-{secrets.token_hex(6)}", skews, KEYS)

    # Calls.

    @rule(cache=CACHE, key=KEY)
    def fetch(self, cache: int, key: str) -> None:
        self.all.ask(cache, key)

    @rule(cache=CACHE, key=KEY)
    def refresh(self, cache: int, key: str) -> None:
        self.all.ask_anew(cache, key)

    @rule(which=WHICH, times=st.integers(1, 8))
    def move(self, which: int, times: int) -> None:
        for _ in range(times):
            if self.all.asked:
                self.all.go_on(self.all.asked[which % len(self.all.asked)])

    # Writes.

    @rule(cache=CACHE, key=KEY, how=st.sampled_from(["drop", "put", "tag", "clear"]), seed=st.integers(0, 99))
    def write(self, cache: int, key: str, how: str, seed: int) -> None:
        self.play(cache, key, how, random.Random(seed), alone=False)

    def play(self, cache: int, key: str, how: str, chance: random.Random, *, alone: bool) -> None:
        reach = self.all.caches[cache].reach
        written = self.all.writes(key, how)
        begun = False

        def between() -> None:
            # Another thread of this process, and calls of any.
            nonlocal begun
            reach.between = lambda: None
            self.all.drain(written)
            for _ in range(chance.choice([0, 0, 1, 2])):
                self.fetch(cache, key)
            for _ in range(chance.choice([0, 3, 9])):
                self.move(chance.randrange(6), 1)
            if begun and chance.random() < 0.3:
                # Another process is the next one to write, and is heard before this one is done.
                self.play((cache + 1) % 3, key, chance.choice(["drop", "put", "tag"]), chance, alone=True)
                self.all.hear(cache, chance.choice([0, 1, 9]))
            reach.between, begun = between, True

        if not alone:
            reach.between = between
        try:
            self.all.tell(cache, key, how)
        finally:
            reach.between = lambda: None
        self.all.drain(written)
        self.all.wrote(cache, written)

    # Messages and faults.

    @rule(cache=CACHE, count=st.integers(1, 4))
    def hears(self, cache: int, count: int) -> None:
        self.all.hear(cache, count)

    @rule(cache=CACHE)
    def cut_or_heal(self, cache: int) -> None:
        if self.all.caches[cache].reach.cut:
            self.all.heal(cache)
        else:
            self.all.cut(cache)

    @rule(cache=CACHE, which=WHICH)
    def apply(self, cache: int, which: int) -> None:
        self.all.apply(cache, which)

    @rule(cache=CACHE, what=st.sampled_from(["answer", "request"]))
    def lose(self, cache: int, what: str) -> None:
        reach = self.all.caches[cache].reach
        if what == "answer":
            reach.losing = True
        else:
            reach.missing = True

    @rule(key=KEY)
    def expire(self, key: str) -> None:
        """As when the row has lived as long as it may on the server, and a bit longer in a process."""
        self.all.forget(cache_key(self.all.table, key))

    @rule()
    def lose_all(self) -> None:
        """As when a server starts anew with nothing, and nobody has noticed."""
        client: Any = self.all.connection.client
        self.all.forget(*client.keys(cache_base(self.all.table) + b"*"))

    @rule(key=KEY)
    def end_a_lease(self, key: str) -> None:
        self.all.end_a_lease(key)

    def teardown(self) -> None:
        try:
            self.all.settle()
        finally:
            self.all.overhearing.close()


@pytest.mark.timeout(600)  # only a failure takes long: it is shrunk to its shortest form
@pytest.mark.parametrize("skews", [RIGHT, WRONG], ids=["clocks-agree", "clocks-an-hour-apart"])
def test_no_interleaving_shows_a_caller_what_its_process_knows_to_be_old(
    standalone: Connection, skews: tuple[float, ...]
) -> None:
    run_state_machine_as_test(
        partial(NewerWins, standalone, skews),  # type: ignore[arg-type]  # it only calls it
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
