"""Base62 of 63 bits in Lua, whose numbers hold 53, against Python's over the whole range."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from echomq_tasks.connection import Connection
from echomq_tasks.identity import EPOCH_MS, MAX_SNOWFLAKE, brand

FRAGMENT = (Path(__file__).parents[2] / "lua" / "_log.lua").read_text()
SCRIPT = f"""#!lua
{FRAGMENT}
local ids = {{}}
for i = 1, #ARGV, 2 do ids[#ids + 1] = log_brand(tonumber(ARGV[i]), tonumber(ARGV[i + 1])) end
return ids
"""

#: Where a limb, a digit or a carry begins or ends.
CORNERS = sorted(
    {
        number + step
        for number in (
            *(62**power * factor for power in range(11) for factor in (1, 2, 31, 61)),
            *(2**power for power in range(63)),
            *(62**5 << 22, (62**5 - 1) << 22, MAX_SNOWFLAKE),
        )
        for step in (-1, 0, 1)
        if 0 <= number + step <= MAX_SNOWFLAKE
    }
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.integers(0, MAX_SNOWFLAKE)
        # As much of small and of near numbers as of large ones.
        | st.integers(0, 62).flatmap(lambda bits: st.integers(0, 2 ** (bits + 1) - 1))
        | st.tuples(st.sampled_from(CORNERS), st.integers(-70, 70)).map(lambda at: min(max(sum(at), 0), MAX_SNOWFLAKE)),
        min_size=1,
        max_size=300,
    )
)
@example(CORNERS)
def test_every_snowflake_is_branded_as_python_brands_it(standalone: Connection, numbers: list[int]) -> None:
    places = [part for number in numbers for part in ((number >> 22) + EPOCH_MS, number & 0x3FFFFF)]
    ids = standalone.client.eval(SCRIPT, 0, *places)
    assert [found.decode() for found in ids] == [brand("EVT", number) for number in numbers]
