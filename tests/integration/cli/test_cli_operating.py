"""``pause``, ``resume``, ``limits``, ``lanes``, ``lane``, ``drain`` and ``obliterate`` of the ``echomq`` command."""

from __future__ import annotations

import pytest
from support.shell import Shell, stock
from wire.handwriting import Wire

from echomq_tasks.identity import group_id
from echomq_tasks.queue import Queue, State

ALL = ["pause", "resume", "limits", "lanes", "drain", "obliterate"]


def test_a_paused_queue_hands_out_nothing_until_it_is_resumed(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    assert echomq("pause", queue.name).lines == [f"{queue.name}: paused"]
    assert not queue.claim()
    assert echomq("pause", queue.name).lines == [f"{queue.name}: was paused already"]
    assert echomq("resume", queue.name).lines == [f"{queue.name}: runs again"]
    assert len(queue.claim()) == 1
    assert echomq("resume", queue.name).lines == [f"{queue.name}: was not paused"]


def test_several_queues_are_paused_at_once_and_one_that_is_new_is_told(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    said = echomq("pause", queue.name, "not-yet", queue.name)
    assert (said.code, said.err) == (0, "")
    assert said.lines == [f"{queue.name}: paused", "not-yet: paused (it has no jobs yet)"]
    assert Queue("not-yet", queue.connection).limits().paused


def test_limits_are_shown_set_and_removed_each_by_itself(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    none = {"queue": queue.name, "rate": None, "per": 1.0, "concurrency": None, "paused": False}
    assert echomq("limits", queue.name, "--json").json == none
    said = echomq("limits", queue.name, "--rate", "100", "--per", "10m", "--concurrency", "1")
    assert (said.code, said.err) == (0, "")
    assert [line.split(None, 1) for line in said.lines] == [
        ["rate", "100 in 10m"], ["concurrency", "1 at once"], ["paused", "no"],
    ]  # fmt: skip
    queue.enqueue("q")
    assert len(queue.claim(2)) == 1
    assert echomq("limits", queue.name, "--rate", "none", "--json").json["concurrency"] == 1
    said = echomq("limits", queue.name, "--concurrency", "NONE", "--json")
    assert (said.json["rate"], said.json["concurrency"]) == (None, None)


def test_limits_of_a_queue_without_jobs_are_set_and_it_is_said(echomq: Shell, queue: Queue) -> None:
    said = echomq("limits", queue.name, "--concurrency", "3", "--json")
    assert (said.code, said.json["concurrency"]) == (0, 3)
    assert said.err == f"echomq: {queue.name} has no jobs yet\n"
    assert queue.limits().concurrency == 3


def test_looking_at_the_limits_of_a_new_queue_writes_nothing(echomq: Shell, queue: Queue, wire: Wire) -> None:
    assert echomq("limits", queue.name).code == 0
    assert echomq("lane", queue.name, "any").code == 0
    assert wire.everything() == {}


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (["limits", "q", "--per", "5"], "--per goes with --rate N"),
        (["limits", "q", "--rate", "none", "--per", "5"], "--per goes with --rate N"),
        (["limits", "q", "--rate", "0"], "pause it instead"),
        (["limits", "q", "--rate", "-1"], "--rate"),
        (["limits", "q", "--rate", "1.5"], "must be a whole number from 1 up, or none, not '1.5'"),
        (["limits", "q", "--rate", "5", "--per", "0"], "a millisecond"),
        (["limits", "q", "--rate", "5", "--per", "soon"], "a duration is as 90 (seconds), 10m, 2h or 7d, not 'soon'"),
        (["limits", "a b"], "the queue name 'a b' is not allowed"),
        (["pause", "emq"], "reserved"),
        (["pause"], "QUEUE"),
        (["lane", "q", ""], "a group is a non-empty string"),
        (["lane", "q", "x", "--weight", "1001"], "from 1 to 1000, or none"),
        (["lane", "q", "x", "--pause", "--resume"], "not allowed with"),
        (["lane", "q", "x", "--drain", "--limit", "2"], "--drain goes alone"),
        (["lane", "q", "x", "--drain", "--json"], "--drain prints no data"),
        (["lane", "q", "x", "--yes"], "are for --drain"),
        (["drain", "q", "--active"], "unrecognized arguments: --active"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error_before_the_server_is_asked(
    capsys: pytest.CaptureFixture[str], arguments: list[str], advice: str
) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)(*arguments)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(f"echomq {arguments[0]}: ")
    assert advice in said.err


def test_lanes_are_listed_with_their_settings(echomq: Shell, queue: Queue) -> None:
    for text in ("1", "2"):
        queue.enqueue(text, group="acme", group_limit=3)
    queue.enqueue("3", group="Zoë, Ltd.")
    queue.claim(1)
    queue.lane("acme").weight(7)
    queue.lane("Zoë, Ltd.").pause()
    said = echomq("lanes", queue.name)
    assert said.lines[0].split() == ["name", "depth", "active", "limit", "weight", "paused"]
    acme, zoe = sorted(said.lines[1:], key=lambda line: "Zo" in line)
    assert acme.split() == ["acme", "1", "1", "3", "7", "no"]
    assert zoe.split() == ["Zoë,", "Ltd.", "1", "0", "none", "1", "yes"]
    listed = {lane["name"]: lane for lane in echomq("lanes", queue.name, "--json").json}
    assert listed["acme"] == {
        "name": "acme", "group": group_id("acme"), "depth": 1, "active": 1, "limit": 3, "weight": 7, "paused": False,
    }  # fmt: skip


def test_a_lanes_name_cannot_drive_the_terminal_or_break_the_table(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p", group="evil\x1b[2J\n\u202elane")
    said = echomq("lanes", queue.name)
    assert len(said.lines) == 2
    assert said.lines[1].startswith("evil\\x1b[2J\\n\\u202elane  ")


def test_a_queue_without_lanes_says_so(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    said = echomq("lanes", queue.name)
    assert (said.code, said.lines) == (
        0,
        [f"{queue.name}: no lane has a job or a setting now; a job sent with group= opens one"],
    )
    assert echomq("lanes", queue.name, "--json").json == []


def test_one_lane_is_limited_weighed_paused_and_resumed(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    shown = echomq("lane", queue.name, "acme", "--limit", "2", "--weight", "9", "--pause", "--json").json
    assert (shown["limit"], shown["weight"], shown["paused"], shown["depth"]) == (2, 9, True, 2)
    assert shown["name"] == "acme"
    # The same one by its id, and a setting leaves the others alone.
    shown = echomq("lane", queue.name, group_id("acme"), "--resume", "--limit", "none", "--json").json
    assert (shown["limit"], shown["weight"], shown["paused"]) == (None, 9, False)
    facts = dict(line.split(None, 1) for line in echomq("lane", queue.name, "acme", "--weight", "none").lines)
    assert facts["weight"] == "1"
    assert facts["limit"] == "none"
    assert queue.state(had.in_lane[0]) is State.PENDING


def test_a_lane_that_is_not_there_is_told_and_may_be_set_up_all_the_same(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    said = echomq("lane", queue.name, "acmee")
    assert said.code == 0
    assert f"`echomq lanes {queue.name}` lists those that do" in said.err
    said = echomq("lane", queue.name, "acmee", "--limit", "4")
    assert (said.code, said.err) == (0, "")
    assert queue.lane("acmee").info().limit == 4


def test_that_a_lane_has_no_limit_may_be_a_setting_and_is_not_told_as_none(echomq: Shell, queue: Queue) -> None:
    queue.enqueue("p")
    echomq("lane", queue.name, "acme", "--limit", "none")
    said = echomq("lane", queue.name, "acme")
    assert (said.code, said.err) == (0, "")
    assert echomq("lanes", queue.name).lines[1].split() == ["acme", "0", "0", "none", "1", "no"]
    echomq("lane", queue.name, "acme", "--limit", "auto")
    assert "it has no setting" in echomq("lane", queue.name, "acme").err
    assert "no lane has a job or a setting now" in echomq("lanes", queue.name).out


def test_a_lane_is_drained_and_nothing_else(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    before = queue.counts()
    said = echomq("lane", queue.name, "acme", "--drain", "--yes")
    assert said.code == 0
    assert said.lines[0] == f"This drops 2 waiting jobs from the lane 'acme' of {queue.name}."
    assert said.lines[-1] == "Dropped 2 jobs."
    assert queue.get_many(had.in_lane) == [None, None]
    after = queue.counts()
    assert (after.in_lanes, after.pending, after.dead) == (0, before.pending, before.dead)
    assert echomq("lane", queue.name, "acme", "--drain", "--yes").lines == [
        f"No job waits in the lane 'acme' of {queue.name}."
    ]


def test_drain_says_what_it_drops_and_what_stays(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("drain", queue.name, "--yes")
    assert said.code == 0
    assert said.lines == [
        f"This drops 6 jobs from {queue.name}:", "  6 waiting (2 in lanes)", "What stays:", "  1 active",
        "  1 scheduled (dropped with --scheduled)", "  3 dead (dropped with --dead)", "Dropped 6 jobs.",
    ]  # fmt: skip
    assert queue.counts().waiting == 0
    assert [queue.state(job) for job in (had.active, had.scheduled, *had.dead)] == [
        State.ACTIVE, State.SCHEDULED, State.DEAD, State.DEAD, State.DEAD,
    ]  # fmt: skip
    assert [repeat.name for repeat in queue.repeats()] == ["nightly"]


def test_drain_takes_the_scheduled_and_the_dead_when_it_is_told_to(echomq: Shell, queue: Queue) -> None:
    stock(queue)
    assert echomq("drain", queue.name, "--yes", "--scheduled").lines[-1] == "Dropped 7 jobs."
    said = echomq("drain", queue.name, "--yes", "--dead")
    # The flow parent whose children were dropped has died of it.
    assert said.lines[-1] == "Dropped 4 jobs."
    counts = queue.counts()
    assert (counts.waiting, counts.scheduled, counts.dead, counts.active) == (0, 0, 0, 1)
    said = echomq("drain", queue.name, "--yes", "--dead", "--scheduled")
    assert (said.code, said.lines[0]) == (0, f"{queue.name}: there is nothing to drop.")


def test_obliterate_takes_a_paused_queue_and_leaves_no_key(echomq: Shell, queue: Queue, wire: Wire) -> None:
    stock(queue)
    queue.pause()
    said = echomq("obliterate", queue.name, "--yes", "--force")
    assert said.code == 0
    assert said.lines[1:] == [
        "and settings, and 12 jobs:", "  6 waiting (2 in lanes)", "  1 active", "  1 scheduled", "  3 dead",
        "  1 awaiting their children", f"Destroyed {queue.name} with 12 jobs.",
    ]  # fmt: skip
    assert list(wire.client.scan_iter(match=wire.base + "*", count=1000)) == []


@pytest.mark.parametrize("extra", [["--yes"], ["--dry-run"], ["--yes", "--force"]])
def test_obliterate_refuses_a_queue_that_is_not_paused(
    echomq: Shell, queue: Queue, wire: Wire, extra: list[str]
) -> None:
    stock(queue)
    before = wire.dumps()
    said = echomq("obliterate", queue.name, *extra)
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        f"echomq: {queue.name} is not paused: `echomq pause {queue.name}` first, and stop its producers\n"
    )
    assert wire.dumps() == before


def test_obliterate_refuses_while_jobs_run_unless_it_is_forced(echomq: Shell, queue: Queue, wire: Wire) -> None:
    stock(queue)
    queue.pause()
    before = wire.dumps()
    said = echomq("obliterate", queue.name, "--yes")
    assert (said.code, said.out) == (1, "")
    (line,) = said.err.splitlines()
    assert f"{queue.name} has 1 active job: wait until there is none" in line
    assert "--force" in line
    assert wire.dumps() == before


def test_a_resume_between_the_question_and_the_end_is_a_refusal_in_one_line(
    echomq: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("p")
    queue.pause()
    monkeypatch.setattr("echomq_tasks.cli.destroying.agreed", lambda options: queue.resume())
    said = echomq("obliterate", queue.name, "--yes")
    assert said.code == 1
    assert "not paused" in said.err
    assert len(said.err.splitlines()) == 1
    assert queue.counts().waiting == 1


def test_an_empty_paused_queue_is_obliterated_too(echomq: Shell, queue: Queue, wire: Wire) -> None:
    queue.pause()
    assert echomq("obliterate", queue.name, "--yes").lines[-1] == f"Destroyed {queue.name} with 0 jobs."
    assert wire.everything() == {}


@pytest.mark.parametrize(
    "arguments",
    [["drain"], ["drain", "--dry-run"], ["obliterate"], ["lanes"], ["lane", "x", "--drain"], ["repeats"], ["dead"],
     ["dead", "--retry"], ["repeats", "--cancel", "x"], ["job", "JOB0KHTOWnGLuC"], ["remove", "JOB0KHTOWnGLuC"],
     ["cancel", "JOB0KHTOWnGLuC"], ["reprocess", "JOB0KHTOWnGLuC"]],
)  # fmt: skip
def test_a_queue_that_is_not_there_is_told_with_the_one_that_was_meant(
    echomq: Shell, queue: Queue, wire: Wire, arguments: list[str]
) -> None:
    Queue("invoices", queue.connection).enqueue("p")
    before = wire.dumps()
    asks = arguments[0] in ("drain", "obliterate") or {"--drain", "--retry"} & set(arguments)
    command = [arguments[0], "invoises", *arguments[1:], *(["--yes"] if asks else [])]
    said = echomq(*command)
    assert (said.code, said.out) == (1, "")
    (line,) = said.err.splitlines()
    assert line.startswith("echomq: there is no queue 'invoises' on valkey")
    assert line.endswith("did you mean 'invoices'?")
    assert wire.dumps() == before


def test_a_queue_whose_workers_only_looked_for_jobs_is_not_there(echomq: Shell, queue: Queue) -> None:
    assert not queue.claim()
    said = echomq("drain", queue.name, "--yes")
    assert said.code == 1
    assert said.err.endswith("`echomq info` lists those that are there\n")


@pytest.mark.parametrize("kind", ["result", "stream", "repeat"])
def test_a_queue_that_has_nothing_but_one_key_is_there(echomq: Shell, queue: Queue, wire: Wire, kind: str) -> None:
    match kind:
        case "result":
            queue.store_result(queue.new_id(), "r")
        case "stream":
            wire.do("XADD", "stream:log", "1-1", "id", "x")
        case _:
            queue.repeat("r", "p", every=60)
    said = echomq("drain", queue.name, "--yes")
    assert (said.code, said.err) == (0, "")
