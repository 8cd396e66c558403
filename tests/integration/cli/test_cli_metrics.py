"""``metrics`` and ``counts`` of the ``echomq`` command."""

from __future__ import annotations

import re

import pytest
from support.shell import Shell, stock
from wire.handwriting import Wire

from echomq_tasks.queue import Queue

#: A sample of the Prometheus text format 0.0.4: name, label pairs, value.
_SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)\{queue="((?:[^"\\\n]|\\["\\n])*)"\} (\S+)')


def samples(text: str) -> dict[tuple[str, str], float]:
    """Read an exposition as strictly as its format says.

    Each metric is described once, before its samples, which stand together; none is there twice.
    """
    assert text.endswith("\n")
    found: dict[tuple[str, str], float] = {}
    current, helped = "", ""
    for line in text.splitlines():
        if matched := re.fullmatch(r"# HELP (\S+) (.+)", line):
            helped = matched[1]
        elif matched := re.fullmatch(r"# TYPE (\S+) (counter|gauge)", line):
            current = matched[1]
            assert helped == current
            assert current not in {name for name, _ in found}
            assert (matched[2] == "counter") == current.endswith("_total")
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample[1] == current
            assert (sample[1], sample[2]) not in found
            found[sample[1], sample[2]] = float(sample[3])
    return found


def test_metrics_are_the_queues_own(echomq: Shell, queue: Queue, wire: Wire) -> None:
    had = stock(queue)
    wire.come_due(had.scheduled)
    shown = echomq("metrics", queue.name, "--json").json[queue.name]
    ages = {name: shown.pop(name) for name in ("oldest_waiting", "oldest_dead")}
    assert shown == {
        "completed": 0, "failed": 3, "waiting": 6, "in_lanes": 2, "active": 1, "scheduled": 1, "late": 1, "dead": 3,
        "lanes": 1, "paused": False, "awaiting": 1,
    }  # fmt: skip
    assert all(age >= 0 for age in ages.values())
    said = echomq("metrics", queue.name)
    assert said.lines[0] == queue.name
    assert {line[2:18].strip(): line[18:].strip() for line in said.lines[1:]}["in lanes"] == "2"


def test_the_exposition_is_valid_and_has_every_queue(echomq: Shell, queue: Queue) -> None:
    stock(queue)
    other = Queue("other.queue", queue.connection)
    other.enqueue("p")
    other.complete(other.claim().jobs[0])
    other.pause()
    for arguments in ((), (queue.name, "other.queue"), (queue.name, "other.queue", queue.name)):
        said = echomq("metrics", *arguments, "--prometheus")
        assert (said.code, said.err) == (0, "")
        found = samples(said.out)
        assert {label for _, label in found} == {queue.name, "other.queue"}
        assert found["echomq_queue_completed_total", "other.queue"] == 1
        assert found["echomq_queue_paused", "other.queue"] == 1
        assert found["echomq_queue_dead", queue.name] == 3
        assert found["echomq_queue_awaiting", queue.name] == 1
        assert found["echomq_queue_failed_total", queue.name] == 3
        assert ("echomq_queue_oldest_waiting_seconds", queue.name) in found
        assert ("echomq_queue_oldest_waiting_seconds", "other.queue") not in found


@pytest.mark.parametrize("command", ["metrics", "counts", "info"])
def test_a_queue_that_is_not_there_is_told_and_the_others_are_shown(echomq: Shell, queue: Queue, command: str) -> None:
    queue.enqueue("p")
    alone = echomq(command, "not-there", "--json")
    assert alone.code == 1
    assert (alone.json["queues"] if command == "info" else alone.json) == {}
    assert alone.err.startswith("echomq: there is no queue 'not-there' on ")
    assert len(alone.err.splitlines()) == 1
    both = echomq(command, "not-there", queue.name, "not-there", "--json")
    assert (both.code, both.err) == (1, alone.err)
    assert list(both.json["queues"] if command == "info" else both.json) == [queue.name]
    assert queue.name in echomq(command, queue.name, "not-there").out
    there = echomq(command, queue.name, queue.name)
    assert (there.code, there.err) == (0, "")


def test_of_queues_that_are_not_there_no_table_and_no_sample_is_printed(echomq: Shell, queue: Queue) -> None:
    assert echomq("counts", "not-there").out == ""
    assert echomq("metrics", "not-there").out == ""
    assert samples(echomq("metrics", "not-there", "--prometheus").out) == {}
    assert "no queues yet" not in echomq("info", "not-there").out


def test_a_server_without_queues_exposes_no_samples(echomq: Shell, queue: Queue) -> None:
    assert samples(echomq("metrics", "--prometheus").out) == {}
    assert echomq("metrics").lines == ["no queues yet"]
    assert echomq("metrics", "--json").json == {}


def test_json_and_prometheus_together_are_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)("metrics", "--json", "--prometheus")
    assert (said.code, said.out) == (2, "")


def test_counts_is_the_table_of_info(echomq: Shell, queue: Queue) -> None:
    stock(queue)
    counts = echomq("counts", queue.name)
    assert counts.code == 0
    assert counts.lines == echomq("info", queue.name).lines[-2:]
    assert counts.lines[1].split() == [queue.name, "4", "2", "1", "1", "3", "0", "3"]
    assert echomq("counts", queue.name, "--json").json == echomq("info", queue.name, "--json").json["queues"]
    queue.pause()
    assert echomq("counts", queue.name).lines[1].split()[-1] == "paused"


@pytest.mark.parametrize(
    "command",
    ["pause q", "limits q", "lanes q", "lane q x --limit 2", "drain q --yes", "obliterate q --yes", "dead q",
     "dead q --purge --yes", "repeats q", "job q JOB0KHTOWnGLuC", "remove q JOB0KHTOWnGLuC", "metrics", "counts q"],
)  # fmt: skip
def test_a_server_that_is_away_is_one_line(capsys: pytest.CaptureFixture[str], command: str) -> None:
    said = Shell("valkey://127.0.0.1:1?connect_timeout=0.5", capsys)(*command.split())
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("echomq: ")
    assert len(said.err.splitlines()) == 1
