"""What is counted, and how: plain functions on files, no broker in here."""

from __future__ import annotations

import json
import keyword
import sysconfig
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

STDLIB = Path(sysconfig.get_path("stdlib"))
#: Where other people's packages are installed, below the standard library.
LEFT_OUT = {"site-packages", "dist-packages"}


@dataclass
class Index:
    """How often each identifier occurs, in how many files; and how many files could not be read as Python."""

    counts: Counter[str] = field(default_factory=Counter)
    files: int = 0
    skipped: int = 0

    def dump(self) -> str:
        return json.dumps(vars(self))

    @classmethod
    def load(cls, text: str | bytes) -> Index:
        found = json.loads(text)
        return cls(Counter(found["counts"]), found["files"], found["skipped"])


def sources(limit: int | None = None) -> dict[str, list[str]]:
    """Return the files of each top-level package, relative to `STDLIB`; at most ``limit`` files in all."""
    files = (path.relative_to(STDLIB) for path in sorted(STDLIB.rglob("*.py")) if path.is_file())
    packages: dict[str, list[str]] = defaultdict(list)
    for file in islice((file for file in files if LEFT_OUT.isdisjoint(file.parts)), limit):
        packages[file.parts[0] if len(file.parts) > 1 else "(modules)"].append(str(file))
    return dict(packages)


def index_source(file: str) -> Index:
    """Count the identifiers of one file; keywords are none."""
    try:
        with (STDLIB / file).open("rb") as source:
            names = [token.string for token in tokenize.tokenize(source.readline) if token.type == tokenize.NAME]
    except (SyntaxError, UnicodeDecodeError, tokenize.TokenError):
        return Index(skipped=1)
    return Index(Counter(name for name in names if not keyword.iskeyword(name)), files=1)


def merge(parts: Iterable[Index]) -> Index:
    """Add up indexes."""
    total = Index()
    for part in parts:
        total.counts.update(part.counts)
        total.files += part.files
        total.skipped += part.skipped
    return total
