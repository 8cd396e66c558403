"""The page about the command names all of it, and each of its command lines would be understood."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest

from echomq_tasks.cli.main import GROUPS, main, parser
from echomq_tasks.cli.metrics import exposition
from echomq_tasks.queue import Metrics

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
BLOCKS = re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LINES = [line.removeprefix("$ ") for block in BLOCKS for line in block.splitlines() if line.startswith("$ ")]
COMMANDS = [name for names in GROUPS.values() for name in names]
#: What every command has, or is explained by `--help` well enough.
EXPLAINED_BY_HELP = {
    "--help",
    "--url",
    "--json",
    "--processes",
    "--threads",
    "--queues",
    "--path",
    "--watch",
    "--verbose",
}


def commands() -> dict[str, argparse.ArgumentParser]:
    """Each command's own parser."""
    (action,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]  # noqa: SLF001
    return dict(action.choices)


def test_the_general_help_lists_every_command_once_and_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sorted(COMMANDS) == sorted(commands())
    for name in COMMANDS:
        assert len([line for line in lines if line.startswith(f"  {name} ")]) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_the_page_shows_every_command_and_names_its_options(name: str) -> None:
    assert [line for line in LINES if line.split()[1] == name]
    options = {
        text for action in commands()[name]._actions for text in action.option_strings if text.startswith("--")  # noqa: SLF001
    }  # fmt: skip
    for option in options - EXPLAINED_BY_HELP:
        assert re.search(rf"{option}\b", PAGE), option


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_of_the_page_is_understood(line: str) -> None:
    program, *arguments = shlex.split(line, comments=True)
    assert program == "echomq"
    assert parser().parse_args(arguments).run is not None


def test_the_page_lists_every_metric_with_its_type() -> None:
    empty = Metrics(0, 0, 0, 0, 0, 0, 0, 0, 0, None, None, paused=False)
    exposed = set(re.findall(r"# TYPE (\S+) (\S+)", exposition({"q": empty})))
    assert set(re.findall(r"^\| `(echomq_queue_\w+)` \| (\w+) \|", PAGE, re.MULTILINE)) == exposed
    assert len(exposed) == 13
