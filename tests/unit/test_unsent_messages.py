"""Messages without an id yet: what they leave out, and that nobody can tell until they are sent."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import threading
from typing import Any
from uuid import UUID

import pytest
from dramatiq import Message
from dramatiq.encoder import JSONEncoder
from dramatiq.errors import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from echomq_tasks.brokers.dramatiq.delivery import decode
from echomq_tasks.brokers.dramatiq.outgoing import encode
from echomq_tasks.brokers.dramatiq.unsent import UnsentMessage
from echomq_tasks.identity import minted_at_ms
from echomq_tasks.queue import Job

JOB = "JOB0NgWEfAEJ0A"


def unsent(**options: Any) -> UnsentMessage[Any]:
    return UnsentMessage.make("mail", "send", (1,), {"k": 2}, options)


def test_it_has_the_fields_of_dramatiqs_message_and_no_others() -> None:
    assert [field.name for field in dataclasses.fields(Message)] == [*vars(unsent()), "message_id", "message_timestamp"]


def test_its_id_and_timestamp_are_made_when_they_are_first_read_and_stay() -> None:
    message = unsent()
    assert "message_id" not in vars(message)
    assert UUID(message.message_id).version == 4
    assert message.message_id == message.message_id
    assert message.message_timestamp == message.message_timestamp
    assert unsent().message_id != message.message_id


def test_threads_that_ask_at_once_are_told_the_same() -> None:
    for _ in range(50):
        message, told, ready = unsent(), [], threading.Barrier(4)

        def ask(message: Message[Any] = message, told: list[str] = told, ready: threading.Barrier = ready) -> None:
            ready.wait(10)
            told.append(message.message_id)

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(told) == 4
        assert set(told) == {message.message_id}


@pytest.mark.parametrize(
    "twin",
    [
        lambda message: message.copy(),
        lambda message: dataclasses.replace(message),
        copy.copy,
        copy.deepcopy,
        lambda message: pickle.loads(pickle.dumps(message)),
        lambda message: Message(**message.asdict()),
        lambda message: Message.decode(message.encode()),
        lambda message: message._replace(args=(1,)),
    ],
    ids=["copy()", "replace", "copy.copy", "deepcopy", "pickle", "asdict", "encode", "_replace"],
)
def test_whatever_is_made_of_it_is_the_same_message(twin: Any) -> None:
    message = unsent(tenant="acme")
    other = twin(message)
    assert (other.message_id, other.message_timestamp) == (message.message_id, message.message_timestamp)
    assert other == message
    assert message == other


def test_another_message_is_not_equal_and_what_it_has_not_is_told_by_name() -> None:
    assert unsent() != unsent()
    assert unsent() != "send"
    with pytest.raises(AttributeError, match="'UnsentMessage' object has no attribute 'job_id'"):
        unsent().job_id  # type: ignore[attr-defined]  # noqa: B018 - that is the test
    with pytest.raises(TypeError, match="unhashable"):
        hash(unsent())
    with pytest.raises(dataclasses.FrozenInstanceError):
        unsent().args = ()  # type: ignore[misc]


def test_its_payload_leaves_out_what_a_worker_fills_in() -> None:
    assert encode(unsent()) == b'{"actor_name":"send","args":[1],"kwargs":{"k":2}}'
    assert encode(UnsentMessage.make("mail", "send", (), {}, {"retries": 1})) == (
        b'{"actor_name":"send","args":[],"options":{"retries":1}}'
    )


def test_a_timestamp_that_was_read_is_sent_and_with_an_id_everything_is() -> None:
    message = unsent()
    stamp = message.message_timestamp
    assert json.loads(encode(message))["message_timestamp"] == stamp
    _ = message.message_id
    assert encode(message) == message.encode() == JSONEncoder().encode(message.asdict())


def test_an_id_and_a_timestamp_that_are_those_of_the_job_are_left_out() -> None:
    message: Message[Any] = Message("mail", "send", (1,), {}, {}, message_id=JOB, message_timestamp=minted_at_ms(JOB))
    assert encode(message, JOB) == b'{"actor_name":"send","args":[1]}'
    assert encode(message) == encode(message, "JOB0NgWEfAEJ0B") == message.encode()
    older = message.copy(message_timestamp=5)  # type: ignore[call-arg]
    assert encode(older, JOB) == b'{"actor_name":"send","args":[1],"message_timestamp":5}'


class Own(Message[Any]):
    """A message that somebody has derived."""

    def encode(self) -> bytes:
        return b"mine"


def test_a_message_of_another_kind_encodes_itself() -> None:
    assert encode(Own("mail", "send", (1,), {}, {}, message_id=JOB), JOB) == b"mine"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(args=st.lists(values, max_size=3), kwargs=st.dictionaries(st.text(), values, max_size=3))
def test_what_was_left_out_comes_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    message = UnsentMessage.make("mail", "send", tuple(args), kwargs, {})
    received = decode(Job(JOB, encode(message), 1), "mail")
    assert type(received) is Message
    assert received == Message("mail", "send", tuple(args), kwargs, {}, JOB, minted_at_ms(JOB))


kinds = {"actor_name": str, "args": list, "kwargs": dict, "options": dict, "message_id": str, "message_timestamp": int}


@given(fields=st.dictionaries(st.sampled_from([*kinds, "queue_name", "other"]), values))
def test_a_message_is_read_field_by_field_or_refused_by_the_first_that_is_wrong(fields: dict[str, Any]) -> None:
    defaults = {"args": [], "kwargs": {}, "options": {}, "message_id": JOB, "message_timestamp": minted_at_ms(JOB)}
    expected = {name: fields.get(name) if fields.get(name) is not None else defaults.get(name) for name in kinds}
    wrong = [name for name, kind in kinds.items() if not isinstance(expected[name], kind)]
    job = Job(JOB, json.dumps(fields).encode(), 1)
    if wrong:
        with pytest.raises(DecodeError, match="names no actor" if "actor_name" not in fields else f"{wrong[0]} is a"):
            decode(job, "mail")
        return
    expected["options"].pop("eta", None)
    assert decode(job, "mail") == Message("mail", **expected)


def test_a_message_that_leaves_its_time_to_an_id_that_has_none_is_refused() -> None:
    for job_id in ("JOBzzzzzzzzzzz", "no id"):
        with pytest.raises(DecodeError, match="message_timestamp was left out"):
            decode(Job(job_id, b'{"actor_name": "run", "args": []}', 1), "mail")
