"""What a function returns: the classes its annotation knows, and a fingerprint of their shape."""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from types import SimpleNamespace, UnionType
from typing import Any

from echomq_tasks.errors import InvalidArgument


def return_annotation(function: Callable[..., Any]) -> Any:
    """What ``function`` says it returns, with its names resolved; None when it says nothing.

    A name may be missing, as one that is imported for type checkers only, or is local: then the text is the answer.
    """
    said = None
    try:
        function = inspect.unwrap(function)
        said = getattr(function, "__annotations__", {}).get("return")
        holder = SimpleNamespace(__annotations__={"return": said})
        return said and typing.get_type_hints(holder, getattr(function, "__globals__", {}))["return"]
    except Exception:
        # Any code may stand in an annotation, and none of it is worth failing a call.
        return said


class Schema:
    """The classes a codec may bring back, and what they look like.

    Parameters:
      annotation: what the values are, as :func:`return_annotation` has it.
      types: more classes, for a function that does not say all it returns.

    Attributes:
      classes: the dataclasses, named tuples and enumerations, by the name they have on the wire: their qualified name,
        with the module only where two would share it.
      names: those names, by class.
      fingerprint: 8 bytes; two versions of the code with another annotation, or other fields, have another.

    Raises:
      InvalidArgument: when one of ``types`` is no dataclass, named tuple or enumeration.
    """

    def __init__(self, annotation: Any = None, types: Iterable[type] = ()) -> None:
        extra = list(types)
        for kind in extra:
            if not _is_class(kind):
                raise InvalidArgument(f"types= lists dataclasses, named tuples and enumerations, and not {kind!r}")
        seen: dict[int, Any] = {}
        for part in (annotation, *extra):
            _collect(part, seen)
        known = [kind for kind in seen.values() if _is_class(kind)]
        plain = [kind.__qualname__ for kind in known]
        self.names: dict[type, str] = {
            kind: name if plain.count(name) == 1 else f"{kind.__module__}:{name}"
            for kind, name in zip(known, plain, strict=True)
        }
        self.classes = {name: kind for kind, name in self.names.items()}
        shapes = {**self.names, **{kind: kind.__qualname__ for kind in seen.values() if typing.is_typeddict(kind)}}
        lines = [_described(annotation), *sorted(_class_described(kind, name) for kind, name in shapes.items())]
        self.fingerprint = blake2b("\n".join(lines).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def is_named_tuple(kind: type) -> bool:
    """Tell whether a class was made by ``NamedTuple`` or ``namedtuple``."""
    return kind.__base__ is tuple and isinstance(getattr(kind, "_fields", None), tuple)


def _is_class(kind: object) -> bool:
    return isinstance(kind, type) and (is_dataclass(kind) or issubclass(kind, enum.Enum) or is_named_tuple(kind))


def _hints(kind: type) -> dict[str, Any]:
    """The fields of a class and their types, as far as their names can be resolved."""
    if issubclass(kind, enum.Enum):
        return {}
    try:
        hints = typing.get_type_hints(kind)
    except Exception:
        hints = {}
    if is_dataclass(kind):
        return {field.name: hints.get(field.name, field.type) for field in fields(kind)}
    names = getattr(kind, "_fields", None) or getattr(kind, "__annotations__", {})
    return {name: hints.get(name) for name in names}


def _parts(annotation: Any) -> Iterator[Any]:
    """What an annotation is made of, one step down."""
    if isinstance(annotation, typing.NewType):
        yield annotation.__supertype__
    elif _is_alias(annotation):
        yield annotation.__value__
    elif typing.get_origin(annotation) is not None:
        yield typing.get_origin(annotation)
        for argument in typing.get_args(annotation):
            # Of a Literal, the classes of its values: enumerations may be among them.
            yield type(argument) if isinstance(argument, enum.Enum) else argument


def _is_alias(annotation: Any) -> bool:
    # `type X = ...`, from Python 3.12 on.
    return type(annotation).__name__ == "TypeAliasType" and hasattr(annotation, "__value__")


def _collect(annotation: Any, seen: dict[int, Any]) -> None:
    """Note all that an annotation is made of, by identity: not all of it can be hashed."""
    if id(annotation) in seen:
        return
    seen[id(annotation)] = annotation
    for part in _parts(annotation):
        _collect(part, seen)
    if isinstance(annotation, type) and (_is_class(annotation) or typing.is_typeddict(annotation)):
        for part in _hints(annotation).values():
            _collect(part, seen)


def _described(annotation: Any) -> str:
    """An annotation in words that do not change from one Python to the next, as its own ``repr`` does."""
    if annotation is None or annotation is type(None):
        return "None"
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, typing.NewType):
        return f"{annotation.__name__}={_described(annotation.__supertype__)}"
    if _is_alias(annotation):
        return str(annotation.__name__)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Union or origin is UnionType:
        return "|".join(sorted(_described(argument) for argument in arguments))
    if origin is typing.Annotated:
        return _described(arguments[0])
    if origin is typing.Literal:
        return f"Literal[{','.join(_literal(argument) for argument in arguments)}]"
    if origin is not None:
        return f"{_described(origin)}[{','.join(_described(argument) for argument in arguments)}]"
    return str(getattr(annotation, "__qualname__", None) or getattr(annotation, "__name__", type(annotation).__name__))


def _literal(value: Any) -> str:
    return f"{type(value).__qualname__}.{value.name}" if isinstance(value, enum.Enum) else repr(value)


def _class_described(kind: type, name: str) -> str:
    if issubclass(kind, enum.Enum):
        # Its members are left out: one that is gone is found missing when its name is read.
        return f"enum {name}"
    inner = ",".join(f"{field}:{_described(hint)}" for field, hint in _hints(kind).items())
    return f"class {name}({inner})"
