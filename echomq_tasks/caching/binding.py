"""Functions that a user gives for the arguments of a call: they get them as the cached function would."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any

from echomq_tasks.errors import InvalidArgument

_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def bound_to(function: Callable[..., Any], option: str, given: Callable[..., Any]) -> Callable[..., Any]:
    """``given``, which is called with the arguments of a call of ``function`` however they were written: by position
    as far as its signature allows, those with a default too.

    Parameters:
      function: the cached function.
      option: what ``given`` was given as, for the error.
      given: the user's function.

    Raises:
      InvalidArgument: when it cannot take the arguments of a call.
    """
    signature = _signature(function)
    if signature is None:
        return given
    parameters = list(signature.parameters.values())
    _check(function, option, given, parameters)
    name = function.__qualname__
    bind = signature.bind
    # Of a call by position alone, which most are, nothing needs to be bound.
    plain = all(each.kind in _BY_POSITION for each in parameters)
    defaults = tuple(each.default for each in parameters)
    most = len(parameters)
    least = sum(default is Parameter.empty for default in defaults)

    def called(*args: Any, **kwargs: Any) -> Any:
        if plain and not kwargs and least <= len(args) <= most:
            return given(*args, *defaults[len(args) :])
        try:
            bound = bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{name}() cannot be called so: {error}") from None
        bound.apply_defaults()
        return given(*bound.args, **bound.kwargs)

    return called


def _check(function: Callable[..., Any], option: str, given: Callable[..., Any], parameters: list[Parameter]) -> None:
    takes = _signature(given)
    if takes is None or any(each.kind is Parameter.VAR_POSITIONAL for each in parameters):
        # Of those it may count on any number.
        return
    placed = [each.name for each in parameters if each.kind in _BY_POSITION]
    named: Mapping[str, None] = {each.name: None for each in parameters if each.kind is Parameter.KEYWORD_ONLY}
    try:
        takes.bind(*placed, **named)
    except TypeError as error:
        want = ", ".join([*placed, *(f"{name}=" for name in named)])
        raise InvalidArgument(
            f"{option}= of {function.__qualname__}() is called with all its arguments, those with a default too, as "
            f"({want}), and cannot take them: {error}. Let it take each of them, or *args, **kwargs"
        ) from None


def _signature(function: Callable[..., Any]) -> Signature | None:
    """None when it does not tell, as some that are written in C."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None
