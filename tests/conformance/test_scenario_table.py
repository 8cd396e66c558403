"""The conformance scenarios stand in the order of the wire's page, cover all its lines, and are listed in the guide."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conformance import table

SECTIONS = pytest.mark.parametrize("section", table.FILES)


@SECTIONS
def test_every_test_of_a_scenario_file_is_a_numbered_scenario_of_its_section(section: str) -> None:
    for each in table.section_scenarios(section):
        assert re.fullmatch(rf"{section}\.\d\d\.[1-9]\d?", each.number), f"{each.name}: {each.number!r}"
        assert each.line, each.name


@SECTIONS
def test_scenarios_stand_in_the_order_of_the_page_and_no_number_is_left_out_or_there_twice(section: str) -> None:
    keys = [each.key for each in table.section_scenarios(section)]
    expected = [
        (int(section), line, number)
        for line in range(1, len(table.LINES[section]) + 1)
        for number in range(1, sum(key[1] == line for key in keys) + 1)
    ]
    assert keys == expected


@SECTIONS
def test_every_line_of_the_page_has_a_scenario(section: str) -> None:
    told = {each.key[1] for each in table.section_scenarios(section)}
    assert told == set(range(1, len(table.LINES[section]) + 1))


@SECTIONS
def test_what_the_table_reads_is_what_is_run(section: str) -> None:
    for name in table.modules(section):
        module = importlib.import_module(f"conformance.{name}")
        for each in table.scenarios(name):
            assert vars(module)[f"test_{each.name}"].scenario == (each.number, each.line)


def test_every_scenario_file_is_read() -> None:
    there = {path.stem for path in table.HERE.glob("test_wire_*.py")}
    assert there == {name for section in table.FILES for name in table.modules(section)}


def test_there_are_at_least_sixty_scenarios_of_different_names() -> None:
    names = [each.name for section in table.FILES for each in table.section_scenarios(section)]
    assert len(names) == len(set(names)) >= 60


def test_the_table_in_the_guide_is_the_generated_one() -> None:
    assert table.DOCUMENT.read_text() == table.document(), "run python -m tests.conformance.table"


def test_the_table_is_written_by_one_command(tmp_path: Path) -> None:
    root = table.DOCUMENT.parents[1]
    script = (
        "import pathlib, sys; from tests.conformance import table; "
        "table.DOCUMENT = pathlib.Path(sys.argv[1]); table.main()"
    )
    written = tmp_path / "conformance.md"
    subprocess.run([sys.executable, "-c", script, str(written)], cwd=root, check=True, timeout=60)
    assert written.read_text() == table.document()
