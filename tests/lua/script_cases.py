"""One call of every script against a queue in which it finds something to do on each of its branches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wire.handwriting import Wire

from echomq_tasks.scripts import load_scripts

FLAT, IN_LANE, DUE, DEAD, WAITING, WAITING_IN_LANE, STRANGERS_CHILD, PARENT, GRANDPARENT, NEW, NEWER, ABSENT = (
    f"JOB0NgWEfAEJ0{letter}" for letter in "ABCDEFGHIJKL"
)
LANE = "GRP0NgWEfAEJfs"
FUTURE = 4_000_000_000_000
MINTED = 1_764_440_000_000
ENTRY = "1700000000000-5"
#: Rows of a cache table: one that is there, one that a flight loads and one that is not there; and versions and a tag.
CACHED, LOADING, MISSING = (f"USR0NgWEfAEJ0{letter}" for letter in "ABC")
OLD, NOW, FLOWN, LATER = (f"USR0NgWEfAEK0{letter}" for letter in "ABCD")
#: Just above FLOWN, with the last digits of NOW.
LIFTED = "USR0NgWEfAFK0B"
TAG = "TAG0NgWEfAEJ0A"
WEEK = 604_800_000


@dataclass(frozen=True)
class Case:
    """A call: its arguments, and what it answers against :func:`fill` (None: see the test that checks more)."""

    args: Sequence[str | int]
    reply: Any
    #: Where the job ids stand in ``args``: the first one, and the width of an entry. None: it takes no ids.
    ids: tuple[int, int] | None = None
    #: Where an entry's token stands behind its id.
    token: int | None = None
    #: Whether the queue must be paused.
    paused: bool = False
    #: Whether it needs a log with a consumer group that holds its first entry for long.
    group: bool = False


def fill(wire: Wire, case: Case | None = None) -> None:
    """A queue with something in every set: jobs of flows, a lane at its limit, an expired lease and a due job."""
    if case is not None and case.paused:
        wire.do("HSET", "meta", "paused", 1)
    if case is not None and case.group:
        for number in (5, 6, 7):
            wire.do("XADD", "stream:audit", f"1700000000000-{number}", "id", "EVT0", "n", number)
        wire.client.execute_command("XGROUP", "CREATE", f"{wire.base}stream:audit", "billing", "0")
        wire.client.execute_command(
            *("XREADGROUP", "GROUP", "billing", "me", "COUNT", 1, "STREAMS", f"{wire.base}stream:audit", ">")
        )
        wire.do("XCLAIM", "stream:audit", "billing", "me", 0, ENTRY, "IDLE", 60_000, "RETRYCOUNT", 1)
        for low, group in ((1, "billing"), (2, "gone")):
            words = ("dead.entry", "1700000000000-6", "dead.group", group)
            wire.do("XADD", "stream:audit.dead", f"1700000000000-{low}", "id", "EVT0", *words)
    rows: dict[str, dict[str, str]] = {
        FLAT: {"state": "active", "attempts": "1", "parent": PARENT},
        IN_LANE: {"state": "active", "attempts": "1", "group": LANE},
        STRANGERS_CHILD: {"state": "active", "attempts": "1", "parent": PARENT, "parent_queue": "elsewhere"},
        DUE: {"state": "scheduled", "attempts": "0", "priority": "2"},
        DEAD: {"state": "dead", "attempts": "1", "last_error": "boom"},
        WAITING: {"state": "pending", "attempts": "0"},
        WAITING_IN_LANE: {"state": "pending", "attempts": "0", "group": LANE},
        PARENT: {"state": "awaiting_children", "attempts": "0", "parent": GRANDPARENT},
        GRANDPARENT: {"state": "awaiting_children", "attempts": "0"},
    }
    for job_id, fields in rows.items():
        wire.do("HSET", f"job:{job_id}", "payload", "p", *(word for field in fields.items() for word in field))
    wire.do("SET", f"job:{PARENT}:dependencies", 2)
    wire.do("SET", f"job:{GRANDPARENT}:dependencies", 1)
    wire.do("ZADD", "active", FUTURE, FLAT, 1, IN_LANE, FUTURE, STRANGERS_CHILD)
    wire.do("ZADD", "schedule", 1, DUE)
    wire.do("ZADD", "dead", 0, DEAD)
    wire.do("ZADD", "pending", 0, WAITING)
    wire.do("ZADD", f"g:{LANE}:pending", 0, WAITING_IN_LANE)
    wire.do("HSET", "glimit", LANE, 1)
    wire.do("HSET", "gactive", LANE, 1)
    wire.do("HSET", "meta", "max", 100, "concurrency", 100)
    wire.do("LPUSH", "wake", 1)
    wire.do("ZADD", "repeat", 1, "nightly", 1, "orphan", FUTURE, "yearly")
    for name in ("nightly", "yearly"):
        wire.do("HSET", f"repeat:{name}", "every_ms", 60_000, "template", "p", "group", LANE, "priority", 2)
    wire.do("RPUSH", f"job:{DEAD}:result", "r")
    for low in (1, 2):
        wire.do("XADD", "stream:log", f"{MINTED}-{low}", "id", "foreign", "a", "b")
    wire.do("HSET", "retention", "log", "maxlen=0 older_than_ms=1", "no log", "maxlen=0")
    fill_table(wire)


def table_base(wire: Wire) -> str:
    """The base of a cache table of the queue's name, which has its slot, too."""
    return wire.base.replace("emq:", "ecc:", 1)


def fill_table(wire: Wire) -> None:
    """A cache table with a row, a flight that somebody follows, and a tag that was dropped before both."""
    base = table_base(wire)
    wire.client.set(f"{base}{CACHED}", f"{NOW}v", px=60_000)
    wire.client.set(f"{base}{LOADING}:flight", f"{FLOWN}1{FUTURE}me", px=60_000)
    wire.client.set(f"{base}{LOADING}:dropped", OLD, px=60_000)
    wire.client.set(f"{base}tag:{TAG}", OLD, px=60_000)


EXTRAS = '{"name":"acme","limit":1,"dedup":"d","unique":"done","ttl":60000}'
ENQUEUE: list[str | int] = ["me", 1, NEW, "p", "now", 0, 0, LANE, EXTRAS, NEWER, "p", "in", 500, 1, "", ""]
FLOW: list[str | int] = ["me", 1, NEW, "p", "now", 0, 0, "", '{"children":1}']
FLOW += [NEWER, "p", "now", 0, 0, "", f'{{"parent":"{NEW}","policy":"id"}}']
REGISTER: list[str | int] = ["me", 1, "hourly", 0, "in", 60_000, 60_000, "p", "group", LANE, "limit", 3]
FIRE: list[str | int] = ["me", 1, NEW, "nightly", 1, FUTURE, 5000, NEWER, "yearly", FUTURE, FUTURE + 1, ""]
SKIP: list[str | int] = ["nightly", 1, FUTURE, 5000, "orphan", 1, "", "", "yearly", 1, "", ""]
APPEND: list[str | int] = ["me", 1, "log", MINTED, 5, 2, "a", "b", MINTED, 5, 0, MINTED, 9, 4, "a", "b", "c", "d"]
RETRY: list[str | int] = [FLAT, 1, 0, 0, "boom", 1, "", IN_LANE, 1, 500, -1, "boom", 0, "q"]

HELD: list[Any] = [ENTRY, ["id", "EVT0", "n", "5"]]

CASES: dict[str, Case] = {
    "event_log": Case(["lifecycle"], "ok"),
    "cache_claim": Case([MISSING, "you", 5000, LATER, 0, 600_000, WEEK, TAG], ["lead", LATER]),
    "cache_get": Case([CACHED, "version", TAG], NOW),
    "cache_renew": Case([LOADING, "me", 5000, 600_000], 1),
    "cache_fill": Case([LOADING, "me", FLOWN, "v", 60_000, 1, 1, WEEK, TAG], 1),
    "cache_release": Case([LOADING, "me", "failed", "boom"], 1),
    "cache_put": Case([LOADING, NOW, "v", 1000, 600_000, WEEK, TAG], LIFTED),
    "cache_drop": Case([LATER, 600_000, CACHED, LOADING, MISSING], [LATER] * 3),
    "cache_apply": Case([CACHED, LATER, 600_000], 1),
    "cache_tag": Case([TAG, NOW, "drop", WEEK], NOW),
    "cache_clear": Case(["TAG00000000000", NOW], 1),
    "cache_report": Case(["me", "{}", 600_000, 1], 1),
    "event_send": Case(["me", 1, "lease_lost", FLAT, ',"actor":"a"'], 0),
    "group_create": Case(["audit", "another", "head"], 1, group=True),
    "group_read": Case(
        ["audit", "billing", "me", 1], [0, ENTRY, [["1700000000000-6", ["id", "EVT0", "n", "6"]]]], group=True
    ),
    "group_held": Case(["audit", "billing", "me", "", 9], [[ENTRY]], group=True),
    "group_own": Case(["audit", "billing", "me", ENTRY, 1], [[[*HELD, 2]], []], group=True),
    "group_claim": Case(["audit", "billing", "you", 1000, "0-0"], ["0-0", [[*HELD, 2]], []], group=True),
    "group_ack": Case(["audit", "billing", ENTRY, "1700000000000-6"], 1, group=True),
    "group_renew": Case(["audit", "billing", "me", ENTRY, "1700000000000-6"], ["ok", "lost"], group=True),
    "group_release": Case(["audit", "billing", "me", 1000, ENTRY], 1, group=True),
    "group_bury": Case(["audit", "billing", "me", ENTRY, "boom", 1_800_000_000_000, 7, 100, 5], None, group=True),
    "group_replay": Case(["audit", "", "", 9, 9, "dead.replay", 1000], ["", 1, 1], group=True),
    "group_tidy": Case(["audit", "billing", 0, ""], [], group=True),
    "group_info": Case(["audit"], [["billing", 2, 1, 1, ENTRY, 0]], group=True),
    "group_delete": Case(["audit", "billing"], 1, group=True),
    "job_enqueue": Case(ENQUEUE, [1, 2], ids=(2, 7)),
    "job_claim": Case([10, 30_000, "field", "me", 1], None),
    "job_complete": Case([FLAT, 1, "r", IN_LANE, 1, "r", STRANGERS_CHILD, 1, "r"], ["ok"] * 3, ids=(0, 3), token=1),
    "job_retry": Case(RETRY, ["dead", "scheduled"], ids=(0, 7), token=1),
    "job_discard": Case([FLAT, 1, "c", IN_LANE, 1, "c"], ["ok", "ok"], ids=(0, 3), token=1),
    "job_cancel": Case([WAITING], "removed", ids=(0, 1)),
    "job_release": Case([FLAT, 1, IN_LANE, 1], ["ok", "ok"], ids=(0, 2), token=1),
    "job_extend": Case([30_000, "key", FLAT, 1, IN_LANE, 1], ["ok", "ok"], ids=(2, 2), token=1),
    "job_get": Case([FLAT, ABSENT], None, ids=(0, 1)),
    "job_state": Case([WAITING_IN_LANE], "pending", ids=(0, 1)),
    "job_update": Case([WAITING, "q"], "ok", ids=(0, 2)),
    "job_stopping": Case([FLAT], 0, ids=(0, 1)),
    "job_progress": Case(["me", 1, WAITING, "0.5"], "ok", ids=(2, 2)),
    "job_log": Case([WAITING, "a line", 5], 1, ids=(0, 3)),
    "job_logs": Case([WAITING, 5], [], ids=(0, 2)),
    "job_remove": Case([WAITING_IN_LANE], "ok", ids=(0, 1)),
    "job_reprocess": Case([DEAD, 1, ""], "ok", ids=(0, 3)),
    "flow_add": Case(FLOW, 1, ids=(2, 7)),
    "flow_read": Case([PARENT], [2, [], [], []], ids=(0, 1)),
    "flow_deliver": Case([PARENT, "done", FLAT, "r", PARENT, "fp", IN_LANE, "boom"], 2, ids=(0, 4)),
    "outbox_read": Case([0, 10, 1000], []),
    "outbox_trim": Case(["entry"], 0),
    "outbox_defer": Case(["entry"], 0),
    "dead_trim": Case([1, 60_000, 10, ""], [0, ""]),
    "job_promote": Case([10], 1),
    "job_reap": Case([10], 1),
    "job_sweep": Case([10, 1], [[], [IN_LANE]]),
    "log_append": Case(APPEND, ["EVT0Ihl38agMUv", "EVT0Ihl38agMUw", "EVT0Ihl38agMUz"]),
    "log_trim": Case(["log", 1, "", 1], 1),
    "log_retention": Case(["log", "maxlen=5", ""], "ok"),
    "log_retain": Case([], 2),
    "node_lease": Case(["owner", 30_000, -1, 7], 7),
    "queue_clock": Case([], None),
    "queue_browse": Case(["pending", 10, ""], [WAITING]),
    "queue_counts": Case([], [1, 1, 3, 1, 1, 0, 0, 0, 0]),
    "queue_drain": Case(["me", 1, 100, "pending", "lanes", "schedule", "dead", "active"], 7),
    "queue_pause": Case([], 1),
    "queue_resume": Case([], 1, paused=True),
    "queue_rate": Case([5, 60_000], "ok"),
    "queue_concurrency": Case([5], "ok"),
    "queue_limits": Case([], [100, 1000, 100, 0]),
    "queue_metrics": Case([], None),
    "queue_oldest": Case([10, "", ""], [WAITING, 0, ""]),
    "queue_obliterate": Case([1, 100, 1, f"job:{FLAT}", "pending"], [9, 0], paused=True),
    "lane_limit": Case([LANE, "acme", 5], "ok"),
    "lane_weight": Case([LANE, "acme", 5], "ok"),
    "lane_pause": Case([LANE, "acme"], 1),
    "lane_resume": Case([LANE], 0),
    "lane_drain": Case(["me", 1, LANE, 10], 1),
    "lane_move": Case([WAITING, LANE, "acme"], "ok", ids=(0, 3)),
    "lane_reap": Case([LANE, 10, 10, 0], [1, 1]),
    "lane_list": Case([], [LANE]),
    "lane_info": Case([LANE], [["", 1, 1, 1, 1, 0]]),
    "repeat_register": Case(REGISTER, 1),
    "repeat_stands": Case(["nightly", 1, 60_000, "p", "group", LANE, "priority", 2], 1),
    "repeat_due": Case([10], None),
    "repeat_fire": Case(FIRE, [1, 0], ids=(2, 5)),
    "repeat_skip": Case(SKIP, [1, 1, 0]),
    "repeat_cancel": Case(["me", 1, "nightly"], 1),
    "repeat_list": Case([], None),
    "result_store": Case([DEAD, "s", 60_000], "ok", ids=(0, 3)),
    "result_get": Case([DEAD], "r", ids=(0, 1)),
    "result_forget": Case([DEAD], 1, ids=(0, 1)),
}

#: The scripts that name jobs, and those that settle them under a token.
WITH_IDS = [name for name, case in CASES.items() if case.ids]
WITH_TOKENS = [name for name, case in CASES.items() if case.token]


def key_of(name: str, wire: Wire) -> str:
    """The one key that the script declares."""
    if name.startswith("cache_"):
        return table_base(wire)
    return "{emq}:node:" if name == "node_lease" else wire.base


def replaced(case: Case, entry: int, offset: int, value: str | int) -> list[str | int]:
    """The arguments with one of them replaced; ``offset`` counts from the id of the entry."""
    assert case.ids is not None
    args = list(case.args)
    args[case.ids[0] + entry * case.ids[1] + offset] = value
    return args


def raw_args(name: str) -> list[str | int]:
    """A case's arguments for a caller that sends them itself: a script that announces is told of no wishes."""
    return [*CASES[name].args, *([0] if load_scripts()[name].announces else [])]
