"""What several commands take on their command lines: names, ids, durations, and the options all of them share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NoReturn

from echomq_tasks.cli.terminal import clean
from echomq_tasks.errors import InvalidArgument, InvalidId, InvalidName
from echomq_tasks.identity import check_id, group_id
from echomq_tasks.keyspace import check_queue, check_table, repeat_key
from echomq_tasks.queue.arguments import EXACT, seconds_to_ms
from echomq_tasks.results import result_id

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Parser(argparse.ArgumentParser):
    """Tells a person in one line what is wrong with a command line, as whatever else goes wrong is told."""

    def error(self, message: str) -> NoReturn:
        """Tell it, and exit with 2."""
        advise = self.get_default("advise")
        said = message if advise is None else advise(message)
        self.exit(2, f"{self.prog}: {clean(said)} (`{self.prog} --help` shows what it takes)\n")


def add_command(
    commands: _SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    advise: Callable[[str], str] | None = None,
    description: str | None = None,
    epilog: str | None = None,
    add_help: bool = True,
) -> argparse.ArgumentParser:
    """Add a command.

    Parameters:
      commands: where to.
      name: what it is called.
      run: carries it out and answers the exit code.
      summary: its line in the general help.
      advise: makes of what is wrong with its command line what a person is told.
      description: the beginning of its own help; the summary by default.
      epilog: the end of its own help.
      add_help: whether it answers ``--help`` itself.
    """
    if description is None:
        description = summary[0].upper() + summary[1:] + "."
    command = commands.add_parser(name, description=description, epilog=epilog, add_help=add_help)
    command.set_defaults(run=run, parser=command, summary=summary, advise=advise)
    return command


def add_server(command: argparse.ArgumentParser, *, json: bool = False) -> None:
    """Add ``--url``, and ``--json`` to a command that prints data."""
    command.add_argument("--url", help="the server (default: EMQ_URL, else the embedded one)")
    if json:
        command.add_argument("--json", action="store_true", help="print JSON")


def add_asking(command: argparse.ArgumentParser) -> None:
    """Add the options of a command that destroys."""
    command.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    command.add_argument("--yes", "-y", action="store_true", help="do not ask; needed without a terminal")


def queue_name(text: str) -> str:
    """A queue's name."""
    return gated(lambda: check_queue(text))


def table_name(text: str) -> str:
    """A cache table's name."""
    return gated(lambda: check_table(text))


def job_id(text: str) -> str:
    """A JOB id."""
    try:
        return check_id(text, "JOB")
    except InvalidId as error:
        # A message has two ids, and logs show the other one.
        hint = ". It looks like a message id: the JOB id is the message's job_id" if "-" in text else ""
        raise argparse.ArgumentTypeError(f"{error}{hint}") from None


def job_or_message_id(text: str) -> str:
    """A JOB id, or what may be a message's id: any other text that is not meant to be a JOB id."""
    if not text or text.startswith("JOB"):
        return job_id(text)
    gated(lambda: result_id(text))
    return text


def lane_name(text: str) -> str:
    """A group's name or branded id."""
    gated(lambda: group_id(text))
    return text


def repeat_name(text: str) -> str:
    """The name of a repeat."""
    gated(lambda: repeat_key("any", text).decode())
    return text


def text_to_find(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("must not be empty: leave the option out to mean any")
    return text


def duration(text: str) -> float:
    """Seconds: ``90``, ``1.5h``, ``10m``, ``7d``."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        raise argparse.ArgumentTypeError(f"a duration is as 90 (seconds), 10m, 2h or 7d, not {text!r}")
    seconds = float(matched[1]) * _SECONDS[matched[2]]
    gated(lambda: str(seconds_to_ms(seconds, "a duration")))
    return seconds


def window(text: str) -> float:
    """A duration of at least a millisecond."""
    seconds = duration(text)
    if seconds < 0.001:
        raise argparse.ArgumentTypeError(f"must be a millisecond (0.001) at least, not {text!r}")
    return seconds


def count(text: str) -> int:
    """A whole number from 1 up."""
    return _whole(text, EXACT, "")


def ceiling(text: str) -> int | None:
    """A whole number from 1 up, or ``none``."""
    if text.lower() == "none":
        return None
    if text == "0":
        raise argparse.ArgumentTypeError("0 would let nothing through: pause it instead, or say none for no ceiling")
    return _whole(text, EXACT, ", or none")


def lane_limit(text: str) -> int | Literal["auto"] | None:
    """A whole number from 1 up, ``none``, or ``auto``."""
    return "auto" if text.lower() == "auto" else ceiling(text)


def weight(text: str) -> int | None:
    """A whole number from 1 to 1000, or ``none``."""
    return None if text.lower() == "none" else _whole(text, 1000, ", or none")


def _whole(text: str, most: int, other: str) -> int:
    # int() would take " 1", "1_000" and digits of any script, too.
    number = int(text) if re.fullmatch("[0-9]{1,16}", text) else 0
    if not 1 <= number <= most:
        span = "from 1 up" if most == EXACT else f"from 1 to {most}"
        raise argparse.ArgumentTypeError(f"must be a whole number {span}{other}, not {text!r}")
    return number


def gated(check: Callable[[], str]) -> str:
    """What a check of the library answers; what it raises, as argparse shows it."""
    try:
        return check()
    except (InvalidArgument, InvalidId, InvalidName) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
