"""Several processes with one table, and what each of them knows: none is ever to be shown a value older than that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echomq_tasks.cache.call import Call
from echomq_tasks.cache.drive import run
from echomq_tasks.cache.frames import tag_id
from echomq_tasks.connection import Connection
from echomq_tasks.keyspace import cache_key
from support.stepping import Cache, Going, Overhearing, SkewedStore, StraightDrive

TAG = "of-all"


@dataclass
class Asked:
    """A call on its way."""

    cache: int
    key: str
    #: The newest write that its process knew of when it began.
    known: int
    going: Going
    refresh: bool = False


class Processes:
    """Processes with one source of truth, whose values are numbers that each write raises.

    Parameters:
      connection: the server.
      table: the table's name.
      skews: what the clock of each process is ahead, in seconds.
      keys: the rows.
      overhearing: what is published of the table; its own by default.
    """

    def __init__(
        self,
        connection: Connection,
        table: str,
        skews: Sequence[float],
        keys: Sequence[str],
        overhearing: Overhearing | None = None,
    ) -> None:
        self.connection, self.table, self.keys = connection, table, keys
        self.caches = [
            Cache(table, connection, SkewedStore(table, connection, skew, node), self._lane_is_told)
            for node, skew in enumerate(skews)
        ]
        self.truth = dict.fromkeys(keys, 0)
        self.known: list[dict[str, int]] = [dict.fromkeys(keys, 0) for _ in skews]
        self.asked: list[Asked] = []
        #: The newest value of each that somebody was told of.
        self.written = dict.fromkeys(keys, 0)
        #: What a coherence message tells of: which keys had which truth when it was said.
        self.told: dict[bytes, dict[str, int]] = defaultdict(dict)
        #: The jobs of the lane, none of which is ever lost, and any may come again.
        self.lane: list[bytes] = []
        #: Whether something may have been published since :meth:`listen`: each look takes as long as a write.
        self._unheard = False
        self.overhearing = overhearing or Overhearing(connection, self.caches[0].reach.store)

    def _lane_is_told(self, message: bytes) -> None:
        self.lane.append(message)

    def listen(self) -> None:
        """Put what was published until now, and tells of nothing new, on its way to every process."""
        if self._unheard:
            self.drain({})

    def drain(self, truth: Mapping[str, int]) -> None:
        """As :meth:`listen`, of what was published since; ``truth`` is what it tells of."""
        self._unheard = False
        for channel, data in self.overhearing.look():
            if channel.endswith(b":coh"):
                id = data[:14].decode()
                # One of a row tells of no other one.
                self.told[data].update({each: truth[each] for each in truth if id == each or id not in self.keys})
            for cache in self.caches:
                cache.said(channel, data)

    def learn(self, cache: int, truth: Mapping[str, int]) -> None:
        """A process knows of this from now on."""
        for key, number in truth.items():
            self.known[cache][key] = max(self.known[cache][key], number)

    # Calls.

    def call(self, key: str) -> Call:
        return Call(key, b"", lambda: self.truth[key], None, (TAG,), (tag_id(TAG),))

    def ask(self, cache: int, key: str, times: int = 1) -> None:
        """Begin a call, and take so many steps of it."""
        going = Going(self.caches[cache].reader.value(self.call(key), self.caches[cache].drive()))
        self.asked.append(Asked(cache, key, self.known[cache][key], going))
        self.go_on(self.asked[-1], times)

    def ask_anew(self, cache: int, key: str, times: int = 1) -> None:
        """As :meth:`ask`, for a refresh: nobody but who calls this knows that there is something new."""
        self.truth[key] += 1
        going = Going(self.caches[cache].reader.refresh(self.call(key), self.caches[cache].drive()))
        self.asked.append(Asked(cache, key, self.truth[key], going, refresh=True))
        self.go_on(self.asked[-1], times)

    def go_on(self, asked: Asked, times: int = 1) -> None:
        """Take so many steps of a call, and look at what it got when it has ended."""
        if asked.going.running or asked.going.done:
            return  # what comes between a write and itself
        if asked.refresh:
            self.listen()
        while times and not asked.going.done:
            asked.going.go_on()
            times -= 1
        if asked.refresh:
            # Which tells what it has loaded.
            self.drain({asked.key: asked.known})
        else:
            self._unheard = True
        if not asked.going.done:
            return
        self.asked.remove(asked)
        if asked.going.error is not None:
            raise asked.going.error
        value = asked.going.value[1] if asked.refresh else asked.going.value
        assert value >= asked.known, f"{asked} got {value}"
        if asked.refresh:
            self.wrote(asked.cache, {asked.key: asked.known})

    # Writes.

    def writes(self, key: str, how: str) -> dict[str, int]:
        """The truth is another one: that of a row, or of all; which is then to be told."""
        self.listen()
        keys = [key] if how in ("drop", "put") else self.keys
        for each in keys:
            self.truth[each] += 1
        return {each: self.truth[each] for each in keys}

    def tell(self, cache: int, key: str, how: str) -> None:
        """Tell the others of it."""
        coherence = self.caches[cache].coherence
        match how:
            case "drop":
                coherence.drop(key)
            case "put":
                coherence.put(key, b"", self.truth[key], None, (TAG,))
            case "tag":
                coherence.drop_tag(TAG)
            case _:
                assert how == "clear"
                coherence.clear()

    def wrote(self, cache: int, written: Mapping[str, int]) -> None:
        """It was told, as far as that could be done."""
        self.learn(cache, written)
        for each, number in written.items():
            self.written[each] = max(self.written[each], number)

    # Messages and faults.

    def hear(self, cache: int, count: int) -> None:
        """Hear so many of the messages that are on their way to a process."""
        self.listen()
        for _ in range(count):
            message = self.caches[cache].hear()
            if message is None:
                break
            self.learn(cache, self.told.get(message[1], {}))

    def cut(self, cache: int) -> None:
        """A process loses the server, and what is on its way."""
        self.listen()
        self.caches[cache].cut()

    def heal(self, cache: int) -> None:
        """It has the server again, and has missed what was said meanwhile."""
        self.listen()
        self.caches[cache].heal()

    def apply(self, cache: int, which: int) -> None:
        """Let a process do a job of the lane; 0 is the newest."""
        if self.lane:
            message = self.lane[-1 - which % len(self.lane)]
            id, truth = message[:14].decode(), self.truth.copy()
            told = self.caches[cache].coherence.apply(message)
            self._unheard = True
            if told:
                # What has not been broadcast has a version of its process's own, which wrong clocks make worthless.
                self.learn(cache, self.told.get(message, {}))
            else:
                # It is owed here from now on, and paid above whatever there is.
                self.learn(cache, {each: truth[each] for each in self.keys if id == each or id not in self.keys})

    def forget(self, *keys: Any) -> None:
        """The server knows no more of this."""
        client: Any = self.connection.client
        if keys:
            client.delete(*keys)

    def end_a_lease(self, key: str) -> None:
        """As when its leader is held up for longer than that, or is dead."""
        client: Any = self.connection.client
        flight = cache_key(self.table, key, "flight")
        if client.exists(flight):
            client.setrange(flight, 15, "0000000000001")
        for cache in self.caches:
            cache.leases_ended += 1

    # The end.

    def settle(self) -> None:
        """Whatever was cut is healed, and whoever has asked gets an answer."""
        for number, cache in enumerate(self.caches):
            cache.reach.losing = cache.reach.missing = False
            if cache.reach.cut:
                self.heal(number)
            cache.reach.ask(lambda store: None)
            self._unheard = True
        for leases_end in (False, True):
            # Also where nobody waits: whoever asks next would, for a leader who could not give his lease up.
            for key in self.keys if leases_end else ():
                self.end_a_lease(key)
            for _ in range(100):
                if not self.asked:
                    break
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
                for key in self.keys:
                    value = run(cache.reader.value(self.call(key), StraightDrive()))
                    assert value >= self.known[number][key], f"process {number} has {value}, and knows {self.known}"
                    self._unheard = True
                    assert not last or value >= self.written[key], f"process {number} has {value}, {self.written}"
            for number in range(len(self.caches)):
                self.hear(number, 1000)
