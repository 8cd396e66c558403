"""Import the modules that a worker process serves, and find their broker."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import dramatiq
from dramatiq import Actor, Broker

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.config import Config
from echomq_tasks.errors import ConfigError

#: Exit codes, as Dramatiq has them: what was named cannot be run, and the server refuses.
CANNOT_LOAD = 2
CANNOT_CONNECT = 3


class LoadingFailed(Exception):
    """A process cannot do what it was started for, and neither could the next one.

    Parameters:
      text: what to tell a person; the lines of a traceback first, if there is one.
      code: the exit code.
    """

    def __init__(self, text: str, code: int = CANNOT_LOAD) -> None:
        super().__init__(text)
        self.text = text
        self.code = code


def extend_path(folders: Sequence[str]) -> None:
    """Import from these folders before all others, the last named first."""
    sys.path[:0] = reversed(folders)


def load(name: str, modules: Sequence[str]) -> Broker:
    """Import ``MODULE`` or ``MODULE:BROKER`` and more modules, and answer the broker; its boot hooks have run.

    Parameters:
      name: a callable in place of the broker is called, and Dramatiq's global broker is taken then, as it is without.
      modules: imported once the broker's ``after_process_boot`` hooks have run, as by the ``dramatiq`` command.

    Raises:
      LoadingFailed: when one of them cannot be imported, or there is no broker.
    """
    module_name, _, variable = name.partition(":")
    module = _import(module_name)
    waiting = list(modules)
    broker = _named(module, module_name, variable) if variable else dramatiq.broker.global_broker
    while broker is None and waiting:
        # The first one to be named need not be the one that sets the broker.
        _import(waiting.pop(0))
        broker = dramatiq.broker.global_broker
    if broker is None:
        raise LoadingFailed(_no_broker([module_name, *modules], variable))
    if not isinstance(broker, EchoMQBroker):
        raise LoadingFailed(
            f"{name} has a {type(broker).__name__}, and this worker runs what an EchoMQBroker brings: "
            f"run it with `dramatiq {name}`, or set an EchoMQBroker"
        )
    broker.emit_after("process_boot")
    for each in waiting:
        _import(each)
    return broker


def function_named(path: str) -> Any:
    """The function ``MODULE:FUNCTION``.

    Raises:
      LoadingFailed: when it is not there, or no function.
    """
    module_name, _, variable = path.partition(":")
    found = _attribute(_import(module_name), module_name, variable)
    if not callable(found):
        raise LoadingFailed(f"{path} is of type {type(found).__name__}, and no function")
    return found


def check_functions(paths: Sequence[str]) -> None:
    """Find those of the functions whose modules are imported; no other is for a worker process to import.

    Raises:
      LoadingFailed: when one is not there.
    """
    for path in paths:
        if path.partition(":")[0] in sys.modules:
            function_named(path)


def other_brokers(served: Broker, name: str, *modules: str) -> list[tuple[str | None, bool, list[str]]]:
    """The brokers with actors that are imported beside the one that is served; none when that was chosen by its name.

    Parameters:
      served: the broker.
      name: what :func:`load` was told.
      modules: the same; a broker is named by its place in these rather than by another one.

    Returns:
      For each ``MODULE:BROKER``, or None when it is in no module; whether it is an EchoMQBroker; its actors.
    """
    module, _, variable = name.partition(":")
    if variable and _attribute(sys.modules[module], module, variable) is served:
        return []
    found: dict[int, Broker] = {}
    places: dict[int, str] = {}
    for place, value in _variables((module, *modules)):
        # Of the type itself: a proxy would be asked for its class, and may have none yet.
        if issubclass(type(value), Broker):
            places.setdefault(id(value), place)
            found[id(value)] = value
        elif issubclass(type(value), Actor):
            found[id(value.broker)] = value.broker
    return [
        (places.get(key), isinstance(broker, EchoMQBroker), sorted(broker.actors))
        for key, broker in found.items()
        if broker is not served and broker.actors
    ]


def _variables(first: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """What the modules hold, each as ``MODULE:NAME``; those named ``first`` first, and none of Dramatiq's."""
    for name in dict.fromkeys((*first, *sys.modules)):
        module = sys.modules.get(name)
        if type(module) is ModuleType and name.partition(".")[0] != "dramatiq":
            for each, value in list(vars(module).items()):
                yield f"{name}:{each}", value


def _named(module: ModuleType, module_name: str, variable: str) -> Any:
    found = _attribute(module, module_name, variable)
    if isinstance(found, Broker):
        return found
    if isinstance(found, Actor):
        raise LoadingFailed(
            f"{module_name}:{variable} is an actor, and after the colon comes a broker, or a function that sets one: "
            f"write {module_name} to run the actors of this module"
        )
    if not callable(found):
        raise LoadingFailed(
            f"{module_name}:{variable} is of type {type(found).__name__}: neither a broker nor a function"
        )
    try:
        found()
    except Exception as error:
        raise LoadingFailed(told(error, f"{module_name}:{variable}() failed")) from None
    return dramatiq.broker.global_broker


def _attribute(module: ModuleType, module_name: str, variable: str) -> Any:
    found: Any = module
    for part in variable.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LoadingFailed(f"the module {module_name!r} has no {variable!r}") from None
    return found


def _no_broker(modules: Sequence[str], variable: str) -> str:
    if variable:
        return f"{modules[0]}:{variable}() has set no broker: it is to call dramatiq.set_broker(...)"
    names = {
        id(value): f"{name}:{each}"
        for name in modules
        for each, value in vars(sys.modules[name]).items()
        if issubclass(type(value), EchoMQBroker)
    }
    if len(names) == 1:
        (name,) = names.values()
        module, _, each = name.partition(":")
        return f"{module} makes a broker and does not set it: write {name}, or dramatiq.set_broker({each})"
    if names:
        return (
            f"{', '.join(modules)}: {len(names)} brokers, and none is set. Each wants a worker of its own: "
            + " and ".join(f"`echomq worker {name}`" for name in names.values())
        )
    return (
        f"{', '.join(modules)}: no actor, and no broker: name the modules whose functions have the @actor of "
        "echomq_tasks, or that call dramatiq.set_broker(...)"
    )


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # What the module imports itself is its own matter, and its traceback says where.
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise LoadingFailed(told(error, f"the module {name!r} cannot be imported")) from None
        raise LoadingFailed(f"{error}: is {name!r} spelled as for import?") from None
    except ConfigError as error:
        if str(error) == _wrong_environment():
            # No line of the app is to blame.
            raise LoadingFailed(str(error)) from None
        raise LoadingFailed(told(error, f"the module {name!r} cannot be imported")) from None
    except dramatiq.BrokerConnectionError as error:
        raise LoadingFailed(f"{name!r} needs the server while it is imported: {error}", CANNOT_CONNECT) from None
    except (Exception, SystemExit) as error:
        raise LoadingFailed(told(error, f"the module {name!r} cannot be imported")) from None


def _wrong_environment() -> str | None:
    try:
        Config.parse()
    except ConfigError as error:
        return str(error)
    return None


def told(error: BaseException, text: str) -> str:
    """The traceback of an error, from the first line that is not of the import system or of this module, and a text."""
    # The traceback is the one of the user's module, from its first line on.
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame):
        frames = frames.tb_next
    return "".join(traceback.format_exception(type(error), error, frames)) + text


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file in (__file__, importlib.__file__) or "importlib._bootstrap" in file
