"""The figures of a run as a picture: plain SVG, light or dark as the reader's screen."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from harness.records import Record
from harness.tables import elsewhere, mark, medians, number, ordered

WIDTH, MARGIN, GAP = 980, 24, 36
LABELS, VALUES = 188, 54
BAR, ROW, HEADER, AXIS = 11, 18, 46, 10

STYLE = """
  svg { color-scheme: light dark; }
  .paper { fill: #ffffff; } text { fill: #1f2933; font: 12px system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; }
  .title { font-size: 18px; font-weight: 600; } .panel { font-size: 13px; font-weight: 600; }
  .quiet { fill: #6b7683; font-size: 11px; } .ours-text { font-weight: 600; }
  .track { fill: #f0f2f5; } .ours { fill: #0f766e; } .default { fill: #b4bcc8; } .tuned { fill: #7c8898; }
  .range { stroke: #1f2933; stroke-width: 1; opacity: .55; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } text { fill: #e6edf3; } .quiet { fill: #9aa5b1; } .track { fill: #1a2029; }
    .ours { fill: #2dd4bf; } .default { fill: #4b5563; } .tuned { fill: #7d8896; } .range { stroke: #e6edf3; }
  }
"""


@dataclass(frozen=True)
class Panel:
    """One figure of all variants."""

    title: str
    hint: str
    measure: str
    figure: str
    #: A logarithmic scale, for figures that differ by orders of magnitude.
    log: bool = False


PANELS = (
    Panel("Jobs a second, 1 process", "no-op, 8 at once, chasquimq tuned 100; longer is better", "drain", "jobs/s"),
    Panel("Jobs a second, 2 processes", "no-op, 8 each, chasquimq tuned 100; longer is better", "drain 2", "jobs/s"),
    Panel("Sent a second, one by one", "longer is better", "enqueue", "one jobs/s"),
    Panel("Sent a second, in bulk", "longer is better", "enqueue", "bulk jobs/s"),
    Panel(
        "Milliseconds to start a job, median", "idle worker; logarithmic; shorter is better", "pickup", "p50 ms", True
    ),
    Panel("Bytes of the server a waiting job", "shorter is better", "enqueue", "bytes"),
)


def chart(record: Record) -> str:
    """The picture: two panels beside each other, for each figure that the run has."""
    panels = [panel for panel in PANELS if _values(record, panel)]
    width = (WIDTH - 2 * MARGIN - GAP) / 2
    parts, top = [], 78.0
    for first in range(0, len(panels), 2):
        pair = panels[first : first + 2]
        for column, panel in enumerate(pair):
            parts.append(_panel(record, panel, MARGIN + column * (width + GAP), top, width))
        top += HEADER + max(len(_values(record, panel)) for panel in pair) * ROW + AXIS + 18
    height = math.ceil(top + 6)
    about = record.about
    subtitle = f"{about['server']}, {about['machine']}, {about['date']}; {medians(record)}"
    if strangers := elsewhere(record):
        subtitle += f"; † on {', '.join(strangers)}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="Job queues for Python compared">\n<style>{STYLE}</style>\n'
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>\n'
        f'<text class="title" x="{MARGIN}" y="36">Job queues for Python on one server</text>\n'
        f'<text class="quiet" x="{MARGIN}" y="55">{escape(subtitle)}</text>\n'
        f"{_legend()}\n" + "\n".join(parts) + "\n</svg>\n"
    )


def _legend() -> str:
    parts, x = [], WIDTH - MARGIN - 342
    for name, label, step in (
        ("ours", "echomq_tasks", 112),
        ("default", "at its defaults", 112),
        ("tuned", "tuned", 0),
    ):
        parts.append(f'<rect class="{name}" x="{x}" y="27" width="11" height="11" rx="2"/>')
        parts.append(f'<text class="quiet" x="{x + 16}" y="36">{label}</text>')
        x += step
    parts.append(f'<line class="range" x1="{x + 62}" x2="{x + 82}" y1="32.5" y2="32.5"/>')
    parts.append(f'<text class="quiet" x="{x + 87}" y="36">spread</text>')
    return "".join(parts)


def _values(record: Record, panel: Panel) -> list[tuple[str, list[float]]]:
    found = [(name, record.values(panel.measure, panel.figure, name)) for name in ordered(record)]
    known = [(name, values) for name, values in found if values and statistics.median(values) > 0]
    return sorted(known, key=lambda row: statistics.median(row[1]), reverse="longer is better" in panel.hint)


def _panel(record: Record, panel: Panel, left: float, top: float, width: float) -> str:
    rows = _values(record, panel)
    room = width - LABELS - VALUES
    scale = _scale([value for _, values in rows for value in values], room, panel.log)
    parts = [
        f'<text class="panel" x="{left}" y="{top + 14}">{escape(panel.title)}</text>',
        f'<text class="quiet" x="{left}" y="{top + 30}">{escape(panel.hint)}</text>',
    ]
    for number_, (name, values) in enumerate(rows):
        parts.append(_row(record, name, values, left, top + HEADER + number_ * ROW, room, scale))
    return "\n".join(parts)


def _row(
    record: Record, name: str, values: Sequence[float], left: float, top: float, room: float, scale: _Scale
) -> str:
    variant = record.variants[name]
    ours = variant["peer"] == "echomq"
    kind = "ours" if ours else "tuned" if variant["variant"] == "tuned" else "default"
    label = name if ours or variant["variant"] != "default" else variant["peer"]
    label += mark(record, name)
    middle = statistics.median(values)
    x, y, length = left + LABELS, top + (ROW - BAR) / 2, scale(middle)
    bold = ' class="ours-text"' if ours else ""
    low, high = scale(min(values)), scale(max(values))
    parts = [
        f'<text x="{x - 8:.1f}" y="{top + 13:.1f}" text-anchor="end"{bold}>{escape(label)}</text>',
        f'<rect class="track" x="{x:.1f}" y="{y:.1f}" width="{room:.1f}" height="{BAR}" rx="2"/>',
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" height="{BAR}" rx="2"/>',
        f'<text class="quiet" x="{x + room + 6:.1f}" y="{top + 13:.1f}">{number(middle)}</text>',
    ]
    if len(values) > 1 and high - low > 1:
        y += BAR / 2
        parts.append(f'<line class="range" x1="{x + low:.1f}" x2="{x + high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
    return "".join(parts)


class _Scale:
    """Where a value is on the axis."""

    def __init__(self, lowest: float, highest: float, room: float, *, log: bool) -> None:
        self._lowest, self._highest, self._room, self._log = lowest, highest, room, log

    def __call__(self, value: float) -> float:
        if self._log:
            part = math.log(value / self._lowest) / math.log(self._highest / self._lowest)
        else:
            part = value / self._highest
        return max(part * self._room, 1.5)


def _scale(values: Sequence[float], room: float, log: bool) -> _Scale:
    # A logarithmic axis begins below the least, or its bar would have no length.
    return _Scale(min(value for value in values if value > 0) / 2, max(values), room, log=log)
