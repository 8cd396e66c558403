"""Load `lua/`, expand includes and keep a line map, so that an error names the file a person edits.

An include may stand anywhere on the top level of a script, not at its head only: what stands before it runs before the
functions of the fragment are made. A call that is answered on a quick path, with an early `return` inside of a block,
so does not pay for the making of functions that only the long path uses; that is a good part of a short script.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from echomq_tasks.errors import ScriptError

_INCLUDE = re.compile(r"-- @include (_\w+)\s*")


@dataclass(frozen=True, slots=True)
class Script:
    """One transition, ready for the server.

    Attributes:
      name: the file's stem, as in ``job_claim``.
      text: what the server runs, includes expanded.
      sha: the digest that EVALSHA names it by.
      announces: whether its last argument is the number of those before it that say what to announce.
      lines: for each line of ``text``, from 1, the ``lua/<file>:<line>`` it came from.
    """

    name: str
    text: str
    sha: str
    lines: tuple[str, ...]
    announces: bool = False

    def locate(self, line: int) -> str:
        """The source of line ``line`` (from 1) of the expanded text."""
        return self.lines[line - 1] if 0 < line <= len(self.lines) else f"lua/{self.name}.lua"


def _folder() -> Traversable:
    try:
        return files("echomq_tasks.lua")
    except ModuleNotFoundError:
        # Run from a checkout that is not installed, where lua/ stands beside the package.
        return Path(__file__).parents[2] / "lua"


def _expand(name: str, sources: dict[str, str]) -> Script:
    text: list[str] = []
    lines: list[str] = []
    for number, line in enumerate(sources[name].splitlines(), 1):
        text.append(line)
        lines.append(f"lua/{name}.lua:{number}")
        include = _INCLUDE.fullmatch(line)
        if include is None:
            continue
        fragment = include[1]
        if fragment not in sources:
            raise ScriptError(f"lua/{name}.lua:{number} includes {fragment}, and there is no lua/{fragment}.lua")
        for inner_number, inner in enumerate(sources[fragment].splitlines(), 1):
            if _INCLUDE.fullmatch(inner):
                # Scripts list every fragment they need, in order: what one is made of is read in it.
                raise ScriptError(f"lua/{fragment}.lua:{inner_number} includes a file; only scripts include")
            text.append(inner)
            lines.append(f"lua/{fragment}.lua:{inner_number}")
    expanded = "\n".join(text) + "\n"
    return Script(
        name,
        expanded,
        sha1(expanded.encode(), usedforsecurity=False).hexdigest(),
        tuple(lines),
        announces="-- @include _event" in text,
    )


@cache
def load_scripts() -> dict[str, Script]:
    """Every script by name. Read once a process.

    Raises:
      ScriptError: when a file includes what does not exist.
    """
    sources = {
        entry.name.removesuffix(".lua"): entry.read_text(encoding="utf-8")
        for entry in _folder().iterdir()
        if entry.name.endswith(".lua")
    }
    return {name: _expand(name, sources) for name in sources if not name.startswith("_")}
