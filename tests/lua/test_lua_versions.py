"""Versions in Lua: which bytes are one, which is newer, and which is just above, as Python's identity has it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from echomq_tasks.cache.frames import newer
from echomq_tasks.connection import Connection
from echomq_tasks.identity import MAX_SNOWFLAKE, brand, is_branded, snowflake

FOLDER = Path(__file__).parents[2] / "lua"
FRAGMENTS = "\n".join((FOLDER / f"{name}.lua").read_text() for name in ("_order", "_version"))
COMPARE = f"""#!lua
{FRAGMENTS}
local found = {{}}
for i = 1, #ARGV, 2 do
  local one, other = ARGV[i], ARGV[i + 1]
  found[#found + 1] = version_newer(one, other) and 1 or 0
  found[#found + 1] = version_above(one, other)
  found[#found + 1] = version_top(one, other)
end
return found
"""
READ = f"""#!lua
{FRAGMENTS}
local found = {{}}
for i = 1, #ARGV do found[i] = version_of(ARGV[i]) or '' end
return found
"""

#: The last snowflake of all is no version: whatever is one has a next one.
numbers = st.integers(0, MAX_SNOWFLAKE - 1) | st.sampled_from(
    [62**power - 1 + step for power in range(1, 11) for step in (0, 1)] + [MAX_SNOWFLAKE - 1, MAX_SNOWFLAKE - 2]
)
kinds = st.sampled_from(["USR", "AAA", "ZZZ"])
versions = st.builds(brand, kinds, numbers)
near = st.tuples(versions, kinds, st.integers(-2, 2)).map(
    lambda it: (it[0], brand(it[1], min(max(snowflake(it[0]) + it[2], 0), MAX_SNOWFLAKE - 1)))
)


def just_above(version: str, floor: str) -> str:
    """Its last three digits stay, so that two that are given above one floor differ."""
    own = snowflake("USR" + "0" * 8 + version[11:])
    above = (snowflake(floor) // 62**3 + 1) * 62**3 + own
    return brand(version[:3], above if above < MAX_SNOWFLAKE else snowflake(floor) + 1)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(versions, versions) | near, min_size=1, max_size=100))
@example([("USR0NgWEfAEKZz", "USR0NgWEfAEKa0"), ("USR0NgWEfAEKa0", "USR0NgWEfAEKZz")])
@example([("USR0NgWEfAEKZz", "USRAzL8n0Y58m0"), ("USR0NgWEfAEKZz", "USRAzL8n0Y58m5")])
def test_lua_orders_versions_as_python_does_and_finds_one_just_above(
    standalone: Connection, pairs: list[tuple[str, str]]
) -> None:
    flat = [each for pair in pairs for each in pair]
    reply = standalone.client.eval(COMPARE, 0, *flat)
    found = [each if isinstance(each, int) else each.decode() for each in reply]
    for place, (one, other) in enumerate(pairs):
        is_newer, above, top = found[place * 3 : place * 3 + 3]
        assert is_newer == newer(one, other)
        assert above == (one if newer(one, other) else just_above(one, other))
        assert top == (one if newer(one, other) else other)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=30) | st.builds(lambda v, rest: v.encode() + rest, versions, st.binary()), min_size=1)
)
@example([b"USRAzL8n0Y58m7", b"USRAzL8n0Y58m6", b"USRzzzzzzzzzzz", b"USR0NgWEfAEKZ", b"", b"US\xc3\x890NgWEfAEKZz"])
def test_lua_takes_for_a_version_what_python_does_but_for_the_last_of_all(
    standalone: Connection, frames: list[bytes]
) -> None:
    def expected(frame: bytes) -> bytes:
        head = frame[:14].decode("latin-1")
        return frame[:14] if is_branded(head) and snowflake(head) < MAX_SNOWFLAKE else b""

    assert standalone.client.eval(READ, 0, *frames) == [expected(frame) for frame in frames]
