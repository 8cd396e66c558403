"""Events as Python sees them, and what a setting chooses."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks import signals
from echomq_tasks.errors import InvalidArgument
from echomq_tasks.events import CACHE_EVENTS, CONTROL_EVENTS, EVENTS, Announcing, Event, chosen_events, event_text
from echomq_tasks.identity import EPOCH_MS, Mint, brand, minted_at_ms

JOB = "JOB0NgWEfAEJfs"
UNICODE = st.text(max_size=20)
#: What a runtime of the wire writes: milliseconds, whole or to the microsecond.
MILLISECONDS = st.integers(0, 4_000_000_000_000).map(str) | st.integers(1, 10**12).map(lambda us: f"{us / 1000:.15g}")
KNOWN = {
    "event": UNICODE,
    "id": UNICODE,
    "at": MILLISECONDS,
    "job": UNICODE,
    "actor": UNICODE,
    "attempt": st.integers(0, 2**53).map(str),
    "duration_ms": MILLISECONDS,
    "delay_ms": MILLISECONDS,
    "error": UNICODE,
    "message": UNICODE,
    "progress": UNICODE,
}


# -- one event -----------------------------------------------------------------------------------------------------


@given(
    st.fixed_dictionaries({"event": KNOWN["event"]}, optional={k: v for k, v in KNOWN.items() if k != "event"}),
    st.dictionaries(UNICODE.filter(lambda name: name not in KNOWN and name != "queue"), UNICODE, max_size=3),
)
def test_what_is_read_is_written_as_it_was(known: dict[str, str], more: dict[str, str]) -> None:
    fields = known | more | {"queue": "mail"}
    event = Event.of(fields, "mail")
    assert event.fields() == fields
    assert event.more == more
    for ascii_only in (True, False):
        assert Event.read(json.dumps(fields, ensure_ascii=ascii_only).encode(), "mail") == event
    assert Event.of(event.fields(), "mail") == event


def test_the_attributes_are_in_the_units_of_python() -> None:
    data = (
        b'{"id":"EVT1","event":"retried","at":"1795982091762","job":"JOB1","queue":"mail","actor":"send","attempt":"2",'
        b'"duration_ms":"3.747","delay_ms":"14","error":"ValueError","message":"no","progress":"half","group":"GRP1"}'
    )
    assert Event.read(data, "mail") == Event(
        "retried", "mail", job="JOB1", actor="send", attempt=2, at=1795982091.762, duration=0.003747, delay=0.014,
        error="ValueError", message="no", progress="half", id="EVT1", more={"group": "GRP1"},
    )  # fmt: skip


def test_the_queue_is_the_channels_whatever_the_message_says() -> None:
    event = Event.read(b'{"event":"failed","queue":"another"}', "mail")
    assert event is not None
    assert (event.queue, event.more) == ("mail", {})


def test_what_is_left_out_is_none() -> None:
    event = Event.read(b'{"event":"failed"}', "mail")
    assert event == Event("failed", "mail")
    assert event.fields() == {"event": "failed", "queue": "mail"}
    assert Event.of({}, "mail") == Event("", "mail")


FOREIGN: list[tuple[str, dict[str, Any]]] = [
    ('"attempt":3,"at":1795982091762,"delay_ms":1.5', {"attempt": 3, "at": 1795982091.762, "delay": 0.0015}),
    ('"job":null,"attempt":null,"message":null,"x":null', {}),
    ('"job":7,"message":true,"progress":0.5', {"job": "7", "message": "true", "progress": "0.5"}),
    ('"message":{"a":[1,"b"]},"x":[null]', {"message": '{"a": [1, "b"]}', "more": {"x": "[null]"}}),
    ('"attempt":"many","at":"","duration_ms":"1e999","delay_ms":"nan"', {}),
    ('"attempt":1e999,"at":-1e999,"delay_ms":NaN', {}),
    ('"attempt":"99999999999999999999","at":true', {}),
    ('"attempt":"2.9"', {"attempt": 2}),
    ('"message":"\\ud800 x","\\udfff":"y"', {"message": "? x", "more": {"?": "y"}}),
    ('"message":"\\ud83d\\ude00\\u0000"', {"message": "\U0001f600\0"}),
]


@pytest.mark.parametrize(("fields", "expected"), FOREIGN, ids=[fields for fields, _ in FOREIGN])
def test_what_other_runtimes_write_is_read_as_far_as_it_goes(fields: str, expected: dict[str, Any]) -> None:
    event = Event.read(f'{{"event":"failed",{fields}}}'.encode(), "mail")
    assert event == Event("failed", "mail", **expected)
    for text in [*event.fields().values(), *event.fields()]:
        text.encode()


NONE = [
    b"", b"{", b"null", b"7", b'"failed"', b"[]", b'["event"]', b"{}", b'{"job":"JOB1"}', b'{"event":null}',
    b'{"event":7}', b'{"event":["failed"]}', b"\xff", b'{"event":"\xff"}', b"[" * 100_000, b'{"event":"x","y":' * 9000,
    b'{"event":"failed"', b'{"event":"failed"}}', b'{"event":"failed","n":' + b"9" * 5000 + b"}",
]  # fmt: skip


@pytest.mark.parametrize("data", NONE, ids=[repr(data[:30]) for data in NONE])
def test_what_is_no_event_is_none(data: bytes) -> None:
    assert Event.read(data, "mail") is None


@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "replace")))
def test_no_message_breaks_a_reader(data: bytes) -> None:
    assert Event.read(data, "mail") is None or isinstance(Event.read(data, "mail"), Event)


def test_an_event_is_a_value() -> None:
    event = Event("failed", "mail", job=JOB, more={"group": "GRP1"})
    assert event in {event}
    assert pickle.loads(pickle.dumps(event)) == copy.deepcopy(event) == event
    assert dataclasses.asdict(event)["more"] == {"group": "GRP1"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.job = "another"  # type: ignore[misc]


# -- what is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("setting", "chosen"),
    [
        ("all", EVENTS), (True, EVENTS), (None, set()), (False, set()), ((), set()), ({"failed"}, {"failed"}),
        (["failed", "failed", "retried"], {"failed", "retried"}), (EVENTS, EVENTS), ({"failed": 1}, {"failed"}),
    ],
)  # fmt: skip
def test_a_setting_chooses_all_or_none_or_what_it_names(setting: Any, chosen: set[str]) -> None:
    assert chosen_events(setting) == chosen


@pytest.mark.parametrize("setting", ["failed", "", "ALL", 7, 0, b"failed", object(), iter(["failed"]), 0.0])
def test_a_setting_that_is_none_is_refused_with_advice(setting: Any) -> None:
    with pytest.raises(InvalidArgument, match=r'events is "all", a set of names as \{"failed"\}, or None'):
        chosen_events(setting)


@pytest.mark.parametrize("name", ["Failed", "fail", "dead", "", 7, None, ["failed"], b"failed"])
def test_a_name_that_is_none_is_refused_with_those_there_are(name: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no event .*: choose from cancelled, completed, drained, "):
        chosen_events([*EVENTS, name])


# -- what a script is told -----------------------------------------------------------------------------------------


def test_where_all_is_off_a_script_is_told_nothing() -> None:
    assert Announcing(()).arguments(Mint(lambda: 1)) == ()
    assert Announcing(()).arguments(Mint(lambda: 1), ["a text"]) == ()


def test_a_script_is_told_the_names_the_rest_as_json_and_the_texts() -> None:
    announcing = Announcing({"retried", "failed"})
    names, minted, *texts = announcing.arguments(Mint(lambda: 1), ["a", "b"])
    assert (names, texts) == (" failed retried ", ["a", "b"])
    ms, low = map(int, str(minted).split("-"))
    assert low >> 12 == 1
    assert minted_at_ms(brand("EVT", (ms - EPOCH_MS) << 22 | low)) == ms
    announcing.choose(CONTROL_EVENTS, sharded=True)
    announcing.choose_for("send", ["failed"])
    announcing.choose_for("söund", ())
    names, more = announcing.arguments(Mint(lambda: 1))
    assert names == " cancelled drained hand paused removed resumed "
    found = json.loads(more)
    assert {found.pop("ms") > EPOCH_MS, found.pop("low") >> 12} == {True}
    assert found == {"actors": {"send": " failed ", "söund": ""}, "sharded": True}
    announcing.choose_for("send", None)
    announcing.choose_for("söund", None)
    announcing.choose(())
    assert announcing.arguments(Mint(lambda: 1)) == ()


def test_an_actors_choice_counts_where_all_others_are_off() -> None:
    announcing = Announcing(())
    announcing.choose_for("send", {"failed"})
    names, more = announcing.arguments(Mint(lambda: 1))
    assert (names, json.loads(more)["actors"]) == ("", {"send": " failed "})


def test_each_call_brings_an_id_of_its_own_for_the_log() -> None:
    announcing, mint = Announcing(EVENTS), Mint(lambda: 1)
    announcing.choose({"failed"}, log="audit")
    first, second = (json.loads(announcing.arguments(mint)[1]) for _ in range(2))
    assert first["log"] == second["log"] == "audit"
    assert (first["ms"], first["low"]) < (second["ms"], second["low"])
    assert 0 <= second["low"] < 2**22


def test_a_text_names_the_actor_first_and_is_the_inside_of_an_object() -> None:
    assert event_text(None, {}) == ""
    assert event_text("send", {}) == ',"actor":"send"'
    text = event_text("s\xe9nd", {"message": 'a\ud800"\\\n', "\udfff": "x"})
    assert text.isascii()
    assert json.loads("{" + text[1:] + "}") == {"actor": "s\xe9nd", "message": 'a?"\\\n', "?": "x"}


def test_there_is_one_signal_for_each_event() -> None:
    assert set(signals.__all__) == EVENTS | set(CACHE_EVENTS) | {"namespace"}
    assert set(signals.namespace) == EVENTS | set(CACHE_EVENTS)
    for name in EVENTS:
        assert getattr(signals, name) is signals.namespace[name]
        assert signals.namespace[name].name == name


def test_an_actors_name_that_no_json_can_carry_spoils_no_call() -> None:
    announcing = Announcing(())
    announcing.choose_for("\ud800", {"failed"})
    assert json.loads(announcing.arguments(Mint(lambda: 1))[1])["actors"] == {"?": " failed "}
