"""Whatever any runtime left in an id, a payload, an error or a reason: what is said of it is valid JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.hearing import Ear
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.events import EVENTS, Announcing, Event
from echomq_tasks.queue import Complete, Discard, Flow, NewJob, Queue, Retry, Settlement, Verdict

#: What trips up a writer of JSON or of UTF-8.
NASTY = [
    "", '"', "\\", "\\u0000", "\0", "\n", "\x7f", "\u2028", "/", "\ud800", "\udfff\ud800", "é", "\U0001f600", "\uffff",
    "\ufeff", "',\"job\":\"x", '","event":"failed', "}{", "null", "ö" * 600, "a" * 500 + "\U0001f600",
]  # fmt: skip
NASTY_BYTES = [
    b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf0\x9f\x98", b"\xe2\x82", b"\x80", b"a\xffb",
    b"\xf8\x88\x80\x80\x80", b"\xc3(", b"\xe0\x80\x80", b"\xf0\x80\x80\x80", b"\xef\xbf\xbd",
]  # fmt: skip
MANY = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
ANY = st.text(st.characters(), max_size=30)  # lone surrogates too
UNICODE = st.text(max_size=30)


def sound(text: str) -> str:
    """What is left of a text where only Unicode can be said."""
    return text.encode("utf-8", "replace").decode()


def mended(data: bytes) -> str:
    """What is left of bytes: each one that is in no valid sequence is a question mark."""
    found = ""
    while data:
        try:
            return found + data.decode()
        except UnicodeDecodeError as error:
            found += data[: error.start].decode() + "?"
            data = data[error.start + 1 :]
    return found


@pytest.fixture
def queue(standalone: Connection, queue_name: str) -> Queue:
    return Queue(queue_name, standalone, announcing=Announcing(EVENTS))


@pytest.fixture
def ear(standalone: Connection, queue_name: str) -> Iterator[Ear]:
    with Ear(standalone, queue_name) as opened:
        yield opened


@given(st.lists(ANY, min_size=40, max_size=40))
@example([*NASTY, *map(str.upper, NASTY)])
@MANY
@pytest.mark.parametrize("log", [None, "lifecycle"])
def test_any_text_about_a_run_is_said_as_it_is(queue: Queue, ear: Ear, log: str | None, texts: list[str]) -> None:
    queue.announcing.choose(EVENTS, log=log)
    queue.enqueue_many(["p"] * (3 * len(texts)))
    jobs = list(queue.claim(3 * len(texts)))
    ear.heard()
    ends: list[Settlement] = []
    expected = []
    for text in texts:
        about = {"actor": text, "error": text, "message": text, "x" + text: text}
        one, two, three = jobs.pop(0), jobs.pop(0), jobs.pop(0)
        ends += [Complete(one, about=about), Discard(two, about=about), Retry(three, text, max_retries=0)]
        said = {sound(name): sound(value) for name, value in about.items()}
        expected += [(one.id, "completed", said), (two.id, "cancelled", said)]
        expected += [(three.id, "failed", {"message": sound(text).partition("\n")[0][:500]} if text else {})]
    queue.settle(ends)
    heard = {event["job"]: event for event in ear.heard()}
    for job_id, name, said in expected:
        event = heard.pop(job_id)
        assert (event["event"], event["attempt"]) == (name, "1")
        assert said.items() <= event.items()
    assert heard == {}
    if log is not None:
        queue.connection.client.delete(f"emq:{{{queue.name}}}:stream:{log}")


@given(st.lists(UNICODE, min_size=20, max_size=20))
@example([sound(text) for text in NASTY])
@MANY
def test_any_progress_is_said_as_it_is(queue: Queue, ear: Ear, texts: list[str]) -> None:
    job_id = queue.enqueue("p").id
    ear.heard()
    for text in texts:
        queue.update_progress(job_id, text)
    assert [event["progress"] for event in ear.heard()] == texts


@given(st.lists(ANY, min_size=20, max_size=20), st.booleans())
@example(NASTY, True)
@example(NASTY, False)
@MANY
def test_any_actors_name_in_a_payload_is_said_as_it_is(queue: Queue, ear: Ear, names: list[str], ascii: bool) -> None:
    names = names if ascii else [sound(name) for name in names]
    jobs = [json.dumps({"args": [1], "actor_name": name}, ensure_ascii=ascii) for name in names]
    # As Dramatiq and we write it, too.
    jobs += [json.dumps({"actor_name": name}, ensure_ascii=ascii, separators=(",", ":")) for name in names]
    ids = [answer.id for answer in queue.enqueue_many(jobs)]
    heard = {event["job"]: event.get("actor") for event in ear.heard()}
    for job_id, name in zip(ids, names * 2, strict=True):
        # An escaped lone surrogate is no Unicode, and cjson cannot read it: the actor is not known then.
        assert heard[job_id] == (name if sound(name) == name else None)


PAYLOADS = [
    b"", b"{", b"[]", b"null", b'"actor_name"', b'{"actor_name":1}', b'{"actor_name":null}', b'{"actor_name":["a"]}',
    b'{"actor_name":"\xff"}', b'{"actor_name":"a\xffb","x":1}', b"{" * 5000, b'{"a":' * 3000, b'{"a":1e400}',
    b'{"queue_name":"q","actor_name":"\xc3\xa9"}', b'{"actor_name":"' + b"x" * 70_000 + b'"}', b"\x80\x02}",
]  # fmt: skip


@given(st.lists(st.binary(max_size=40) | st.binary(max_size=10).map(lambda name: b'{"actor_name":"%b"}' % name)))
@example(PAYLOADS)
@MANY
def test_any_payload_is_admitted_and_run_and_what_is_said_of_it_is_sound(
    queue: Queue, ear: Ear, payloads: list[bytes]
) -> None:
    ids = [answer.id for answer in queue.enqueue_many(payloads)]
    jobs = [*queue.claim(max(len(payloads), 1))]
    assert [job.payload for job in jobs] == payloads
    queue.complete_many(jobs)
    heard = ear.heard()
    for name in ("enqueued", "started", "completed"):
        assert [event["job"] for event in heard if event["event"] == name] == ids


IDS = st.binary(min_size=11, max_size=11).map(b"JOB".__add__)


@given(st.sets(IDS, min_size=20, max_size=20), st.lists(st.binary(max_size=30), min_size=20, max_size=20))
@example({b"JOB" + text.ljust(11, b"x")[:11] for text in NASTY_BYTES}, NASTY_BYTES)
@example({b"JOB" + text.encode("utf-8", "surrogatepass").ljust(11, b"\0")[:11] for text in NASTY}, NASTY_BYTES)
@MANY
def test_ids_and_reasons_that_other_runtimes_left_are_said_soundly(
    queue: Queue, ear: Ear, standalone: Connection, ids: set[bytes], reasons: list[bytes]
) -> None:
    wire = Wire(standalone, queue.name)
    children = sorted(ids)
    standalone.client.delete(f"{wire.base}active", f"{wire.base}pending", f"{wire.base}wake")
    # Jobs whose lease is over, and parents in this queue whose children failed elsewhere.
    pipeline: Any = standalone.client.pipeline(transaction=False)
    for child in children:
        pipeline.hset(
            wire.base.encode() + b"job:" + child, mapping={"state": "active", "attempts": "1", "payload": b"\xff"}
        )
        pipeline.zadd(f"{wire.base}active", {child: 1})
    pipeline.execute()
    assert queue.reap(1000) == len(children)
    heard = ear.heard()
    assert [(event["event"], event["job"]) for event in heard] == [("stalled", mended(child)) for child in children]
    quiet = Queue(queue.name, standalone, announcing=Announcing(()))
    parents = [
        quiet.add_flow(Flow(NewJob("p"), [Flow(NewJob("p", delay=3600), queue=f"{queue.name}.far")])) for _ in reasons
    ]
    for parent, child, reason in zip(parents, children, reasons, strict=False):
        queue.run("flow_deliver", parent.id, "fp", child, reason)
    said = [(event["event"], event["job"], event["message"]) for event in ear.heard()]
    assert said == [
        ("failed", parent.id, mended(b"child " + child + b" failed: " + reason))
        for parent, child, reason in zip(parents, children, reasons, strict=False)
    ]
    quiet.drain("pending", "lanes", "scheduled", "dead", "active", "awaiting")


def test_a_long_reason_is_said_in_part_and_is_sound_where_it_is_cut(queue: Queue, ear: Ear) -> None:
    for shift in range(4):
        parent = queue.add_flow(Flow(NewJob("p"), [NewJob("p")]))
        (job,) = queue.claim()
        ear.heard()
        queue.retry(job, "x" * shift + "\U0001f600" * 1000, max_retries=0)
        of_child, of_parent = ear.heard()
        assert of_child["message"] == ("x" * shift + "\U0001f600" * 1000)[:500]
        assert of_parent["job"] == parent.id
        assert 900 < len(of_parent["message"].encode()) <= 1000
        assert of_parent["message"].startswith(f"child {job.id} failed: {'x' * shift}\U0001f600")


def test_what_is_said_is_what_an_event_reads(queue: Queue, ear: Ear) -> None:
    queue.enqueue('{"actor_name":"s\\u00e9nd"}')
    (job,) = queue.claim()
    ear.heard()
    about = {"actor": "sénd", "duration_ms": "1.500", "error": "ValueError", "message": "\ud800 no", "tenant": "acme"}
    assert queue.settle([Retry(job, "no", 2.0, about=about)]) == [Verdict.SCHEDULED]
    (data,) = ear.raw()
    event = Event.read(data, queue.name)
    assert event == Event(
        "retried", queue.name, job=job.id, actor="sénd", attempt=1, at=event.at if event else None, duration=0.0015,
        delay=2.0, error="ValueError", message="? no", more={"tenant": "acme"},
    )  # fmt: skip
