"""Import the modules that a worker process serves, and find their broker."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

import dramatiq
from dramatiq import Broker

from echomq_tasks.brokers.dramatiq import EchoMQBroker

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
      LoadingFailed: when it is not there.
    """
    module_name, _, variable = path.partition(":")
    return _attribute(_import(module_name), module_name, variable)


def _named(module: ModuleType, module_name: str, variable: str) -> Any:
    found = _attribute(module, module_name, variable)
    if isinstance(found, Broker):
        return found
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
    for name in modules:
        for each, value in vars(sys.modules[name]).items():
            if isinstance(value, EchoMQBroker):
                return f"{name} makes a broker and does not set it: write {name}:{each}, or dramatiq.set_broker({each})"
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
    except dramatiq.BrokerConnectionError as error:
        raise LoadingFailed(f"{name!r} needs the server while it is imported: {error}", CANNOT_CONNECT) from None
    except (Exception, SystemExit) as error:
        raise LoadingFailed(told(error, f"the module {name!r} cannot be imported")) from None


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
