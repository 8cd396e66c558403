"""Tables and a chart of what `queues.py` found: `python benchmarks/report.py RUN.json --svg CHART.svg > PAGE.md`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.chart import chart
from harness.records import Record
from harness.tables import document


def main() -> None:
    """Print the tables; write the chart where it is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="what queues.py wrote with --json; others add their rounds")
    parser.add_argument("--svg", type=Path, help="where to write the chart")
    options = parser.parse_args()
    record, *others = map(Record.load, options.runs)
    for other in others:
        record.take_in(other)
    if options.svg:
        options.svg.write_text(chart(record))
    sys.stdout.write(document(record))


if __name__ == "__main__":
    main()
