"""``job``, ``cancel``, ``reprocess``, ``remove``, ``dead`` and ``repeats`` of the ``echomq`` command."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import dramatiq
import pytest
from support.servers import ServerProcess
from support.shell import Shell, bury, message, stock
from support.workers import WORKERS
from wire.handwriting import Wire

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.connection import Connection
from echomq_tasks.queue import Queue, State, Unique
from echomq_tasks.results import result_id

ABSENT = "JOB0KHTOWnGLuC"
MESSAGE = "0d2c5f0e-5c0f-4f0e-8f43-6f2a4b9a8e11"


def backdate(wire: Wire, job: str, *, seconds: int) -> None:
    """Let a dead job have died so long ago."""
    wire.do("HSET", f"job:{job}", "died", wire.now_ms() - seconds * 1000)


# -- job ----------------------------------------------------------------------------------------------------------


def test_a_job_is_shown_with_all_that_is_kept_of_it(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    queue.update_progress(had.active, 0.4)
    said = echomq("job", queue.name, had.active)
    assert (said.code, said.err) == (0, "")
    facts = dict(line.split("  ", 1) for line in said.lines if "  " in line and not line.startswith(" "))
    assert {name: facts[name].strip() for name in ("job", "queue", "state", "progress", "tries")} == {
        "job": had.active, "queue": queue.name, "state": "active", "progress": "0.4",
        "tries": "claimed once, failed never",
    }  # fmt: skip
    assert "lease ends" in said.out
    assert "payload\n  runs\n" in said.out
    assert 'result\n  {\n    "a": 1\n  }\n' in said.out
    assert "log\n  a line\n" in said.out


def test_a_dead_jobs_message_is_laid_out_and_its_error_whole(echomq: Shell, queue: Queue) -> None:
    job = bury(queue, message("mail", {"to": "Zoë"}), "ValueError: bad\n  line two\x1b[2J")
    text = echomq("job", queue.name, job).out
    assert '  "actor_name": "mail",\n' in text
    assert '"to": "Zoë"' in text
    assert "last error\n  ValueError: bad\n    line two\\x1b[2J\n" in text
    assert "state  dead" in text


@pytest.mark.parametrize("payload", [b"\xff\xfe\x00", b"", b"[1, 2", b'"text"', b"[" * 100_000, b"a\tb\x00c\r\nd"])
def test_any_payload_is_shown_and_parses_as_json_output(echomq: Shell, queue: Queue, payload: bytes) -> None:
    job = queue.enqueue(payload).id
    said = echomq("job", queue.name, job)
    assert (said.code, said.err) == (0, "")
    assert not [each for each in said.out if not each.isprintable() and each != "\n"]
    shown = echomq("job", queue.name, job, "--json").json
    assert shown["id"] == job
    if payload == b"\xff\xfe\x00":
        assert (shown["payload"], shown["payload_base64"]) == (None, "//4A")
    else:
        assert shown["payload"].encode() == payload


def test_a_flow_parent_is_shown_with_its_children_and_a_child_with_its_parent(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    (child,) = [job for job in queue.claim(100) if job.id == had.children[0]]
    queue.complete(child, "7")
    said = echomq("job", queue.name, had.parent)
    assert "state  awaiting_children" in said.out
    assert f"children\n  {had.children[0]}  done\n  1 still to end\n" in said.out
    shown = echomq("job", queue.name, had.parent, "--json").json
    assert shown["children"] == {
        "outstanding": 1, "results": {had.children[0]: "7"}, "failures": {}, "ignored": {},
    }  # fmt: skip
    assert echomq("job", queue.name, had.children[1], "--json").json["parent"] == had.parent


def test_what_children_returned_is_shown_as_it_is_also_when_it_is_no_text(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    results = dict(zip(had.children, (b"\xff\xfe\x00", "\u20ac".encode()), strict=True))
    for job in queue.claim(100):
        if job.id in results:
            queue.complete(job, results[job.id])
    shown = echomq("job", queue.name, had.parent, "--json").json["children"]
    assert shown["results_base64"] == {had.children[0]: "//4A"}
    assert shown["results"] == {had.children[1]: "\u20ac"}


def test_a_job_in_a_lane_names_it(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    (line,) = [line for line in echomq("job", queue.name, had.in_lane[0]).lines if line.startswith("lane")]
    assert line.split()[1] == "acme"


def test_a_job_that_is_gone_is_told_but_its_result_is_shown(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("job", queue.name, ABSENT)
    assert (said.code, said.out) == (1, "")
    assert said.err.startswith(f"echomq: {ABSENT}: no such job")
    queue.store_result(ABSENT, "42")
    said = echomq("job", queue.name, ABSENT)
    assert said.code == 0
    assert "result\n  42\n" in said.out
    shown = echomq("job", queue.name, ABSENT, "--json").json
    assert (shown["state"], shown["result"]) == ("absent", "42")
    assert queue.state(had.active) is State.ACTIVE


def test_a_spoilt_result_does_not_hide_the_job(echomq: Shell, queue: Queue, wire: Wire) -> None:
    had = stock(queue)
    wire.do("SET", f"job:{had.waiting[0]}:result", "by hand")
    said = echomq("job", queue.name, had.waiting[0])
    assert said.code == 0
    assert "payload\n  one\n" in said.out
    assert "is no list" in said.err


def test_the_result_of_an_actors_job_is_shown_by_its_messages_id(echomq: Shell, queue: Queue) -> None:
    for odd in (MESSAGE, "a message, 7\x1b[2J"):
        queue.enqueue("p")
        said = echomq("job", queue.name, odd)
        assert (said.code, said.out) == (1, "")
        assert "no result is kept for a message" in said.err
        assert "\x1b" not in said.err
        queue.store_result(result_id(odd), "[3]")
        said = echomq("job", queue.name, odd)
        assert (said.code, said.err) == (0, "")
        assert "\x1b" not in said.out
        assert said.out.endswith("result\n  [\n    3\n  ]\n")
        shown = echomq("job", queue.name, odd, "--json").json
        assert shown == {"queue": queue.name, "message_id": odd, "result": "[3]"}


def test_a_spoilt_result_of_a_message_is_told(echomq: Shell, queue: Queue, wire: Wire) -> None:
    queue.enqueue("p")
    wire.do("SET", f"job:{result_id(MESSAGE)}:result", "by hand")
    said = echomq("job", queue.name, MESSAGE)
    assert (said.code, said.out) == (1, "")
    assert "is no list" in said.err


def test_a_message_of_a_queue_that_is_not_there_is_told_so(echomq: Shell, queue: Queue) -> None:
    assert "there is no queue" in echomq("job", queue.name, MESSAGE).err


@pytest.mark.parametrize("bad", ["", "JOB", "JOB0KHTOWnGLu", "JOB-1", "a\udcff"])
def test_what_is_neither_a_job_id_nor_a_messages_is_a_usage_error(echomq: Shell, queue: Queue, bad: str) -> None:
    said = echomq("job", queue.name, bad)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("echomq job: ")


@pytest.mark.parametrize("command", ["cancel", "reprocess", "remove"])
def test_what_is_no_job_id_is_a_usage_error_and_no_job_is_touched(
    echomq: Shell, queue: Queue, wire: Wire, command: str
) -> None:
    had = stock(queue)
    before = wire.dumps()
    said = echomq(command, queue.name, had.waiting[0], MESSAGE)
    assert (said.code, said.out) == (2, "")
    assert f"{MESSAGE!r} is not a JOB id" in said.err
    assert "It looks like a message id" in said.err
    assert wire.dumps() == before


# -- cancel, reprocess, remove ------------------------------------------------------------------------------------


def test_cancel_tells_what_became_of_each_job(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("cancel", queue.name, had.waiting[0], had.active, had.dead[0], ABSENT, had.scheduled)
    assert said.code == 1
    assert said.lines == [
        f"{had.waiting[0]}: removed: it had not started",
        f"{had.active}: it runs, was asked to stop, and will not run again",
        f"{had.scheduled}: removed: it had not started",
    ]
    dead, gone = said.err.splitlines()
    assert dead == (f"echomq: {had.dead[0]}: it is dead already: `echomq remove {queue.name} {had.dead[0]}` drops it")
    assert gone.startswith(f"echomq: {ABSENT}: no such job")
    info = queue.get(had.active)
    assert info is not None
    assert info.cancelled
    assert queue.state(had.waiting[0]) is State.ABSENT
    assert echomq("cancel", queue.name, had.waiting[1]).code == 0


def test_remove_takes_what_does_not_run_and_says_what_to_do_with_the_rest(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("remove", queue.name, had.active, had.dead[0], had.in_lane[0], had.dead[0])
    assert said.code == 1
    assert said.lines == [f"{had.dead[0]}: removed", f"{had.in_lane[0]}: removed"]
    assert said.err == (
        f"echomq: {had.active}: a worker runs it: `echomq cancel {queue.name} {had.active}` asks it to stop, for good\n"
    )
    assert queue.state(had.active) is State.ACTIVE
    assert echomq("remove", queue.name, had.dead[0]).code == 1
    assert echomq("remove", queue.name, had.dead[1]).code == 0


def test_reprocess_gives_an_actors_message_all_of_its_retries_back(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("reprocess", queue.name, had.dead[0], had.active, ABSENT)
    assert said.code == 1
    assert said.lines == [f"{had.dead[0]}: runs again"]
    active, gone = said.err.splitlines()
    assert active == f"echomq: {had.active}: it is active, not dead: nothing to reprocess"
    assert "no such job" in gone
    info = queue.get(had.dead[0])
    assert info is not None
    assert info.state is State.PENDING
    assert json.loads(info.payload)["options"] == {}
    assert json.loads(info.payload)["args"] == [0]


@pytest.mark.parametrize(
    "payload", [b"\xff", b'{"options": {"retries": 3}, "b":1}', b"[1]", b'{"actor_name": "a", "options": 7}']
)
def test_reprocess_leaves_a_payload_that_is_no_message_as_it_is(echomq: Shell, queue: Queue, payload: bytes) -> None:
    for command in (["reprocess"], ["dead", "--retry", "--yes"]):
        job = bury(queue, payload, "E")
        verb, *rest = command
        assert echomq(verb, queue.name, *([job] if verb == "reprocess" else rest)).code == 0
        (claimed,) = queue.claim().jobs
        assert (claimed.id, claimed.payload) == (job, payload)
        queue.complete(claimed)


@pytest.mark.parametrize("worker_kind", WORKERS)
def test_a_reprocessed_message_is_tried_as_often_again(
    standalone: Connection, server: ServerProcess, queue_name: str, capsys: pytest.CaptureFixture[str], worker_kind: str
) -> None:
    echomq = Shell(server.url, capsys)
    broker = EchoMQBroker(server.url)
    queue = Queue(queue_name, standalone)
    seen: list[int] = []

    @dramatiq.actor(broker=broker, queue_name=queue_name, max_retries=2, min_backoff=1, max_backoff=1)
    def fail() -> None:
        seen.append(1)
        raise ValueError("no")

    worker = WORKERS[worker_kind](broker, worker_threads=1)
    worker.start()
    try:
        fail.send()
        broker.join(queue_name, timeout=20_000)
        assert len(seen) == 3
        (job,) = queue.browse(State.DEAD)
        assert echomq("reprocess", queue_name, job).code == 0
        broker.join(queue_name, timeout=20_000)
        assert len(seen) == 6
        assert echomq("dead", queue_name, "--retry", "--yes").code == 0
        broker.join(queue_name, timeout=20_000)
        assert len(seen) == 9
    finally:
        worker.stop()
        broker.close()


# -- dead ---------------------------------------------------------------------------------------------------------


def test_the_dead_are_listed_newest_first_each_in_one_line(echomq: Shell, queue: Queue, wire: Wire) -> None:
    dead = [bury(queue, message("mail"), "TimeoutError: slow"), bury(queue, message("pdf"), "E")]
    backdate(wire, dead[0], seconds=3 * 86_400 + 7200 + 5)
    evil = bury(queue, b"\xff", "first\x1b[31m\nsecond")
    said = echomq("dead", queue.name)
    head, *rows = said.lines
    assert head.split("  ")[0] == "job"
    assert [row.split()[0] for row in rows] == [evil, *reversed(dead)]
    assert rows[0].split("  ")[-1] == "first\\x1b[31m"
    assert "  -  " in rows[0]
    assert "3d 2h" in rows[-1]
    assert "TimeoutError: slow" in rows[-1]


def test_the_dead_are_chosen_by_actor_error_age_and_number(echomq: Shell, queue: Queue, wire: Wire) -> None:
    had = stock(queue)
    backdate(wire, had.dead[0], seconds=3 * 86_400)

    def chosen(*options: str) -> list[str]:
        return [job["id"] for job in echomq("dead", queue.name, "--json", *options).json]

    assert chosen() == had.dead[::-1]
    assert chosen("--actor", "mail") == [had.dead[1], had.dead[0]]
    assert chosen("--actor", "mai") == []
    assert chosen("--error", "Timeout") == [had.dead[0]]
    assert chosen("--older-than", "2d") == [had.dead[0]]
    assert chosen("--older-than", "4d") == []
    assert chosen("--older-than", "259100") == [had.dead[0]]
    assert chosen("--limit", "2") == [had.dead[2], had.dead[1]]
    assert chosen("--actor", "mail", "--limit", "1") == [had.dead[1]]
    said = echomq("dead", queue.name, "--actor", "nobody")
    assert (said.code, said.lines) == (0, [f"{queue.name}: no dead job is meant by this"])


def test_json_of_the_dead_has_what_a_program_needs(echomq: Shell, queue: Queue) -> None:
    job = bury(queue, message("mail", 1), "E: x")
    (shown,) = echomq("dead", queue.name, "--json").json
    assert (shown["id"], shown["state"], shown["last_error"]) == (job, "dead", "E: x")
    assert json.loads(shown["payload"])["actor_name"] == "mail"
    assert datetime.fromisoformat(shown["died"]).tzinfo is not None
    assert datetime.fromisoformat(shown["minted"]) <= datetime.now(UTC)


def test_retry_acts_on_the_selection_only(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("dead", queue.name, "--actor", "mail", "--retry", "--yes")
    assert said.code == 0
    assert said.lines == [f"This lets 2 dead jobs of {queue.name} run again:", "  2 mail", "2 jobs run again."]
    assert [queue.state(job) for job in had.dead] == [State.PENDING, State.PENDING, State.DEAD]
    for info in queue.get_many(had.dead[:2]):
        assert info is not None
        assert json.loads(info.payload)["options"] == {}


def test_purge_honours_the_limit_and_drops_the_rows(echomq: Shell, queue: Queue) -> None:
    had = stock(queue)
    said = echomq("dead", queue.name, "--limit", "1", "--purge", "--yes")
    assert (said.code, said.lines[-1]) == (0, "Dropped 1 dead job.")
    assert [queue.state(job) for job in had.dead] == [State.DEAD, State.DEAD, State.ABSENT]
    assert echomq("dead", queue.name, "--purge", "--yes").lines[-1] == "Dropped 2 dead jobs."
    said = echomq("dead", queue.name, "--purge", "--yes")
    assert (said.code, said.lines) == (0, [f"{queue.name}: no dead jobs, nothing to do."])


@pytest.mark.parametrize("act", ["--purge", "--retry"])
def test_a_job_that_changed_while_the_question_stood_is_left_alone(
    echomq: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    dead = [bury(queue, message("mail", number), "E") for number in range(3)]
    late: list[str] = []

    def meanwhile(options: object) -> bool:
        late.append(bury(queue, message("mail"), "E"))
        queue.reprocess(dead[0])
        queue.remove(dead[1])
        return True

    monkeypatch.setattr("echomq_tasks.cli.dead.agreed", meanwhile)
    said = echomq("dead", queue.name, act, "--yes")
    assert said.code == 0
    assert said.lines[-1].endswith("2 jobs had been dealt with meanwhile.")
    assert [queue.state(job) for job in (dead[0], dead[1], late[0])] == [State.PENDING, State.ABSENT, State.DEAD]
    assert queue.state(dead[2]) is (State.PENDING if act == "--retry" else State.ABSENT)


def test_many_dead_jobs_are_listed_and_purged_over_many_pages(echomq: Shell, queue: Queue) -> None:
    queue.enqueue_many([message("mail", number) for number in range(450)])
    while claimed := queue.claim(200):
        for job in claimed:
            queue.retry(job, "E", max_retries=0)
    assert len(echomq("dead", queue.name).lines) == 451
    assert len(echomq("dead", queue.name, "--json").json) == 450
    assert echomq("dead", queue.name, "--purge", "--yes", "--limit", "449").lines[-1] == "Dropped 449 dead jobs."
    assert queue.counts().dead == 1


@pytest.mark.parametrize(
    "options", [["--retry", "--json"], ["--purge", "--json"], ["--retry", "--purge"], ["--yes"], ["--dry-run"],
                ["--limit", "0"], ["--actor", ""], ["--older-than", "-1"], ["--older-than", "9" * 20]],
)  # fmt: skip
def test_options_of_dead_that_contradict_each_other_are_a_usage_error(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    said = Shell("valkey://127.0.0.1:1", capsys)("dead", "q", *options)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("echomq dead: ")


def test_a_dead_job_whose_unique_key_another_holds_says_who_keeps_it_there(echomq: Shell, queue: Queue) -> None:
    once = Unique("key", until="done", ttl=60)
    dead = queue.enqueue("p", unique=once).id
    queue.retry(queue.claim().jobs[0], "no luck", max_retries=0)
    holder = queue.enqueue("p", unique=once).id
    said = echomq("reprocess", queue.name, dead)
    assert (said.code, said.out) == (1, "")
    assert "stays dead" in said.err
    assert holder in said.err
    queue.remove(holder)
    assert echomq("reprocess", queue.name, dead).lines == [f"{dead}: runs again"]


# -- repeats ------------------------------------------------------------------------------------------------------


def test_repeats_are_listed_in_order_with_their_next_run_in_local_time(
    echomq: Shell, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.repeat("report", "p", cron="0 8 * * MON-FRI", tz="Europe/Athens")
    queue.repeat("beat", "p", every=90, limit=10, group="acme")
    head, beat, report = echomq("repeats", queue.name).lines
    assert [word.strip() for word in head.split("  ") if word] == ["name", "next run", "in", "schedule", "fired"]
    assert beat.startswith("beat    ")
    assert beat.endswith("every 1m 30s                   0 of 10")
    assert "0 8 * * MON-FRI Europe/Athens" in report
    queue.repeat("hourly", "p", cron="0 * * * *")
    assert "0 * * * * UTC" in "\n".join(echomq("repeats", queue.name).lines)
    queue.cancel_repeat("hourly")
    (first, second) = queue.repeats()
    assert first.next_run.astimezone().strftime("%Y-%m-%d %H:%M:%S") in beat
    assert second.next_run.astimezone().strftime("%Y-%m-%d %H:%M:%S") in report
    shown = echomq("repeats", queue.name, "--json").json
    assert [each["name"] for each in shown] == ["beat", "report"]
    assert datetime.fromisoformat(shown[1]["next_run"]) == second.next_run


def test_a_repeats_payload_that_is_no_text_is_in_base64(echomq: Shell, queue: Queue) -> None:
    queue.repeat("beat", b"\xff\xfe\x00", every=90)
    queue.repeat("text", "\u20ac", every=99)
    beat, text = echomq("repeats", queue.name, "--json").json
    assert (beat["payload"], beat["payload_base64"]) == (None, "//4A")
    assert (text["payload"], "payload_base64" in text) == ("\u20ac", False)


@pytest.mark.parametrize("score", ["inf", "-inf", "1", "1e300"])
def test_a_repeat_that_a_hand_has_spoilt_is_listed_all_the_same(
    echomq: Shell, queue: Queue, wire: Wire, score: str
) -> None:
    queue.repeat("odd", "p", every=60)
    wire.do("ZADD", "repeat", score, "odd")
    wire.do("HSET", "repeat:odd", "every_ms", "soon")
    said = echomq("repeats", queue.name)
    assert said.code == 0
    assert "not readable" in said.lines[1]
    assert echomq("repeats", queue.name, "--json").json[0]["name"] == "odd"


def test_a_repeat_is_cancelled_by_name(echomq: Shell, queue: Queue) -> None:
    queue.repeat("beat", "p", every=90)
    said = echomq("repeats", queue.name, "--cancel", "beet")
    assert (said.code, said.err) == (1, f"echomq: {queue.name} has no repeat 'beet': it repeats beat\n")
    said = echomq("repeats", queue.name, "--cancel", "beat")
    assert (said.code, said.lines) == (0, ["beat: cancelled; jobs that it has admitted stay"])
    assert queue.repeats() == []
    queue.enqueue("p")
    assert echomq("repeats", queue.name).lines == [f"{queue.name} repeats nothing"]
    assert echomq("repeats", queue.name, "--json").json == []
    assert echomq("repeats", queue.name, "--cancel", "beat").err.endswith("it repeats nothing\n")
