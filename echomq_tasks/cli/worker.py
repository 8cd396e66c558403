"""``echomq worker``: run actors, in processes that are started, watched and replaced from one."""

from __future__ import annotations

import argparse
import math
import os
from typing import TYPE_CHECKING

from echomq_tasks.cli.arguments import add_command, count, duration, queue_name
from echomq_tasks.cli.modules import missing_module
from echomq_tasks.cli.terminal import advice, note
from echomq_tasks.config import Config
from echomq_tasks.errors import ConfigError

if TYPE_CHECKING:
    from argparse import _SubParsersAction

    from echomq_tasks.worker.settings import Settings

#: Exit codes: what was asked for cannot be done; the pid file cannot be had. Dramatiq's are the same.
_CANNOT_RUN = 2
_PID_FILE = 4

_EXAMPLE = "echomq worker myapp.tasks -Q mail"
_DESCRIPTION = (
    "Run the actors that modules declare, in several processes with several threads each, until Ctrl-C or SIGTERM, "
    "which lets running jobs finish and gives the rest back; a second one ends them at once. SIGHUP loads the code "
    "again, one process after the other; SIGUSR1 opens the log file again. A process that dies is replaced."
)
_EPILOG = (
    "Exit codes: 0 when everything ended as it was asked to; 1 when running jobs were cut short; 2 when what was asked "
    "for cannot be done: an option or the URL is wrong, a module cannot be imported, no actor has the queues, a file "
    "cannot be opened; 3 when the server refuses; 4 when the pid file is another process's or cannot be written. "
    "`dramatiq MODULE` runs the same modules with Dramatiq's own worker."
)


def add(commands: _SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    command = add_command(
        commands,
        "worker",
        run,
        summary="run the actors that modules declare",
        advise=_advise,
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    command.add_argument(
        "broker",
        metavar="MODULE[:BROKER]",
        help="a module to import, as in `import MODULE`, and the broker in it unless it is the global one; "
        "one module is enough",
    )
    command.add_argument("modules", metavar="MODULE", nargs="*", help="more modules that declare actors, if any")
    command.add_argument(
        "--url", help="the server of a broker that names none itself (default: EMQ_URL, else the embedded server)"
    )
    _add_work(command)
    _add_ends(command)
    _add_surroundings(command)


def _add_work(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--queues",
        "-Q",
        nargs="+",
        type=_queue_names,
        action="extend",
        metavar="QUEUE",
        help="only these of the declared queues, with spaces or commas between; may be given again (default: all)",
    )
    command.add_argument(
        "--processes", "-p", type=count, default=_processors(), help="worker processes (default: %(default)s)"
    )
    command.add_argument(
        "--threads", "-t", type=count, default=8, help="threads a process, for plain actors (default: %(default)s)"
    )
    command.add_argument(
        "--concurrency",
        type=count,
        default=100,
        metavar="N",
        help="how many async actors run at once in a process (default: %(default)s)",
    )
    command.add_argument(
        "--path",
        "-P",
        nargs="+",
        action="extend",
        default=["."],
        metavar="DIR",
        help="import from these directories too, beside the current one",
    )


def _add_ends(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--grace",
        type=duration,
        default=30.0,
        metavar="SECONDS",
        help="how long running jobs may take to finish once it is told to stop; then they are given back, to run "
        "again (default: 30)",
    )
    command.add_argument(
        "--worker-shutdown-timeout",
        dest="grace",
        type=_milliseconds,
        default=argparse.SUPPRESS,
        metavar="MS",
        help="the same in milliseconds, as Dramatiq's command has it",
    )
    command.add_argument(
        "--max-jobs",
        type=count,
        metavar="N",
        help="replace a process when about so many jobs have begun in it; what runs in it is finished",
    )
    command.add_argument(
        "--max-memory",
        type=_mebibytes,
        metavar="MIB",
        help="replace a process when it takes more resident memory; what runs in it is finished",
    )
    command.add_argument(
        "--watch", metavar="DIR", help="load the code again when a source file in this directory changes"
    )
    command.add_argument(
        "--watch-use-polling", action="store_true", help="as it always does: taken because Dramatiq's command has it"
    )
    command.add_argument(
        "--watch-include",
        "-i",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files that count beside *.py, as 'templates/*.html'",
    )
    command.add_argument(
        "--watch-exclude", "-x", action="append", default=[], metavar="PATTERN", help="files that do not count"
    )


def _add_surroundings(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pid-file", metavar="FILE", help="write the main process's id into this file")
    command.add_argument(
        "--log-file", metavar="FILE", help="add all that is logged or printed to this file; SIGUSR1 opens it again"
    )
    command.add_argument(
        "--skip-logging", action="store_true", help="leave logging in the worker processes to the modules"
    )
    command.add_argument(
        "--use-spawn",
        action="store_true",
        help="start processes with a fresh interpreter instead of a fork; on macOS they always are",
    )
    command.add_argument(
        "--fork-function",
        "-f",
        action="append",
        default=[],
        metavar="MODULE:FUNCTION",
        help="run this function in a process of its own, beside those that middleware asks for",
    )
    command.add_argument(
        "--worker-fork-timeout",
        type=_milliseconds,
        metavar="MS",
        help="not needed: such functions start once all processes have booted. Taken because Dramatiq's command has it",
    )
    command.add_argument("--verbose", "-v", action="count", default=0, help="log more")


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _milliseconds(text: str) -> float:
    """Seconds, of a number of milliseconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < 10**12:
        raise argparse.ArgumentTypeError(f"must be a number of milliseconds, not {text!r}")
    return number / 1000


def _mebibytes(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 1 <= number < 10**9:
        raise argparse.ArgumentTypeError(f"must be a number of MiB from 1 up, not {text!r}")
    return number


def _advise(problem: str) -> str:
    """What argparse says, with what to do about it where it does not see that itself."""
    if "arguments are required" in problem:
        # An option that takes several values has taken it, or there is none.
        return f"name a module, and options after it: `{_EXAMPLE}`"
    said, _, arguments = problem.partition("unrecognized arguments: ")
    if not said and not arguments.startswith("-"):
        return f"{problem}: name all modules one after the other, before the options"
    return problem


def _queue_names(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    # Of a variable that is empty, say. None at all would mean all of them.
    return [queue_name(name) for name in names or [text]]


def run(options: argparse.Namespace) -> int:
    """Run workers until a signal stops them; answers the exit code: 2 when what was asked for cannot be done."""
    if problem := _wrong(options):
        note(problem)
        return _CANNOT_RUN
    if options.url is not None:
        # The processes that are started make their own connections.
        os.environ["EMQ_URL"] = options.url
    return _supervise(_settings(options))


def _wrong(options: argparse.Namespace) -> str | None:
    """Why what was asked for cannot be done; what is seen without importing anything, which is for the processes."""
    if options.url is not None:
        try:
            Config.parse(options.url)
        except ConfigError as error:
            return advice(error)
    for name in options.fork_function:
        if not all(name.partition(":")):
            return f"a function is named as MODULE:FUNCTION, not {name!r}"
    for name in (options.broker, *options.modules, *options.fork_function):
        # Found by a process it would be a traceback.
        if problem := missing_module(name, options.path):
            return problem
    if options.watch is not None and not os.path.isdir(options.watch):
        return f"{options.watch!r} is no directory to watch"
    return None


def _settings(options: argparse.Namespace) -> Settings:
    from echomq_tasks.worker.settings import Settings

    queues = [name for names in options.queues or () for name in names]
    return Settings(
        broker=options.broker,
        modules=tuple(options.modules),
        path=tuple(options.path),
        server=None if options.url is None else Config.parse(options.url).address,
        queues=tuple(dict.fromkeys(queues)),
        processes=options.processes,
        threads=options.threads,
        concurrency=options.concurrency,
        grace=options.grace,
        max_jobs=options.max_jobs,
        max_memory=options.max_memory,
        functions=tuple(options.fork_function),
        watch=options.watch,
        watch_include=tuple(options.watch_include),
        watch_exclude=tuple(options.watch_exclude),
        pid_file=options.pid_file,
        # Processes open it again, wherever their modules have gone meanwhile.
        log_file=None if options.log_file is None else os.path.abspath(options.log_file),
        verbose=options.verbose,
        skip_logging=options.skip_logging,
        use_spawn=options.use_spawn,
    )


def _supervise(settings: Settings) -> int:
    # Imported here: no other command needs any of it.
    from echomq_tasks.worker.logs import write_to
    from echomq_tasks.worker.pidfile import PidFile, PidFileTaken
    from echomq_tasks.worker.supervisor import Supervisor

    try:
        pid_file = None if settings.pid_file is None else PidFile(settings.pid_file)
    except PidFileTaken as error:
        note(str(error))
        return _PID_FILE
    try:
        if settings.log_file is not None:
            try:
                write_to(settings.log_file)
            except OSError as error:
                note(f"the log file cannot be opened: {error}")
                return _CANNOT_RUN
        return Supervisor(settings, pid_file).run()
    finally:
        if pid_file is not None:
            pid_file.close()
