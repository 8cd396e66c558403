"""Newer wins in every interleaving: no caller sees a value older than a write that its process knows of."""

from __future__ import annotations

import random
import secrets
from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from support.stepping import Cache, Going, Overhearing, SkewedStore, StraightDrive

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.drive import run
from echomq_tasks.cache.frames import tag_id
from echomq_tasks.connection import Connection
from echomq_tasks.identity import brand
from echomq_tasks.keyspace import cache_base, cache_key

KEYS = [brand("ROW", 1), brand("ROW", 2)]
TAG = "of-both"
KEY, CACHE, WHICH = st.sampled_from(KEYS), st.integers(0, 2), st.integers(0, 5)
#: What each process's clock is ahead, in seconds.
WRONG = (-3600.0, 0.0, 3600.0)
RIGHT = (0.0, 0.0, 0.0)


@dataclass
class Asked:
    """A call on its way."""

    cache: int
    key: str
    #: The newest write that its process knew of when it began.
    known: int
    going: Going
    refresh: bool = False


class NewerWins(RuleBasedStateMachine):
    """Three processes with one source of truth, whose value is a number that each write raises."""

    def __init__(self, connection: Connection, skews: tuple[float, ...]) -> None:
        super().__init__()
        self.skews = skews
        self.table = f"newer-{secrets.token_hex(6)}"
        self.connection = connection
        self.truth = dict.fromkeys(KEYS, 0)
        self.caches = [
            Cache(self.table, connection, SkewedStore(self.table, connection, skew, node), self.lane_is_told)
            for node, skew in enumerate(skews)
        ]
        #: The jobs of the lane, none of which is ever lost, and any may come again.
        self.lane: list[bytes] = []
        self.known: list[dict[str, int]] = [dict.fromkeys(KEYS, 0) for _ in skews]
        self.asked: list[Asked] = []
        #: The newest value of each that somebody was told of.
        self.written = dict.fromkeys(KEYS, 0)
        #: What a coherence message tells of: which keys had which truth when it was said.
        self.told: dict[bytes, dict[str, int]] = defaultdict(dict)
        self.overhearing = Overhearing(connection, self.caches[0].reach.store)

    def drain(self, truth: dict[str, int]) -> None:
        """Put what was published since on its way to every process; ``truth`` is what it tells of."""
        for channel, data in self.overhearing.look():
            if channel.endswith(b":coh"):
                id = data[:14].decode()
                # One of a row tells of no other one.
                self.told[data].update({each: truth[each] for each in truth if id == each or id not in KEYS})
            for cache in self.caches:
                cache.said(channel, data)

    # Calls.

    @rule(cache=CACHE, key=KEY)
    def fetch(self, cache: int, key: str) -> None:
        going = Going(self.caches[cache].reader.value(self.call(key), self.caches[cache].drive()))
        self.asked.append(Asked(cache, key, self.known[cache][key], going))
        self.go_on(self.asked[-1])

    @rule(cache=CACHE, key=KEY)
    def refresh(self, cache: int, key: str) -> None:
        # Nobody but who calls this knows that there is something new.
        self.truth[key] += 1
        going = Going(self.caches[cache].reader.refresh(self.call(key), self.caches[cache].drive()))
        self.asked.append(Asked(cache, key, self.truth[key], going, refresh=True))
        self.go_on(self.asked[-1])

    def call(self, key: str) -> Call:
        return Call(key, b"", lambda: self.truth[key], None, (TAG,), (tag_id(TAG),))

    @rule(which=WHICH, times=st.integers(1, 8))
    def move(self, which: int, times: int) -> None:
        for _ in range(times):
            if self.asked:
                self.go_on(self.asked[which % len(self.asked)])

    def go_on(self, asked: Asked) -> None:
        if asked.going.running or asked.going.done:
            return  # what comes between a write and itself
        asked.going.go_on()
        # A refresh tells what it has loaded.
        self.drain({asked.key: asked.known} if asked.refresh else {})
        if not asked.going.done:
            return
        self.asked.remove(asked)
        if asked.going.error is not None:
            raise asked.going.error
        value = asked.going.value[1] if asked.refresh else asked.going.value
        assert value >= asked.known, f"{asked} got {value}"
        if asked.refresh:
            self.learn(asked.cache, {asked.key: asked.known})
            self.written[asked.key] = max(self.written[asked.key], asked.known)

    def learn(self, cache: int, truth: dict[str, int]) -> None:
        for key, number in truth.items():
            self.known[cache][key] = max(self.known[cache][key], number)

    # Writes.

    @rule(cache=CACHE, key=KEY, how=st.sampled_from(["drop", "put", "tag", "clear"]), seed=st.integers(0, 99))
    def write(self, cache: int, key: str, how: str, seed: int) -> None:
        self.play(cache, key, how, random.Random(seed), alone=False)

    def play(self, cache: int, key: str, how: str, chance: random.Random, *, alone: bool) -> None:
        coherence, reach = self.caches[cache].coherence, self.caches[cache].reach
        keys = [key] if how in ("drop", "put") else KEYS
        for each in keys:
            self.truth[each] += 1
        written = {each: self.truth[each] for each in keys}

        begun = False

        def between() -> None:
            # Another thread of this process, and calls of any.
            nonlocal begun
            reach.between = lambda: None
            self.drain(written)
            for _ in range(chance.choice([0, 0, 1, 2])):
                self.fetch(cache, key)
            for _ in range(chance.choice([0, 3, 9])):
                self.move(chance.randrange(6), 1)
            if begun and chance.random() < 0.3:
                # Another process is the next one to write, and is heard before this one is done.
                self.play((cache + 1) % 3, key, chance.choice(["drop", "put", "tag"]), chance, alone=True)
                self.hear(cache, chance.choice([0, 1, 9]))
            reach.between, begun = between, True

        if not alone:
            reach.between = between
        try:
            match how:
                case "drop":
                    coherence.drop(key)
                case "put":
                    coherence.put(key, b"", self.truth[key], None, (TAG,))
                case "tag":
                    coherence.drop_tag(TAG)
                case _:
                    coherence.clear()
        finally:
            reach.between = lambda: None
        self.drain(written)
        self.learn(cache, written)
        for each, number in written.items():
            self.written[each] = max(self.written[each], number)

    # Messages and faults.

    @rule(cache=CACHE, count=st.integers(1, 4))
    def hears(self, cache: int, count: int) -> None:
        self.hear(cache, count)

    def hear(self, cache: int, count: int) -> None:
        for _ in range(count):
            message = self.caches[cache].hear()
            if message is not None:
                self.learn(cache, self.told.get(message[1], {}))

    @rule(cache=CACHE)
    def cut_or_heal(self, cache: int) -> None:
        if self.caches[cache].reach.cut:
            self.caches[cache].heal()
        else:
            self.caches[cache].cut()

    def lane_is_told(self, message: bytes) -> None:
        self.lane.append(message)

    @rule(cache=CACHE, which=WHICH)
    def apply(self, cache: int, which: int) -> None:
        if self.lane:
            message = self.lane[-1 - which % len(self.lane)]
            self.caches[cache].coherence.apply(message)
            self.drain({})
            # What has not been broadcast has a version of its process's own, which wrong clocks make worthless.
            self.learn(cache, self.told.get(message, {}))

    @rule(cache=CACHE, what=st.sampled_from(["answer", "request"]))
    def lose(self, cache: int, what: str) -> None:
        reach = self.caches[cache].reach
        if what == "answer":
            reach.losing = True
        else:
            reach.missing = True

    @rule(key=KEY)
    def expire(self, key: str) -> None:
        """As when the row has lived as long as it may on the server, and a bit longer in a process."""
        self.forget(cache_key(self.table, key))

    @rule()
    def lose_all(self) -> None:
        """As when a server starts anew with nothing, and nobody has noticed."""
        client: Any = self.connection.client
        self.forget(*client.keys(cache_base(self.table) + b"*"))

    def forget(self, *keys: Any) -> None:
        client: Any = self.connection.client
        if keys:
            client.delete(*keys)

    @rule(key=KEY)
    def end_a_lease(self, key: str) -> None:
        """As when its leader is held up for longer than that, or is dead."""
        client: Any = self.connection.client
        flight = cache_key(self.table, key, "flight")
        if client.exists(flight):
            client.setrange(flight, 15, "0000000000001")
        for cache in self.caches:
            cache.leases_ended += 1

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            self.overhearing.close()

    def settle(self) -> None:
        # Whatever was cut is healed, and whoever has asked gets an answer.
        for cache in self.caches:
            cache.reach.losing = cache.reach.missing = False
            if cache.reach.cut:
                cache.heal()
            cache.reach.ask(lambda store: None)
        for leases_end in (False, True):
            for key in KEYS if leases_end else ():
                self.end_a_lease(key)
            for _ in range(100):
                for asked in list(self.asked):
                    self.go_on(asked)
                for number in range(len(self.caches)):
                    self.hear(number, 1)
        assert not self.asked, self.asked
        self.everybody_comes_to_know()

    def everybody_comes_to_know(self) -> None:
        """Once all is healed and heard, each process has the newest value, whatever it has missed."""
        for last in (False, True):
            for number, cache in enumerate(self.caches):
                for key in KEYS:
                    value = run(cache.reader.value(self.call(key), StraightDrive()))
                    self.drain({})
                    assert not last or value >= self.written[key], f"process {number} has {value}, {self.written}"
            for number in range(len(self.caches)):
                self.hear(number, 1000)


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
