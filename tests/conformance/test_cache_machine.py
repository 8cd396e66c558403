"""A cache table against its model: in whatever order flights, puts and drops come, nobody reads what was dropped.

Three machines use it, whose clocks are seconds apart; what began first is told by the model's own clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from support.tables import A, B, Rows

from echomq_tasks.cache.claims import Follow, Hit, Lead
from echomq_tasks.cache.frames import newer
from echomq_tasks.cache.store import ALWAYS, Store
from echomq_tasks.connection import Connection
from echomq_tasks.identity import Mint

#: The tags of each row.
TAGS = {A: ["t", "u"], B: []}
ROW = st.sampled_from([A, B])
#: Which machine, by what its clock is ahead in seconds.
SKEWS = [-5.0, 0.0, 5.0]
SKEW = st.sampled_from(SKEWS)
#: Which of the flights that have not ended, from the newest back.
WHICH = st.integers(0, 2)
MINUTE = 60_000


@dataclass(eq=False)
class Flight:
    """A load under way; ``began`` is by the model's clock."""

    row_id: str
    owner: str
    version: str
    began: int
    #: Its lease has ended.
    lost: bool = False
    #: It was put or dropped over.
    detached: bool = False
    #: Nothing on the server knows of it any more: in earnest that takes ten minutes.
    forgotten: bool = False
    ended: bool = False


class SkewedStore(Store):
    """A table on a machine whose clock goes wrong."""

    def __init__(self, connection: Connection, skew: float, node: int) -> None:
        super().__init__("machine", "USR", connection)
        self._clock = Mint(lambda: node, clock=lambda: time.time() + skew)

    def mint(self) -> str:
        return self._clock.mint("USR")


class CacheMachine(RuleBasedStateMachine):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.rows = Rows(connection, "machine")
        for suffix in list(self.rows.keys()):
            self.rows.do("DEL", suffix)
        self.stores = {skew: SkewedStore(connection, skew, node) for node, skew in enumerate(SKEWS)}
        self.now = 0
        self.known: list[Flight] = []
        #: When each row was last put or dropped.
        self.dropped = dict.fromkeys(TAGS, -1)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def seen(self, row_id: str, hit: Hit | None) -> None:
        assert hit is None or int(hit.value) >= self.dropped[row_id], f"{row_id}: {hit}, {self.dropped}"

    # Flights.

    @rule(row_id=ROW, skew=SKEW, anyway=st.booleans())
    def claim(self, row_id: str, skew: float, anyway: bool) -> None:
        began = self.tick()
        owner = f"owner-{began}"
        verdict = self.stores[skew].claim(row_id, owner, MINUTE, TAGS[row_id], least_ms=ALWAYS if anyway else 0)
        match verdict:
            case Hit():
                assert not anyway
                self.seen(row_id, verdict)
            case Follow():
                (leader,) = (each for each in self.known if each.owner == verdict.owner)
                assert not leader.ended
                assert leader.row_id == row_id
                assert leader.began > self.dropped[row_id], "it would wait for what is old"
            case Lead():
                for each in self.of(row_id):
                    assert newer(verdict.version, each.version)
                self.known.append(Flight(row_id, owner, verdict.version, began))

    def of(self, row_id: str) -> list[Flight]:
        """The flights of a row that the server knows of."""
        return [each for each in self.known if each.row_id == row_id and not each.ended and not each.forgotten]

    def flight(self, which: int) -> Flight | None:
        flying = [each for each in self.known if not each.ended and not each.forgotten]
        return flying[-1 - which % len(flying)] if flying else None

    @rule(which=WHICH)
    def a_lease_ends(self, which: int) -> None:
        flight = self.flight(which)
        if flight is not None:
            found = self.rows.read(f"{flight.row_id}:flight")
            if found and found[28:] == flight.owner:
                self.rows.do("SETRANGE", f"{flight.row_id}:flight", 15, "0000000000001")
            flight.lost = True

    @rule(which=WHICH, skew=SKEW)
    def claim_again(self, which: int, skew: float) -> None:
        flight = self.flight(which)
        if flight is None or flight.detached or flight.lost or flight.began < self.dropped[flight.row_id]:
            return
        verdict = self.stores[skew].claim(flight.row_id, flight.owner, MINUTE, TAGS[flight.row_id], least_ms=ALWAYS)
        assert verdict == Lead(flight.version)

    def version(self, row_id: str) -> str:
        return self.stores[0.0].version(row_id, TAGS[row_id]) or "USR00000000000"

    @rule(which=WHICH, skew=SKEW)
    def renew(self, which: int, skew: float) -> None:
        if (flight := self.flight(which)) is None:
            return
        renewed = self.stores[skew].renew(flight.row_id, flight.owner, MINUTE)
        assert not (renewed and (flight.ended or flight.detached))
        flight.lost &= not renewed

    @rule(which=WHICH, skew=SKEW, announce=st.booleans(), times=st.integers(1, 2))
    def fill(self, which: int, skew: float, announce: bool, times: int) -> None:
        if (flight := self.flight(which)) is None:
            return
        row_id, tags, store = flight.row_id, TAGS[flight.row_id], self.stores[skew]
        value = str(flight.began).encode()
        before = self.version(row_id)
        for _ in range(times):
            stored = store.fill(row_id, flight.owner, flight.version, value, MINUTE, tags, announce=announce)
            assert stored is (flight.began > self.dropped[row_id] and newer(flight.version, before))
        flight.ended = True
        found = store.peek(row_id, tags)
        assert not stored or (found is not None and (found.version, found.value) == (flight.version, value))

    @rule(which=WHICH, skew=SKEW, failed=st.booleans())
    def give_up(self, which: int, skew: float, failed: bool) -> None:
        if (flight := self.flight(which)) is None:
            return
        end = self.stores[skew].fail if failed else self.stores[skew].release
        end(flight.row_id, flight.owner, b"x")
        flight.ended = True
        for each in self.of(flight.row_id):
            each.forgotten |= each.lost

    # What makes old.

    @rule(row_id=ROW, skew=SKEW)
    def put(self, row_id: str, skew: float) -> None:
        now, before = self.tick(), self.version(row_id)
        version = self.stores[skew].put(row_id, None, str(now).encode(), MINUTE, TAGS[row_id])
        self.made_old(row_id, version, now)
        assert newer(version, before)
        found = self.stores[skew].peek(row_id, TAGS[row_id])
        assert found is not None
        assert (found.version, found.value) == (version, str(now).encode())

    @rule(row_id=ROW, skew=SKEW)
    def drop(self, row_id: str, skew: float) -> None:
        now, before = self.tick(), self.version(row_id)
        version = self.stores[skew].drop(row_id)
        assert newer(version, before)
        self.made_old(row_id, version, now)

    def made_old(self, row_id: str, version: str, now: int) -> None:
        for each in self.of(row_id):
            # So that whoever holds what it has loaded in its own memory lets go of it, too.
            assert newer(version, each.version)
            each.detached = True
        self.dropped[row_id] = now

    @rule(tag=st.sampled_from(["t", "u"]), skew=SKEW)
    def drop_tag(self, tag: str, skew: float) -> None:
        now = self.tick()
        version = self.stores[skew].drop_tag(tag)
        for row_id, tags in TAGS.items():
            if tag in tags:
                self.dropped[row_id] = now
                assert all(newer(version, each.version) for each in self.known if each.row_id == row_id)

    @rule(skew=SKEW)
    def clear(self, skew: float) -> None:
        now = self.tick()
        self.stores[skew].clear()
        for row_id in TAGS:
            self.dropped[row_id] = now
            for each in self.of(row_id):
                each.detached = True

    @rule(row_id=ROW)
    def a_row_ends(self, row_id: str) -> None:
        self.rows.do("DEL", row_id)
        for each in self.of(row_id):
            each.forgotten |= each.lost

    @invariant()
    def nobody_reads_what_was_dropped(self) -> None:
        for row_id, tags in TAGS.items():
            self.seen(row_id, self.stores[0.0].peek(row_id, tags))


@pytest.mark.timeout(600)  # only a failure takes long: it is shrunk to its shortest form
def test_a_table_does_what_its_model_does(standalone: Connection) -> None:
    run_state_machine_as_test(
        partial(CacheMachine, standalone),  # type: ignore[arg-type]  # it only calls it
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
