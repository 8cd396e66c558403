"""Every script says on its first lines what it does, reads, answers and costs; and what it says is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from echomq_tasks.errors import REFUSALS
from echomq_tasks.scripts.loader import load_scripts

FOLDER = Path(__file__).parents[2] / "lua"
SOURCES = {path.stem: path.read_text().splitlines() for path in sorted(FOLDER.glob("*.lua"))}
SCRIPTS = [name for name in SOURCES if not name.startswith("_")]
FRAGMENTS = [name for name in SOURCES if name.startswith("_")]
FIELDS = ("ARGV", "RETURNS", "ERRORS", "WRITES", "COST")
TYPES = ("string", "hash", "list", "set", "zset", "stream", "prefix")


def header(name: str) -> dict[str, str]:
    """The named lines of a script's header; they stand in one order, each on one line."""
    lines = SOURCES[name]
    found: dict[str, str] = {}
    for line in lines[2:]:
        match = re.fullmatch(r"-- (KEYS\[\d+\]|[A-Z]+):? +(.+)", line)
        if match is None:
            break
        found[match[1]] = match[2]
    return found


def includes(name: str) -> list[str]:
    return [line.removeprefix("-- @include ") for line in SOURCES[name] if line.startswith("-- @include ")]


def code(name: str) -> str:
    return "\n".join(line for line in SOURCES[name] if not line.lstrip().startswith("--"))


def functions(fragment: str) -> set[str]:
    return set(re.findall(r"^local function (\w+)", code(fragment), re.MULTILINE))


def test_the_folder_is_what_the_package_loads() -> None:
    assert sorted(load_scripts()) == SCRIPTS
    assert len(FRAGMENTS) > 5


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_begins_with_a_shebang_and_its_purpose_in_one_line(name: str) -> None:
    assert re.fullmatch(r"#!lua( flags=(no-writes|allow-oom))?", SOURCES[name][0])
    assert re.fullmatch(r"-- [A-Z][a-z]+ .{10,}\.", SOURCES[name][1])
    assert re.fullmatch(r"[a-z]+_[a-z]+", name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_names_keys_arguments_reply_errors_writes_and_cost_in_order(name: str) -> None:
    found = header(name)
    assert tuple(found) == ("KEYS[1]", *FIELDS)
    assert re.fullmatch(rf"\w+ +({'|'.join(TYPES)}) +.+", found["KEYS[1]"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_declares_every_key_and_argument_it_reads(name: str) -> None:
    assert set(re.findall(r"KEYS\[(\d+)\]", code(name))) == {"1"}
    reads_arguments = "ARGV" in code(name) or "event_begin(" in code(name)
    assert reads_arguments == (header(name)["ARGV"] != "none")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_writes_nothing_says_so_to_the_server_and_no_other_does(name: str) -> None:
    assert (SOURCES[name][0] == "#!lua flags=no-writes") == (header(name)["WRITES"] == "nothing")


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_errors_named_are_those_raised_and_each_has_its_exception(name: str) -> None:
    named = header(name)["ERRORS"]
    classes = set() if named == "none" else set(named.split(", "))
    assert classes <= REFUSALS.keys()
    raised = set(re.findall(r"error_reply\('(EMQ\w+)", code(name)))
    if "settle_kinds(" in code(name):
        raised.add("EMQKIND")
    if "lock_refusal(" in code(name):
        raised.add("EMQLOCK")
    assert raised == classes


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_includes_what_exists_once_and_uses_it(name: str) -> None:
    fragments = includes(name)
    assert len(set(fragments)) == len(fragments)
    assert set(fragments) <= set(FRAGMENTS)
    for fragment in fragments:
        users = [code(name), *(code(other) for other in fragments if other != fragment)]
        used = {function for function in functions(fragment) if any(f"{function}(" in user for user in users)}
        assert used, f"lua/{name}.lua includes {fragment} and calls nothing of it"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_includes_every_function_it_calls_before_it_is_called(name: str) -> None:
    everywhere = {function: fragment for fragment in FRAGMENTS for function in functions(fragment)}
    text = load_scripts()[name].text
    for function in everywhere:
        calls = [match.start() for match in re.finditer(rf"\b{function}\(", text)]
        defined = text.find(f"local function {function}(")
        if calls:
            assert defined >= 0, f"lua/{name}.lua calls {function}() of {everywhere[function]} and does not include it"
            assert min(calls) >= defined


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_a_fragment_only_defines_local_functions_and_includes_nothing(fragment: str) -> None:
    assert SOURCES[fragment][0].startswith("-- ")
    assert includes(fragment) == []
    assert functions(fragment)
    # A statement outside a function would start in the first column.
    outside = [line for line in code(fragment).splitlines() if line and not line.startswith((" ", "local function "))]
    assert set(outside) == {"end"}
    assert "KEYS[" not in code(fragment)


@pytest.mark.parametrize("name", SOURCES)
def test_no_script_walks_the_keyspace_or_takes_a_key_name_from_a_value(name: str) -> None:
    commands = set(re.findall(r"redis\.call\('(\w+)'", code(name)))
    assert not commands & {"KEYS", "SCAN", "RANDOMKEY", "EVAL", "SELECT", "FLUSHDB", "FLUSHALL"}
    # Every key is the base, or begins with it: a parameter, a concatenation, or a local made of one.
    keys = re.findall(r"redis\.call\('(?!TIME)\w+', ([\w.]+)", code(name))
    assert set(keys) <= {"base", "row", "key", "lane_key", "nodes"}


@pytest.mark.parametrize("name", SOURCES)
def test_the_clock_is_read_by_one_fragment_and_at_most_once_a_script(name: str) -> None:
    assert code(name).count("'TIME'") == (1 if name == "_clock" else 0)
    if name in SCRIPTS:
        assert code(name).count("clock_ms()") <= 1
