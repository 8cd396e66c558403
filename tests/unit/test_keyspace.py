"""Keys: each one of the wire by example, a closed registry, and no key from a name or an id outside the grammar."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clusters import ClusterProcess

from echomq_tasks import keyspace
from echomq_tasks.errors import InvalidId, InvalidName
from echomq_tasks.identity import group_id

JOB = "JOB0KHTOWnGLuC"
GROUP = "GRP2U8SIEpSI6d"

EXAMPLES = [
    (keyspace.queue_key("mail"), b"emq:{mail}:"),
    (keyspace.queue_key("mail", "pending"), b"emq:{mail}:pending"),
    (keyspace.queue_key("mail", "active"), b"emq:{mail}:active"),
    (keyspace.queue_key("mail", "schedule"), b"emq:{mail}:schedule"),
    (keyspace.queue_key("mail", "dead"), b"emq:{mail}:dead"),
    (keyspace.queue_key("mail", "ring"), b"emq:{mail}:ring"),
    (keyspace.queue_key("mail", "paused"), b"emq:{mail}:paused"),
    (keyspace.queue_key("mail", "glimit"), b"emq:{mail}:glimit"),
    (keyspace.queue_key("mail", "gactive"), b"emq:{mail}:gactive"),
    (keyspace.queue_key("mail", "gweight"), b"emq:{mail}:gweight"),
    (keyspace.queue_key("mail", "gnames"), b"emq:{mail}:gnames"),
    (keyspace.queue_key("mail", "gauto"), b"emq:{mail}:gauto"),
    (keyspace.queue_key("mail", "flow:parents"), b"emq:{mail}:flow:parents"),
    (keyspace.queue_key("mail", "replies"), b"emq:{mail}:replies"),
    (keyspace.queue_key("mail", "wake"), b"emq:{mail}:wake"),
    (keyspace.queue_key("mail", "meta"), b"emq:{mail}:meta"),
    (keyspace.queue_key("mail", "limiter"), b"emq:{mail}:limiter"),
    (keyspace.queue_key("mail", "metrics:completed"), b"emq:{mail}:metrics:completed"),
    (keyspace.queue_key("mail", "metrics:failed"), b"emq:{mail}:metrics:failed"),
    (keyspace.queue_key("mail", "metrics:completed:data"), b"emq:{mail}:metrics:completed:data"),
    (keyspace.queue_key("mail", "metrics:failed:data"), b"emq:{mail}:metrics:failed:data"),
    (keyspace.queue_key("mail", "repeat"), b"emq:{mail}:repeat"),
    (keyspace.queue_key("mail", "flow:outbox"), b"emq:{mail}:flow:outbox"),
    (keyspace.queue_key("mail", "events"), b"emq:{mail}:events"),
    (keyspace.queue_key("mail", "retention"), b"emq:{mail}:retention"),
    (keyspace.job_key("mail", JOB), b"emq:{mail}:job:JOB0KHTOWnGLuC"),
    (keyspace.job_key("mail", JOB, "logs"), b"emq:{mail}:job:JOB0KHTOWnGLuC:logs"),
    (keyspace.job_key("mail", JOB, "lock"), b"emq:{mail}:job:JOB0KHTOWnGLuC:lock"),
    (keyspace.job_key("mail", JOB, "dependencies"), b"emq:{mail}:job:JOB0KHTOWnGLuC:dependencies"),
    (keyspace.job_key("mail", JOB, "processed"), b"emq:{mail}:job:JOB0KHTOWnGLuC:processed"),
    (keyspace.job_key("mail", JOB, "failed"), b"emq:{mail}:job:JOB0KHTOWnGLuC:failed"),
    (keyspace.job_key("mail", JOB, "unsuccessful"), b"emq:{mail}:job:JOB0KHTOWnGLuC:unsuccessful"),
    (keyspace.job_key("mail", JOB, "result"), b"emq:{mail}:job:JOB0KHTOWnGLuC:result"),
    (keyspace.lane_key("mail", GROUP), b"emq:{mail}:g:GRP2U8SIEpSI6d:pending"),
    (keyspace.lane_key("mail", "USR0KHTOWnGLuC"), b"emq:{mail}:g:USR0KHTOWnGLuC:pending"),
    (keyspace.dedup_key("mail", "order-7"), b"emq:{mail}:de:order-7"),
    (keyspace.repeat_key("mail", "nightly"), b"emq:{mail}:repeat:nightly"),
    (keyspace.stream_key("mail", "log"), b"emq:{mail}:stream:log"),
    (keyspace.cache_key("users", "USR0KHTOWnGLuC"), b"ecc:{users}:USR0KHTOWnGLuC"),
    (keyspace.cache_base("users"), b"ecc:{users}:"),
    (keyspace.cache_key("users", "USR0KHTOWnGLuC", "flight"), b"ecc:{users}:USR0KHTOWnGLuC:flight"),
    (keyspace.cache_key("users", "USR0KHTOWnGLuC", "dropped"), b"ecc:{users}:USR0KHTOWnGLuC:dropped"),
    (keyspace.tag_key("users", "TAG0KHTOWnGLuC"), b"ecc:{users}:tag:TAG0KHTOWnGLuC"),
    (keyspace.stats_key("users"), b"ecc:{users}:stats"),
    (keyspace.coherence_channel("users"), b"ecc:{users}:coh"),
    (keyspace.wake_channel("users"), b"ecc:{users}:wake"),
    (keyspace.node_key(0), b"{emq}:node:0"),
    (keyspace.node_key(1023), b"{emq}:node:1023"),
]


@pytest.mark.parametrize(("key", "expected"), EXAMPLES, ids=[expected.decode() for _, expected in EXAMPLES])
def test_a_key_is_spelled_as_on_the_wire(key: bytes, expected: bytes) -> None:
    assert key == expected


def test_the_keys_of_the_wire_itself() -> None:
    assert keyspace.VERSION_KEY == b"{emq}:version"
    assert keyspace.WIRE_VERSION == b"echomq:2.4.2"
    assert keyspace.coherence_queue("users") == "ecc.coh.users"


def test_the_examples_above_leave_no_key_of_a_queue_out() -> None:
    spelled = {expected.decode().removeprefix("emq:{mail}:") or "base" for _, expected in EXAMPLES}
    assert spelled >= keyspace.QUEUE_KEYS


@pytest.mark.parametrize("name", ["", "Pending", "pendings", "job", "version", "pending\n", None, 3, ["pending"]])
def test_the_registry_of_queue_keys_is_closed(name: object) -> None:
    with pytest.raises(InvalidName, match="has no queue key"):
        keyspace.queue_key("mail", name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "log", "Lock", "lock ", 3, ["lock"]])
def test_the_registry_of_job_keys_is_closed(name: object) -> None:
    with pytest.raises(InvalidName, match="has no job key"):
        keyspace.job_key("mail", JOB, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "lock", "Flight", "flight ", 3, ["flight"]])
def test_the_registry_of_cache_keys_is_closed(name: object) -> None:
    with pytest.raises(InvalidName, match="has no cache key"):
        keyspace.cache_key("users", "USR0KHTOWnGLuC", name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "tag", ["USR0KHTOWnGLuC", "TAG0KHTOWnGLu", "TAG0KHTOWnGLuC\n", "TAGzzzzzzzzzzz", "user:7", None]
)
def test_only_a_tag_id_names_a_tag(tag: str) -> None:
    with pytest.raises(InvalidId):
        keyspace.tag_key("users", tag)


BUILDERS: list[tuple[str, Callable[[str], bytes | str], int]] = [
    ("queue", lambda name: keyspace.queue_key(name, "pending"), 128),
    ("queue of a job", lambda name: keyspace.job_key(name, JOB), 128),
    ("queue of a lane", lambda name: keyspace.lane_key(name, GROUP), 128),
    ("dedup", lambda name: keyspace.dedup_key("mail", name), 255),
    ("repeat", lambda name: keyspace.repeat_key("mail", name), 128),
    ("stream", lambda name: keyspace.stream_key("mail", name), 128),
    ("cache", lambda name: keyspace.cache_key(name, "USR0KHTOWnGLuC"), 128),
    ("cache table", keyspace.cache_base, 128),
    ("key beside a cached row", lambda name: keyspace.cache_key(name, "USR0KHTOWnGLuC", "flight"), 128),
    ("tag", lambda name: keyspace.tag_key(name, "TAG0KHTOWnGLuC"), 128),
    ("counters", keyspace.stats_key, 128),
    ("channel", keyspace.coherence_channel, 128),
    ("wakes", keyspace.wake_channel, 128),
    ("lane of coherence", keyspace.coherence_queue, 120),
]
every_builder = pytest.mark.parametrize(
    ("build", "longest"), [(build, longest) for _, build, longest in BUILDERS], ids=[name for name, *_ in BUILDERS]
)


@every_builder
def test_the_longest_name_is_taken_and_one_more_character_is_not(build: Callable[[str], object], longest: int) -> None:
    assert build("x" * longest)
    with pytest.raises(InvalidName):
        build("x" * (longest + 1))


@every_builder
@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a\n", "\na", "a\0", "a:b", "{a}", "a}", "{", "*", "a/b", "é", "\uff11", "٣", "a\ud800"],
)
@pytest.mark.parametrize("wrap", [str, str.encode], ids=["text", "bytes"])
def test_a_name_outside_the_grammar_never_becomes_a_key(
    build: Callable[[object], object], longest: int, name: str, wrap: Callable[[str], object]
) -> None:
    value = name.encode(errors="surrogatepass") if wrap is str.encode else name
    with pytest.raises(InvalidName):
        build(value)


@every_builder
@given(name=st.text(max_size=140) | st.none() | st.integers() | st.binary(max_size=5))
def test_whatever_becomes_a_key_is_inside_the_grammar(
    build: Callable[[object], object], longest: int, name: object
) -> None:
    allowed = isinstance(name, str) and re.fullmatch(rf"[-._0-9A-Za-z]{{1,{longest}}}\Z", name) and name != "emq"
    if allowed:
        assert build(name)
    else:
        with pytest.raises(InvalidName):
            build(name)


def test_the_reserved_queue_name_is_refused_with_advice() -> None:
    with pytest.raises(InvalidName, match="reserved"):
        keyspace.check_queue("emq")
    assert keyspace.queue_key("emq2", "meta") == b"emq:{emq2}:meta"


@given(st.text(max_size=20) | st.none() | st.integers() | st.binary(max_size=14))
def test_a_malformed_id_never_becomes_a_key(value: object) -> None:
    # Text that happens to be an id is as good as impossible here, and would be a fair key.
    for build in (keyspace.job_key, keyspace.lane_key, keyspace.cache_key, keyspace.tag_key):
        with pytest.raises((InvalidId, InvalidName)):
            build("mail", value)  # type: ignore[operator]


@pytest.mark.parametrize(
    "value",
    ["USR0KHTOWnGLuC", "JOB0KHTOWnGLuC\n", "JOBzzzzzzzzzzz", "job0KHTOWnGLuC", "JOB0KHTOWnGLu", "JOB0KHTOWnGLu٣"],
)
def test_only_a_job_id_names_a_row(value: str) -> None:
    with pytest.raises(InvalidId):
        keyspace.job_key("mail", value)


@pytest.mark.parametrize("node", [-1, 1024, 1.5, True, "7", None])
def test_only_a_ten_bit_number_names_a_node(node: object) -> None:
    with pytest.raises(InvalidName):
        keyspace.node_key(node)  # type: ignore[arg-type]


def test_a_member_of_a_str_enum_is_taken_by_its_value() -> None:
    class Names(str, enum.Enum):  # noqa: UP042 - StrEnum prints as its value, this one does not
        MAIL = "mail"
        JOB = "JOB0KHTOWnGLuC"
        EMQ = "emq"

    assert keyspace.check_queue(Names.MAIL) == "mail"
    assert f"{keyspace.check_queue(Names.MAIL)}" == "mail"
    assert keyspace.job_key(Names.MAIL, Names.JOB) == b"emq:{mail}:job:JOB0KHTOWnGLuC"
    assert keyspace.lane_key(Names.MAIL, Names.JOB) == b"emq:{mail}:g:JOB0KHTOWnGLuC:pending"
    assert keyspace.dedup_key(Names.MAIL, Names.MAIL) == b"emq:{mail}:de:mail"
    assert keyspace.repeat_key(Names.MAIL, Names.MAIL) == b"emq:{mail}:repeat:mail"
    assert keyspace.stream_key(Names.MAIL, Names.MAIL) == b"emq:{mail}:stream:mail"
    assert keyspace.cache_key(Names.MAIL, Names.JOB) == b"ecc:{mail}:JOB0KHTOWnGLuC"
    assert keyspace.coherence_channel(Names.MAIL) == b"ecc:{mail}:coh"
    assert keyspace.coherence_queue(Names.MAIL) == "ecc.coh.mail"
    with pytest.raises(InvalidName):
        keyspace.queue_key(Names.EMQ)


# -- slots --------------------------------------------------------------------------------------------------------


def test_the_slot_of_the_specification_s_example() -> None:
    assert keyspace.slot("123456789") == 0x31C3 == 12739
    assert keyspace.slot(b"123456789") == 12739


@given(st.from_regex(r"[-._0-9A-Za-z]{1,128}", fullmatch=True).filter(lambda name: name != "emq"))
def test_one_queue_is_one_slot(name: str) -> None:
    keys = {keyspace.queue_key(name, key) for key in keyspace.QUEUE_KEYS}
    keys |= {keyspace.job_key(name, JOB)} | {keyspace.job_key(name, JOB, key) for key in keyspace.JOB_KEYS}
    keys |= {keyspace.lane_key(name, group_id("a")), keyspace.dedup_key(name, "x"), keyspace.repeat_key(name, "x")}
    keys |= {keyspace.stream_key(name, "x")}
    assert {keyspace.slot(key) for key in keys} == {keyspace.slot(name)}


@pytest.mark.cluster
def test_the_slot_is_the_one_the_server_computes(cluster: ClusterProcess) -> None:
    client = cluster.nodes[0].client()

    @given(st.binary(max_size=40) | st.text("{}ab", max_size=12).map(str.encode))
    def check(key: bytes) -> None:
        assert keyspace.slot(key) == client.execute_command("CLUSTER KEYSLOT", key)

    check()
    for key in (b"", b"{}", b"{}a", b"a{}b", b"{", b"}", b"}{a}", b"{a", b"a}b{c}d", b"{{a}}", b"{a}{b}", b"{}{a}"):
        assert keyspace.slot(key) == client.execute_command("CLUSTER KEYSLOT", key), key
