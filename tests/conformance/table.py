"""The table of the conformance scenarios: `python -m tests.conformance.table` writes docs/conformance.md anew.

It is read from the source of the scenario files, without running or importing them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "docs" / "conformance.md"

#: The lines of the wire's page, section by section in its order; the third number of a scenario counts within its line.
LINES = {
    "3": ("absent", "equal", "anything else", "on every reconnect"),
    "5": (
        "enqueue", "enqueue_in / enqueue_at", "enqueue_many", "enqueue in a lane", "claim (flat)", "claim (ring)",
        "claim (weighted)", "claim many", "complete", "retry", "release", "promote", "reap", "sweep stalled",
        "extend (one / many)", "update_data / update_progress / add_log", "remove", "reprocess", "state of",
        "tokens, failures, delays",
    ),
    "6": (
        "pause / resume", "drain", "obliterate", "counts", "rate gate", "concurrency gate", "lane: pause, resume",
        "lane: limit", "lane: weight", "lane: depth", "lane: drain", "lane: move", "lane: reap", "groups",
        "repeat: register", "repeat: an occurrence", "repeat: cancel", "repeat: additive",
    ),
    "7": (
        "a parent waits", "children carry", "all in one queue", "over several queues", "a child completes, same queue",
        "a child completes, other queue", "a child dies, `fp`", "a child dies, `id`", "level by level",
        "outbox entries", "trees",
    ),
    "8": (
        "retained: the entry", "retained: its order", "retained: many writers", "retained: read", "retained: trim",
        "groups: the start", "groups: own pending first", "groups: what the dead hold", "groups: attempts",
        "groups: a failing handler", "live: a job", "live: a queue", "live: in order", "live: nothing is said",
    ),
    "9": (
        "the row", "a short frame", "one flight per key", "the flight's version", "newer wins", "coherence messages",
        "the conditional drop", "the kind", "tags",
    ),
}  # fmt: skip
TITLES = {
    "3": "The fence", "5": "Transitions of one job", "6": "The whole queue", "7": "Flows", "8": "The Bus",
    "9": "The Cache",
}  # fmt: skip
FILES = {
    "3": ("fence",),
    "5": ("admission", "claiming", "settling", "upkeep", "one_job"),
    "6": ("queue", "lanes", "repeats"),
    "7": ("flows", "failures"),
    "8": ("log", "groups", "events"),
    "9": ("cache",),
}

INTRODUCTION = """\
# Conformance

What a runtime of the EchoMQ wire must do, as {count} scenarios: each names a line of the wire's page, in the order of
that page, and is checked on the raw keys of the queue, whole, and through the API. Where it makes a difference, the
scenario begins twice: with keys that were written by plain commands, as another runtime writes them, and with keys that
our own verbs wrote. Every scenario runs over RESP2, RESP3 and a cluster of three masters:

    pytest tests/conformance/test_wire_*.py

A number is section, line and scenario. This table is written by `python -m tests.conformance.table`; a test checks that
it is up to date.
"""


@dataclass(frozen=True)
class Scenario:
    """One scenario as its file has it; ``number`` is "" for a test that has no mark."""

    number: str
    line: str
    name: str

    @property
    def key(self) -> tuple[int, ...]:
        """What its number sorts by."""
        return tuple(int(part) for part in self.number.split("."))


def modules(section: str) -> list[str]:
    """The names of the modules that hold a section's scenarios, in the order of the page."""
    return [f"test_wire_{section}_{part}" for part in FILES[section]]


def scenarios(module: str) -> list[Scenario]:
    """The tests of a module, in the order in which they stand there."""
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return [
        Scenario(*(_mark(node) or ("", "")), node.name.removeprefix("test_"))
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def section_scenarios(section: str) -> list[Scenario]:
    """All scenarios of a section."""
    return [each for module in modules(section) for each in scenarios(module)]


def _mark(function: ast.FunctionDef) -> tuple[str, str] | None:
    for mark in function.decorator_list:
        if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "scenario":
            number, line = (ast.literal_eval(argument) for argument in mark.args)
            return number, line
    return None


def document() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION.format(count=sum(len(section_scenarios(section)) for section in FILES))
    for section, title in TITLES.items():
        yield f"## §{section} {title}"
        yield ""
        yield "| number | line | what the wire says | scenario |"
        yield "|---|---|---|---|"
        for each in section_scenarios(section):
            line = LINES[section][each.key[1] - 1]
            said = each.line.replace("|", "\\|")
            yield f"| {each.number} | {line} | {said} | {each.name.replace('_', ' ')} |"
        yield ""


def main() -> None:
    """Write the page."""
    DOCUMENT.write_text(document())


if __name__ == "__main__":
    main()
