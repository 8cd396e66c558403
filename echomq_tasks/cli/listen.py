"""``echomq listen``: run the functions that modules have registered with a bus."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import queue
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from echomq_tasks.bus import Bus, Runner, buses_with_handlers
from echomq_tasks.bus.handlers import GroupHandler, LiveHandler, registered
from echomq_tasks.cli.arguments import add_command
from echomq_tasks.cli.modules import missing_module
from echomq_tasks.cli.terminal import advice, note
from echomq_tasks.config import Config
from echomq_tasks.errors import ServerUnavailable

if TYPE_CHECKING:
    from argparse import _SubParsersAction

_FORMAT = "[%(asctime)s] [PID %(process)d] [%(threadName)s] [%(name)s] [%(levelname)s] %(message)s"


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "listen",
        run,
        summary="run the event handlers that modules register",
        description="Run the functions that modules register with @bus.on and @bus.consumer, in one process, until "
        "Ctrl-C or SIGTERM, which lets what is in hand finish; a second signal ends it at once.",
        epilog="To share the records of a log among several processes, start this several times: consumers of one "
        "group share them, while each process calls its @bus.on functions with every event.",
    )
    command.add_argument(
        "modules", metavar="MODULE", nargs="+", help="a module to import, as in `import MODULE`; its buses are run"
    )
    command.add_argument(
        "--url", help="the server of buses that were given none (default: EMQ_URL, else the embedded server)"
    )
    command.add_argument(
        "--path",
        "-P",
        action="append",
        default=["."],
        metavar="DIR",
        help="import from this directory too, beside the current one",
    )
    command.add_argument("--verbose", "-v", action="count", default=0, help="log more")


def run(options: argparse.Namespace) -> int:
    """Run handlers until a signal stops them; answers the exit code: 2 when there is nothing to run.

    Raises:
      ConfigError, ServerError: when the server cannot be used; one that is only away is waited for.
    """
    for name in options.modules:
        if problem := missing_module(name, options.path) or _not_a_module(name):
            note(problem)
            return 2
    if options.url is not None:
        Config.parse(options.url)
        # Before the import: a bus may connect while its module is imported.
        os.environ["EMQ_URL"] = options.url
    sys.path[:0] = reversed(options.path)
    if not all(_import(name) for name in options.modules):
        return 2
    buses = buses_with_handlers()
    if not buses:
        note(
            f"nothing is registered in {', '.join(options.modules)}: name the modules that have functions with "
            "@bus.on or @bus.consumer, and keep the bus in a variable of the module"
        )
        return 2
    _log_to_stderr(options.verbose)
    for bus in buses:
        _announce(bus)
    return _run_until_signal(Runner(buses))


def _not_a_module(name: str) -> str | None:
    if ":" not in name:
        return None
    return f"{name!r} names more than a module: all buses of a module are run, so write `{name.partition(':')[0]}`"


def _import(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module that was named: what it imports itself is its own matter.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            return _failed(name, error)
        note(f"{error}: is {name!r} spelled as for import?")
    except Exception as error:
        return _failed(name, error)
    else:
        return True
    return False


def _failed(name: str, error: Exception) -> bool:
    # The traceback is the one of the user's module, from its first line on.
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame):
        frames = frames.tb_next
    traceback.print_exception(type(error), error, frames)
    note(f"the module {name!r} cannot be imported")
    return False


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename in (__file__, importlib.__file__) or "importlib._bootstrap" in str(
        frame.f_code.co_filename
    )


def _log_to_stderr(verbose: int) -> None:
    # Nothing happens when a module has set up logging.
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, format=_FORMAT)


def _announce(bus: Bus) -> None:
    try:
        where = bus.connect().config.address
    except ServerUnavailable as error:
        where = "a server that is not there yet"
        note(f"{advice(error)}; waiting for it")
    found = registered(bus)
    print(f"on {where}:")
    handlers: list[LiveHandler | GroupHandler] = [*found.live, *found.groups]
    for handler in handlers:
        print(f"  {describe(handler)}")
    sys.stdout.flush()


def describe(handler: LiveHandler | GroupHandler) -> str:
    """What a handler is called with, in one line."""
    named = handler.function if hasattr(handler.function, "__qualname__") else type(handler.function)
    function = f"{named.__module__}.{named.__qualname__}"
    if isinstance(handler, GroupHandler):
        return f"{function}: group {handler.group} of the log {handler.queue}/{handler.log}"
    events = ", ".join(sorted(handler.events)) if handler.events else "all events"
    whose = ", ".join((*handler.queues, *handler.patterns))
    return f"{function}: {events} of {'all queues' if whose == '*' else whose}"


def _run_until_signal(runner: Runner) -> int:
    # Not an Event: a signal may come while its lock is held by this very thread.
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping:
            _end(number)
        stopping.append(number)
        arrived.put(number)

    stopping: list[int] = []
    with _handling(stop):
        runner.start()
        arrived.get()
        note("stopping as soon as what is in hand is finished; a second signal ends it at once")
        runner.stop()
    return 0


@contextmanager
def _handling(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int) -> NoReturn:
    """End as the signal would have ended it: no thread is waited for."""
    os._exit(128 + number)
