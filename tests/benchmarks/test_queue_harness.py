"""The benchmark of the queues runs, counts what it must, and its figures become tables and a chart."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
VARIANT = "echomq threads"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its modules can be imported, as its scripts do; they leave nothing behind for other tests."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in [name for name in sys.modules if name.partition(".")[0] in {"harness", "peers"}]:
        monkeypatch.delitem(sys.modules, name)


def run(*command: str) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_tiny_run_of_ours_measures_and_reports(tmp_path: Path) -> None:
    figures, picture = tmp_path / "run.json", tmp_path / "chart.svg"
    only = ("--peers", "echomq", "--variants", "threads", "--only", "enqueue,memory,drain,mixed,aside")
    printed = run(str(BENCHMARKS / "queues.py"), *only, "--quick", "--jobs", "300", "--json", str(figures))

    record = json.loads(figures.read_text())
    assert record["faults"] == {VARIANT: []}
    assert record["missing"] == {}
    (rate,) = record["figures"]["drain"]["jobs/s"][VARIANT]
    assert rate > 0
    (size,) = record["figures"]["enqueue"]["bytes"][VARIANT]
    assert 50 < size < 2000
    memory = {figure: values[VARIANT][0] for figure, values in record["figures"]["memory"].items()}
    assert abs(memory["short by default"] - memory["short as advised"]) < 30
    assert memory["long by default"] - memory["long as advised"] > 100, "it is longer than what is kept compact"
    assert record["figures"]["mixed"]["jobs/s"][VARIANT][0] > 0
    assert record["figures"]["aside"]["p99 ms"][VARIANT][0] > 0

    assert run(str(BENCHMARKS / "report.py"), str(figures), "--svg", str(picture)) == printed
    assert "| **echomq threads** |" in printed
    assert "## The goals" not in printed, "there is nothing to compare with"
    texts = [text for each in ElementTree.parse(picture).iter() if (text := each.text) and each.tag.endswith("text")]
    assert VARIANT in texts


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(("ran", "fault"), [(10, None), (12, "ran 2 more of 10"), (7, "ran 3 less of 10")])
def test_a_job_that_ran_twice_or_not_at_all_is_a_fault(tmp_path: Path, ran: int, fault: str | None) -> None:
    from harness.contest import Contestant, Scale, Workers
    from peers.tally import Tally

    path = tmp_path / "tally"
    first, second = Tally.create(path), Tally(path, slot=1)
    for number in range(ran):
        (first, second)[number % 2].count()
    server = SimpleNamespace(left=lambda keys: 0)
    contestant = Contestant("p", "v", Path(), {"left": []}, server, first, path, Scale())  # type: ignore[arg-type]
    Workers(contestant, []).check(10)
    assert contestant.faults == ([] if fault is None else [fault])


@pytest.mark.usefixtures("benchmarks")
def test_a_goal_compares_with_the_fastest_of_the_others() -> None:
    from harness.goals import goals
    from harness.records import Record

    record = Record()
    for peer, variant, rate in (
        ("echomq", "threads", 900),
        ("a", "default", 400),
        ("b", "default", 500),
        ("b", "tuned", 600),
    ):
        record.variants[f"{peer} {variant}"] = {"peer": peer, "variant": variant}
        record.add("drain", f"{peer} {variant}", {"jobs/s": float(rate)})
    found = {goal.what: (goal.found, goal.reached) for goal in goals(record)}
    assert found == {
        "drain, of the fastest at its defaults": ("1.80 times (b default)", False),
        "drain, of the fastest when tuned": ("1.50 times (b tuned)", True),
    }


@pytest.mark.usefixtures("benchmarks")
def test_the_rounds_of_several_runs_are_put_together(tmp_path: Path) -> None:
    from harness.records import Record

    runs = []
    for number, rates in enumerate(([1.0, 3.0], [2.0])):
        record = Record(about={"rounds": 3})
        for rate in rates:
            record.add("drain", VARIANT, {"jobs/s": rate})
        record.add(f"only in {number}", VARIANT, {"jobs/s": 9.0})
        record.add_ceilings({"bare": {"enqueue jobs/s": float(number)}})
        record.save(path := tmp_path / f"{number}.json")
        runs.append(Record.load(path))
    both, other = runs
    both.take_in(other)
    assert both.values("drain", "jobs/s", VARIANT) == [1.0, 3.0, 2.0]
    assert both.values("only in 0", "jobs/s", VARIANT) == both.values("only in 1", "jobs/s", VARIANT) == [9.0]
    assert both.ceilings == {"bare": {"enqueue jobs/s": [0.0, 1.0]}}
    assert other.values("drain", "jobs/s", VARIANT) == [2.0]
