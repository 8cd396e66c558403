"""A job as JSON and as text, with whatever bytes its producer put into it."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echomq_tasks.cli.terminal import clean, clean_lines, iso, local_time, print_facts
from echomq_tasks.queue import Children, JobInfo, State

#: What stands beside the time that a job has in these states.
_DUE = {State.SCHEDULED: "runs at", State.ACTIVE: "lease ends"}


@dataclass(frozen=True, slots=True)
class Beside:
    """What is kept beside a job's row.

    Attributes:
      logs: the lines of its log.
      result: its encoded result, None when there is none.
      children: what it knows of its children, None when it has no row.
      lane: what its lane is called, None when it is in none.
    """

    logs: list[str]
    result: bytes | None
    children: Children | None
    lane: str | None = None


def bytes_json(name: str, value: bytes | None) -> dict[str, str | None]:
    """Bytes for JSON: as text, or in base64 under another name when they are none."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(value).decode()}


def job_json(job: JobInfo) -> dict[str, Any]:
    """A job's row for JSON."""
    return {
        "id": job.id,
        "state": job.state.value,
        "minted": iso(job.minted),
        "due": iso(job.due),
        "died": iso(job.died),
        "attempts": job.attempts,
        "failures": job.failures,
        "stalled": job.stalled,
        "priority": job.priority,
        "group": job.group,
        "cancelled": job.cancelled,
        "progress": job.progress,
        "last_error": job.last_error,
        "parent": _text(job.fields.get("parent")),
        "parent_queue": _text(job.fields.get("parent_queue")),
        **bytes_json("payload", job.payload),
    }


def beside_json(beside: Beside) -> dict[str, Any]:
    """What is kept beside a job, for JSON."""
    children = beside.children
    return {
        "logs": beside.logs,
        **bytes_json("result", beside.result),
        "children": None
        if children is None
        else {
            "outstanding": children.outstanding,
            **_results_json(children.results),
            "failures": dict(children.failures),
            "ignored": dict(children.ignored),
        },
    }


def _results_json(results: Mapping[str, bytes]) -> dict[str, dict[str, str]]:
    """What children returned, as :func:`bytes_json` has each: those that are no text stand apart."""
    found: dict[str, dict[str, str]] = {"results": {}}
    for child, value in results.items():
        for name, shown in bytes_json("results", value).items():
            if shown is not None:
                found.setdefault(name, {})[child] = shown
    return found


def print_job(job: JobInfo, queue: str, beside: Beside) -> None:
    """Print all there is of a job."""
    facts: list[tuple[str, Any]] = [("job", job.id), ("queue", queue), ("state", job.state.value)]
    facts.append(("sent", local_time(job.minted)))
    if job.due is not None:
        facts.append((_DUE.get(job.state, "due"), local_time(job.due)))
    if job.died is not None:
        facts.append(("died", local_time(job.died)))
    tries = f"claimed {_times(job.attempts)}"
    if job.attempts:
        tries += f", failed {_times(job.failures)}"
    facts.append(("tries", tries + (f", worker died {_times(job.stalled)}" if job.stalled else "")))
    if job.priority:
        facts.append(("priority", job.priority))
    if job.group is not None:
        facts.append(("lane", job.group if beside.lane in (None, job.group) else f"{beside.lane} ({job.group})"))
    if parent := _text(job.fields.get("parent")):
        where = _text(job.fields.get("parent_queue"))
        facts.append(("parent", f"{parent} in {where}" if where else parent))
    if job.cancelled:
        facts.append(("cancelled", "it was asked to stop"))
    if job.progress is not None:
        facts.append(("progress", job.progress))
    print_facts(facts)
    _section("payload", pretty(job.payload))
    if job.last_error is not None:
        _section("last error", clean_lines(job.last_error.rstrip("\n")))
    print_beside(beside)


def print_beside(beside: Beside) -> None:
    """Print what is kept beside a job's row; nothing for what is not there."""
    if beside.result is not None:
        _section("result", pretty(beside.result))
    if beside.logs:
        _section("log", "\n".join(clean(line) for line in beside.logs))
    children = beside.children
    if children is None:
        return
    lines = [f"{clean(child)}  done" for child in children.results]
    lines += [f"{clean(child)}  failed: {first_line(error)}" for child, error in children.failures.items()]
    lines += [f"{clean(child)}  failed, ignored: {first_line(error)}" for child, error in children.ignored.items()]
    if children.outstanding:
        lines.append(f"{children.outstanding:,} still to end")
    if lines:
        _section("children", "\n".join(lines))


def pretty(data: bytes) -> str:
    """Bytes for a person: JSON indented, text as it is, anything else as Python writes bytes."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return f"{len(data):,} bytes that are no text: {data[:200]!r}{'...' if len(data) > 200 else ''}"
    try:
        return clean_lines(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
    except (ValueError, RecursionError):
        return clean_lines(text) if text else "(empty)"


def first_line(text: str | None) -> str:
    """The first line of a text, as a cell of a table."""
    return clean((text or "").strip().split("\n", 1)[0])


def _section(title: str, text: str) -> None:
    print(f"\n{title}")
    for line in text.split("\n"):
        print(f"  {line}".rstrip())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number:,} times")
