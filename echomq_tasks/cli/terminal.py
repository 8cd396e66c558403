"""Talk to a person: tables that fit the terminal, ages, and the question before something is destroyed."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any

from echomq_tasks.errors import EchoMQError

#: How many rows decide how wide the columns of a table are; the others are printed as they come.
_LOOK_AHEAD = 200
_LEAST_WIDTH = 8


def clean(text: str) -> str:
    """One printable line: what others wrote must not drive the terminal, nor break a table."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def clean_lines(text: str) -> str:
    """As :func:`clean`, with line ends and tabs kept."""
    return "\n".join(clean(line.expandtabs(4)) for line in text.replace("\r\n", "\n").split("\n"))


def width(text: str) -> int:
    """How many columns of a terminal a printable text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def shorten(text: str, most: int, *, keep_end: bool = False) -> str:
    """Cut a text to ``most`` columns, and show that it was; in the middle when its end tells more than that."""
    if width(text) <= most:
        return text
    end = _beginning(text[::-1], (most - 1) * 2 // 3)[::-1] if keep_end else ""
    return _beginning(text, most - 1 - width(end)) + "…" + end


def _beginning(text: str, most: int) -> str:
    taken = 0
    for place, each in enumerate(text):
        taken += width(each)
        if taken > most:
            return text[:place]
    return text


def columns() -> int | None:
    """How wide the terminal is; None when standard output is none, and nothing has to fit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    flexible: Sequence[int],
    absent: str = "-",
    keep_ends: bool = False,
) -> int:
    """Print a table and answer how many rows it had; numbers and percentages stand on the right.

    Parameters:
      heads: a name for each column.
      rows: their cells; read as they are printed, so that a long list starts at once.
      flexible: the columns that are cut when the table is wider than the terminal, in this order.
      absent: what stands for None.
      keep_ends: whether cells are cut in the middle, as names that begin alike are.
    """
    source = iter(rows)
    first = list(islice(source, _LOOK_AHEAD))
    shown = [[_cell(value, absent) for value in row] for row in first]
    widths = [max(width(row[place]) for row in [list(heads), *shown]) for place in range(len(heads))]
    right = [bool(first) and _is_number(row) for row in zip(*first, strict=True)] or [False] * len(heads)
    most = columns()
    if most is not None:
        excess = sum(widths) + 2 * (len(widths) - 1) - most
        for place in flexible:
            if excess > 0:
                smaller = max(min(widths[place], max(_LEAST_WIDTH, width(heads[place]))), widths[place] - excess)
                excess -= widths[place] - smaller
                widths[place] = smaller
    count = 0
    for cells in chain([list(heads)], shown, ([_cell(value, absent) for value in row] for row in source)):
        parts: list[str] = []
        for place, text in enumerate(cells):
            if most is not None and place in flexible:
                text = shorten(text, widths[place], keep_end=keep_ends)
            space = " " * (widths[place] - width(text))
            parts.append(space + text if right[place] else text + space)
        print("  ".join(parts).rstrip())
        count += 1
    return count - 1


def _is_number(values: Sequence[Any]) -> bool:
    return all(
        value is None or (isinstance(value, int) and not isinstance(value, bool)) or _is_percentage(value)
        for value in values
    )


def _is_percentage(value: Any) -> bool:
    return isinstance(value, str) and value.endswith("%") and value[:-1].replace(".", "", 1).isdecimal()


def _cell(value: Any, absent: str = "-") -> str:
    if value is None:
        return absent
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else clean(str(value))


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, a line each, the values below each other."""
    lines = [(name, _cell(value)) for name, value in facts]
    space = max((len(name) for name, _ in lines), default=0) + 2
    for name, value in lines:
        print(f"{name:{space}}{value}")


def print_lines(lines: Iterable[str]) -> None:
    """Print lines under the one before them."""
    for line in lines:
        print(f"  {line}")


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=2))


def print_json_list(values: Iterable[Any]) -> None:
    """Print a JSON list, each of its values as soon as it is there."""
    end = "["
    for value in values:
        print(end, json.dumps(value, indent=2), sep="\n", end="")
        end = ","
    print("[]" if end == "[" else "\n]")


def note(text: str) -> None:
    """Tell a person something beside the data that is printed."""
    print(f"echomq: {text}", file=sys.stderr)


def advice(error: EchoMQError) -> str:
    """What an error says at a prompt: what the library advises to its callers is another thing there."""
    return str(error).replace("url=, host= and port=", "--url")


def for_how_long(seconds: float) -> str:
    """A duration in its two largest units, as in ``3h 20m``."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f}ms"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or parts:
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(part for part in parts[:2] if not (part.startswith("0") and part != parts[0]))


def local_time(instant: datetime) -> str:
    """An instant in the time zone of this machine, to the second."""
    try:
        return instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        # At the edges of what Python can name there is no other zone.
        return instant.strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(instant: datetime | None) -> str | None:
    """An instant for JSON, in UTC."""
    return None if instant is None else instant.astimezone(UTC).isoformat()


def jobs(count: int, kind: str = "") -> str:
    """``3 dead jobs``, ``1 job``."""
    return f"{count:,} {kind + ' ' if kind else ''}job{'' if count == 1 else 's'}"


def cannot_ask(options: argparse.Namespace) -> bool:
    """Whether a command that destroys has to stop, before anything else; says so, and its exit code is 2."""
    if options.yes or options.dry_run or (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    note("without a terminal to ask on, say --yes to do it or --dry-run to see what would be done; nothing was changed")
    return True


def agreed(options: argparse.Namespace) -> bool:
    """Ask whether to go on with what was said, unless an option has answered; tells when nothing was changed."""
    if options.dry_run:
        print("Nothing was changed: this was a dry run.")
        return False
    if options.yes:
        return True
    try:
        while True:
            match input("Go on? yes or no: ").strip().lower():
                case "y" | "yes":
                    return True
                case "n" | "no" | "":
                    break
    except EOFError:
        print()
    except KeyboardInterrupt:
        print("\nNothing was changed.")
        raise
    print("Nothing was changed.")
    return False


def stopped(options: argparse.Namespace) -> int:
    """The exit code of a command that was not agreed to."""
    return 0 if options.dry_run else 1
