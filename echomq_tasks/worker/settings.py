"""What ``echomq worker`` was told: read by the main process, handed on to the processes that it starts."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The options of one start.

    Parameters:
      broker: ``MODULE`` or ``MODULE:BROKER``, imported first.
      modules: more modules to import.
      path: directories to import from, before all others.
      server: the address of the server that the command line names; None when it names none.
      queues: only these of the declared queues; empty for all.
      processes: how many worker processes.
      threads: threads of each, for plain actors.
      concurrency: how many async actors run at once in each.
      grace: seconds for what runs to finish, once it is told to stop.
      max_jobs: jobs after which a process makes room for a new one; None for no bound.
      max_memory: MiB of resident memory above which it does; None for no bound.
      functions: ``MODULE:FUNCTION`` that are run in processes of their own, beside those of the middleware.
      watch: a directory in which a change of a source file reloads; None for none.
      watch_include: patterns of the files that count; Python's in any case.
      watch_exclude: patterns of those that do not.
      pid_file: where the main process writes its id; None for nowhere.
      log_file: where all that is printed or logged goes, as an absolute path; None for standard output and error.
      verbose: log more.
      skip_logging: leave logging to the modules.
      use_spawn: start processes with a fresh interpreter.
    """

    broker: str
    modules: tuple[str, ...] = ()
    path: tuple[str, ...] = (".",)
    server: str | None = None
    queues: tuple[str, ...] = ()
    processes: int = 1
    threads: int = 8
    concurrency: int = 100
    grace: float = 30.0
    max_jobs: int | None = None
    max_memory: float | None = None
    functions: tuple[str, ...] = ()
    watch: str | None = None
    watch_include: tuple[str, ...] = ()
    watch_exclude: tuple[str, ...] = ()
    pid_file: str | None = None
    log_file: str | None = None
    verbose: int = 0
    skip_logging: bool = False
    use_spawn: bool = False


@dataclass(frozen=True)
class Task:
    """What one process is for.

    Parameters:
      settings: the options.
      name: what it is called in the log, as ``process 1``.
      function: ``MODULE:FUNCTION`` to run; None runs actors.
      version: the version of this package in the main process.
      import_path: where the main process imports from.
    """

    settings: Settings
    name: str
    function: str | None = None
    version: str = ""
    import_path: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """All of it as text."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The reverse of :meth:`to_json`; what this version does not know is left out."""
        fields = json.loads(text)
        known = {each.name for each in dataclasses.fields(Settings)}
        settings: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.pop("settings").items()
            if name in known
        }
        known = {each.name for each in dataclasses.fields(cls)}
        return cls(Settings(**settings), **{name: value for name, value in fields.items() if name in known})
