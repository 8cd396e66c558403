"""Logs and groups: `python bus_log.py MEASURE VARIANTS URL RECORDS` prints the figures of each variant as JSON."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from bare import Command, bulk, ceiling, chunks
from rounds import TURNS, Figures, Meter, answer_for, in_turn, percentiles

from echomq_tasks import connect
from echomq_tasks.bus import Consumer, Delivery, Log

FIELDS = {"order": "1234567", "carrier": "dhl", "state": "left the depot"}
#: As our records stand on the wire, an id among their fields.
PAIRS = [text for pair in {"id": "EVT0NvUoFDD04G", **FIELDS}.items() for text in pair]
Run = Callable[[Command], list[Any]]


def append(names: list[str], url: str, records: int) -> dict[str, Figures]:
    """Append to a log that nobody reads: XADD, or ours."""
    meters = {name: Meter(url, "record") for name in names}
    bares = {name: ceiling(name, url) for name in names}
    with connect(url) as connection:
        logs = {name: Log("bench", name, connection) for name in names}
        for log in logs.values():
            # What only the first call does.
            log.append(FIELDS)

        def step(name: str) -> None:
            number, log = records // TURNS * bulk(name), logs[name]
            with meters[name].measuring(number):
                if bare := bares[name]:
                    sender, size = bare
                    for chunk in chunks(range(number), size):
                        sender.run(*[("XADD", log.key, "*", *PAIRS) for _ in chunk])
                elif name == "append":
                    for _ in range(number):
                        log.append(FIELDS)
                else:
                    for chunk in chunks(range(number), int(name.removeprefix("many-"))):
                        log.append_many([FIELDS for _ in chunk])

        in_turn(names, step)
        for name, log in logs.items():
            assert log.length() == records // TURNS * bulk(name) * TURNS + 1
    return {name: meter.figures() for name, meter in meters.items()}


def read(names: list[str], url: str, records: int) -> dict[str, Figures]:
    """Read a log from its oldest record to its newest: XRANGE by thousands, or ours."""
    meters = {name: Meter(url, "record") for name in names}
    bares = {name: ceiling(name, url) for name in names}
    with connect(url) as connection:
        log = filled(Log("bench", "shipped", connection), records)

        def step(name: str) -> None:
            with meters[name].measuring(records):
                if bare := bares[name]:
                    found = ranges(bare[0].run, log.key, bare[1])
                elif name == "read":
                    found = sum(1 for _ in log.read())
                else:
                    with log.tail("head", follow=False) as tail:
                        found = sum(1 for _ in tail)
            assert found == records, found

        in_turn(names, step)
    return {name: meter.figures() for name, meter in meters.items()}


def ranges(run: Run, key: bytes, count: int) -> int:
    """How many entries XRANGE finds, so many in one go."""
    found, begin = 0, "-"
    while entries := run(("XRANGE", key, begin, "+", "COUNT", count))[0]:
        found += len(entries)
        begin = f"({entries[-1][0].decode()}"
    return found


def group(names: list[str], url: str, records: int) -> dict[str, Figures]:
    """Work off a log as the only member of a group: XREADGROUP and XACK, or a Consumer whose handler does nothing."""
    meters = {name: Meter(url, "record") for name in names}
    bares = {name: ceiling(name, url) for name in names}
    with connect(url) as connection:
        logs = {name: Log("bench", name, connection) for name in names}
        for log in logs.values():
            connection.client.xgroup_create(log.key, "readers", "0", mkstream=True)

        def step(name: str) -> None:
            number = records // TURNS * bulk(name)
            log = filled(logs[name], number)
            with meters[name].measuring(number):
                if bare := bares[name]:
                    done = acknowledged(bare[0].run, log.key, bare[1])
                else:
                    done = consumed(log, int(name.removeprefix("consumer-")), number)
            assert done == number, done
            assert connection.client.xpending(log.key, "readers")["pending"] == 0

        in_turn(names, step)
    return {name: meter.figures() for name, meter in meters.items()}


def acknowledged(run: Run, key: bytes, count: int) -> int:
    """How many entries a member of a group reads and acknowledges, so many in one go."""
    done = 0
    command = ("XREADGROUP", "GROUP", "readers", "me", "COUNT", count, "STREAMS", key, ">")
    while reply := run(command)[0]:
        ids = [entry[0] for entry in reply[0][1]]
        run(("XACK", key, "readers", *ids))
        done += len(ids)
    return done


def consumed(log: Log, batch: int, records: int) -> int:
    """How many entries a Consumer handles until it has seen all."""
    done = 0

    def handler(delivery: Delivery) -> None:
        nonlocal done
        done += 1
        if done == records:
            consumer.stop()

    consumer = Consumer(log, "readers", start="head", handler=handler, batch=batch)
    consumer.run()
    return done


def follow(names: list[str], url: str, records: int) -> dict[str, Figures]:
    """Milliseconds from append to the reader that waits for it, one record every 5 ms."""
    (name,) = names
    waits: list[float] = []
    done = threading.Event()

    def note(fields: Any) -> None:
        waits.append(time.perf_counter() - float(fields["sent"]))
        if len(waits) == records:
            done.set()

    def follow_tail() -> None:
        for record in tail:
            note(record.fields)

    with connect(url) as connection:
        log = Log("bench", "shipped", connection)
        log.append(FIELDS)
        tail = log.tail("new")
        consumer = Consumer(log, "readers", start="new", handler=lambda delivery: note(delivery.fields))
        work = consumer.run if name == "consumer" else follow_tail
        reader = threading.Thread(target=work)
        reader.start()
        time.sleep(0.5)
        for _ in range(records):
            log.append({"sent": repr(time.perf_counter())})
            time.sleep(0.005)
        assert done.wait(30)
        consumer.stop()
        tail.close()
        reader.join()
    return {name: percentiles("waited", waits)}


def filled(log: Log, records: int) -> Log:
    """The log with so many records."""
    for chunk in chunks(range(records), 1000):
        log.append_many([FIELDS for _ in chunk])
    return log


if __name__ == "__main__":
    answer_for({"append": append, "read": read, "group": group, "follow": follow})
