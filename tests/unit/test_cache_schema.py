"""Schemas: which classes an annotation knows, and that two versions of the code tell their rows apart."""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from typing import Annotated, Any, Generic, Literal, NewType, TypedDict, TypeVar, Union

import pytest
from support.sameness import same
from support.valuesamples import Colour, Level, Money, Order, Point

from echomq_tasks.cache.schema import Schema, return_annotation
from echomq_tasks.cache.values import TypedCodec
from echomq_tasks.errors import InvalidArgument, Undecodable

T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T


class Shape(TypedDict):
    order: Order


# As code of before Python 3.10 says it.
OLD_ORDER, OLD_INT = Union[Order, None], Union[int, None]  # noqa: UP007
OrderId = NewType("OrderId", int)
Known = NewType("Known", Money)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, Order(1)),
        (Order | None, Order(1)),
        (OLD_ORDER, Order(1)),
        (dict[str, list[Order]], {"a": [Order(1)]}),
        (Annotated[Order, "x"], Order(1)),
        (Literal[Colour.RED], Colour.RED),
        (Box[Order], Box(Order(1))),
        (tuple[Point, ...], (Point(1),)),
        (Known, Money(1)),
        (Shape, {"order": Order(1)}),
        (Callable[[Order], Money], Money(1)),
    ],
)
def test_the_classes_in_an_annotation_are_known(annotation: Any, value: Any) -> None:
    codec = TypedCodec(annotation)
    assert same(codec.decode(codec.encode(value)), value)


@dataclass
class Tree:
    value: Level
    children: list[Tree] = field(default_factory=list)
    parent: Unresolved | None = None  # type: ignore[name-defined]  # noqa: F821 - as one imported for checkers only


@dataclass
class Chain:
    level: Level
    following: Chain | None = None


def test_a_dataclass_that_holds_its_own_kind_is_known() -> None:
    codec = TypedCodec(Chain)
    value = Chain(Level.LOW, Chain(Level.LOW))
    assert codec.decode(codec.encode(value)) == value
    assert TypedCodec(Tree).encode(Tree(1))  # type: ignore[arg-type]


def test_two_classes_of_one_name_are_told_apart() -> None:
    left, right = make_dataclass("Twin", ["x"]), make_dataclass("Twin", ["x"])
    left.__module__, right.__module__ = "left", "right"
    codec = TypedCodec(types=[left, right])
    assert type(codec.decode(codec.encode(left(1)))) is left
    assert type(codec.decode(codec.encode(right(1)))) is right


@pytest.mark.parametrize("kind", [int, str, object, "Order", None, len, list[int]])
def test_only_classes_that_can_be_brought_back_are_taken_as_types(kind: Any) -> None:
    with pytest.raises(InvalidArgument, match="types= lists dataclasses"):
        TypedCodec(types=[kind])


# -- annotations and fingerprints ---------------------------------------------------------------------------------


def found() -> list[Order]: ...  # type: ignore[empty-body]
def nothing_said(): ...  # type: ignore[no-untyped-def]
def none() -> None: ...
def missing() -> NotThere: ...  # type: ignore[name-defined]  # noqa: F821
async def awaited() -> Order: ...  # type: ignore[empty-body]


def test_a_return_annotation_is_resolved_where_the_function_is() -> None:
    assert return_annotation(found) == list[Order]
    assert return_annotation(awaited) is Order
    assert return_annotation(missing) == "NotThere"
    assert return_annotation(nothing_said) is None
    assert return_annotation(none) in (None, type(None))
    assert return_annotation(functools.wraps(found)(lambda: None)) == list[Order]
    assert return_annotation(functools.partial(found)) is None
    assert return_annotation(len) is None


def shape(**fields: Any) -> type:
    return make_dataclass("Shape", list(fields.items()))


def test_two_versions_of_the_code_with_other_return_types_miss_each_others_rows() -> None:
    annotations = [
        None, int, str, "NotThere", list, list[int], list[str], int | None, dict[str, int], tuple[int, ...], Money,
        shape(x=int), shape(x=str), shape(y=int), shape(x=int, y=int), shape(x=shape(z=int)), shape(x=shape(z=str)),
        Literal["a"], Literal["b"], Literal[Colour.RED], Literal[Colour.BLUE], OrderId, Any, Box[int], Box[str],
        TypedDict("Row", {"a": int}), TypedDict("Row", {"a": str}),
    ]  # fmt: skip
    codecs = [TypedCodec(annotation) for annotation in annotations]
    for writer in codecs:
        for reader in codecs:
            if reader is not writer:
                with pytest.raises(Undecodable, match="another return type"):
                    reader.decode(writer.encode(1))
    with pytest.raises(Undecodable):
        TypedCodec().decode(TypedCodec(types=[Order]).encode(1))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (int | None, OLD_INT),
        (int | str, str | int),
        (Annotated[int, "x"], int),
        (shape(x=int), shape(x=int)),
        (shape(x=int | None), shape(x=OLD_INT)),
    ],
)
def test_two_ways_to_say_one_type_read_each_others_rows(left: Any, right: Any) -> None:
    assert Schema(left).fingerprint == Schema(right).fingerprint


def test_a_member_that_is_gone_is_undecodable_and_a_new_one_changes_nothing() -> None:
    before = enum.Enum("State", ["ON", "OFF"])
    after = enum.Enum("State", ["ON", "LOST"])
    writer, reader = TypedCodec(types=[before]), TypedCodec(types=[after])
    assert reader.decode(writer.encode(before["ON"])) is after["ON"]
    with pytest.raises(Undecodable):
        reader.decode(writer.encode(before["OFF"]))
