"""A script that fails names the file and line a person edits, in a fragment as in the script itself."""

from __future__ import annotations

from hashlib import sha1
from pathlib import Path

import pytest
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.errors import ScriptError
from echomq_tasks.scripts import Scripts
from echomq_tasks.scripts.loader import Script, load_scripts

STATEMENTS = {
    "a call that the server refuses": "redis.call('INCR', base .. 'meta')",
    "an error of Lua's own": "local nothing = nil; nothing.field = 1",
}


def broken(name: str, after: str, statement: str) -> tuple[Script, str]:
    """The script with one more statement on the line that begins with ``after``; and where that is."""
    script = load_scripts()[name]
    lines = script.text.splitlines()
    index = next(number for number, line in enumerate(lines) if line.lstrip().startswith(after))
    lines[index] += " " + statement
    text = "\n".join(lines) + "\n"
    sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, script.lines), script.locate(index + 1)


def install(monkeypatch: pytest.MonkeyPatch, connection: Connection, script: Script) -> Scripts:
    scripts = Scripts.of(connection)
    monkeypatch.setitem(scripts._scripts, script.name, script)  # noqa: SLF001 - one broken script among the others
    return scripts


@pytest.mark.parametrize("kind", STATEMENTS)
@pytest.mark.parametrize(
    ("name", "after", "file"),
    [
        ("job_promote", "local base = KEYS[1]", "lua/job_promote.lua:"),
        ("job_promote", "local promoted = 0", "lua/_promote.lua:"),
        ("queue_counts", "local seen, groups = {}, {}", "lua/_groups.lua:"),
    ],
)
def test_a_failing_statement_is_found(
    connection: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch, name: str, after: str, file: str, kind: str
) -> None:
    wire.do("HSET", "meta", "max", 5)  # so that INCR on it fails
    script, place = broken(name, after, STATEMENTS[kind])
    assert place.startswith(file)
    scripts = install(monkeypatch, connection, script)
    with pytest.raises(ScriptError) as failure:
        scripts.call(name, wire.base.encode(), [10])
    assert str(failure.value).startswith(place + ": ")


@pytest.mark.parametrize(
    ("after", "file"), [("local base = KEYS[1]", "lua/job_promote.lua:"), ("local promoted = 0", "lua/_promote.lua:")]
)
def test_a_statement_that_does_not_compile_is_found(
    connection: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch, after: str, file: str
) -> None:
    script, place = broken("job_promote", after, "if then")
    assert place.startswith(file)
    scripts = install(monkeypatch, connection, script)
    with pytest.raises(ScriptError) as failure:
        scripts.call("job_promote", wire.base.encode(), [10])
    assert place in str(failure.value)


def test_a_foreign_key_of_a_wrong_type_is_a_script_error_with_its_line(connection: Connection, wire: Wire) -> None:
    wire.do("SET", "pending", "not a zset")
    with pytest.raises(ScriptError, match=r"^lua/_counts\.lua:\d+: WRONGTYPE"):
        Scripts.of(connection).call("queue_counts", wire.base.encode())


def test_an_error_class_that_is_not_in_the_registry_is_a_script_error(
    connection: Connection, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "#!lua\nreturn redis.error_reply('EMQNEW something')\n"
    sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
    scripts = install(monkeypatch, connection, Script("job_promote", text, sha, ()))
    with pytest.raises(ScriptError, match="EMQNEW something"):
        scripts.call("job_promote", wire.base.encode(), [10])


def test_every_line_of_every_script_reads_as_in_the_file_that_the_map_names() -> None:
    folder = Path(__file__).parents[2] / "lua"
    sources = {path.stem: path.read_text().splitlines() for path in folder.glob("*.lua")}
    for script in load_scripts().values():
        text = script.text.splitlines()
        assert len(text) == len(script.lines)
        for number, line in enumerate(text, 1):
            file, _, at = script.locate(number).removeprefix("lua/").partition(".lua:")
            assert sources[file][int(at) - 1] == line
        assert script.locate(len(text) + 1) == f"lua/{script.name}.lua"
