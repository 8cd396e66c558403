"""How values are kept in the rows of a table: JSON that brings the same types back, or JSON that anybody reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NoReturn, Protocol

from echomq_tasks.cache.immutable import immutable
from echomq_tasks.cache.schema import Schema
from echomq_tasks.cache.squeezing import check_threshold, restored, squeezed
from echomq_tasks.cache.tagged import Packer, Unpacker
from echomq_tasks.errors import Undecodable, Unencodable


class Codec(Protocol):
    """How a value becomes the bytes of a row, and a row's bytes a value.

    Whatever else one raises is logged once: the row is loaded anew, or the value is not kept.

    One that has ``for_row(row: bytes) -> Codec`` besides is asked for the codec of each row, as one that signs: ``row``
    is its table and its key.
    """

    def encode(self, value: Any) -> bytes:
        """The bytes that keep ``value``.

        Raises:
          Unencodable: when they could not give it back as the same type.
        """

    def decode(self, data: bytes) -> Any:
        """The value that ``data`` keeps: a new one each time, unless it is immutable.

        Raises:
          Undecodable: when ``data`` is damaged, foreign, or of a version of the code with other types.
        """

    def immutable(self, value: Any) -> bool:
        """Tell whether one ``value`` may be handed to all callers, because none of them can change it."""


class TypedCodec:
    """Keeps None, bool, int, float, complex, str, bytes, bytearray, list, tuple, set, frozenset, dict, OrderedDict,
    Counter, deque, datetime, date, time, timedelta, time zones, Decimal, Fraction and UUID, and the dataclasses, named
    tuples and enumerations that it knows. Each comes back as the same type.

    A row is one letter, the 8 bytes of the schema's fingerprint, and JSON. The letter is ``J`` for plain JSON and ``T``
    for JSON with tags; small, ``j`` or ``t``, when the JSON is compressed.

    Parameters:
      schema: what the values are, as a function's return annotation says; the classes in it are known. A row of another
        schema cannot be decoded.
      types: more classes to know.
      compress_above: how many bytes of JSON are kept as they are; more are compressed. None: all.

    Raises:
      InvalidArgument: when ``types`` lists something else, or ``compress_above`` is no size.
    """

    def __init__(self, schema: Any = None, *, types: Iterable[type] = (), compress_above: int | None = 4096) -> None:
        self._schema = Schema(schema, types)
        self._above = check_threshold(compress_above)
        self._tagged = _decoder(Unpacker(self._schema).hook)

    def encode(self, value: Any) -> bytes:
        """The bytes that keep ``value``.

        Raises:
          Unencodable: when they could not give it back as the same type; the message says what to do.
        """
        packer = Packer(self._schema)
        body = _dumped(_packed(packer, value))
        letter = b"T" if packer.tagged else b"J"
        small = squeezed(body, self._above)
        if small is not None:
            letter, body = letter.lower(), small
        return letter + self._schema.fingerprint + body

    def decode(self, data: bytes) -> Any:
        """The value that ``data`` keeps.

        Raises:
          Undecodable: when ``data`` is damaged, foreign, or of another schema.
        """
        letter, fingerprint, body = data[:1], data[1:9], data[9:]
        if letter not in (b"J", b"T", b"j", b"t"):
            raise Undecodable(f"a row of this codec starts with J, T, j or t, not {letter!r}")
        if fingerprint != self._schema.fingerprint:
            raise Undecodable("the row was written for another return type: another version of the code, or of a class")
        if letter.islower():
            body = restored(body)
        return _loaded(body, self._tagged if letter in b"Tt" else _DECODER)

    def immutable(self, value: Any) -> bool:
        """Tell whether ``value`` and all it holds cannot be changed."""
        return immutable(value)


class PlainCodec:
    """Plain JSON and nothing else: for rows that runtimes in other languages read and write too.

    Takes None, bool, int, float, str, lists, and dicts with str keys. No tags and no compression.
    """

    def encode(self, value: Any) -> bytes:
        """The JSON text of ``value``.

        Raises:
          Unencodable: when JSON, as other languages read it, could not give it back as the same type.
        """
        try:
            return _dumped(_packed(Packer(_NO_CLASSES, plain=True), value), "strict")
        except UnicodeEncodeError:
            raise Unencodable("a text holds a lone surrogate, which UTF-8 cannot carry") from None

    def decode(self, data: bytes) -> Any:
        """The value of a JSON text.

        Raises:
          Undecodable: when ``data`` is no JSON in UTF-8.
        """
        return _loaded(data, _DECODER)

    def immutable(self, value: Any) -> bool:
        """Tell whether ``value`` is no list and no dict, and so cannot be changed."""
        return immutable(value)


_NO_CLASSES: Final = Schema()


def _packed(packer: Packer, value: Any) -> Any:
    try:
        return packer.pack(value)
    except Unencodable:
        raise
    except Exception as error:
        # A property of the value's own class may raise anything.
        raise Unencodable(f"{type(error).__name__} while looking at the value: {error}") from error


def _dumped(tree: Any, surrogates: str = "surrogatepass") -> bytes:
    # Not as `\ud83d` escapes: two lone surrogates side by side would come back as one character.
    return _ENCODER.encode(tree).encode("utf-8", surrogates)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _decoder(hook: Any) -> json.JSONDecoder:
    return json.JSONDecoder(object_hook=hook, parse_constant=_no_constant)


#: Made once: `json.dumps` and `json.loads` would make one for each value, which takes longer than a small value does.
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
_DECODER: Final = _decoder(None)


def _loaded(data: bytes, decoder: json.JSONDecoder) -> Any:
    try:
        text = data.decode("utf-8", "surrogatepass")
        try:
            # Looks for no white space around it: we write none.
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            end = -1
        return value if end == len(text) else decoder.decode(text)
    except Exception as error:
        # Damage may reach the constructor of any type: whatever it says, this row is a miss.
        raise Undecodable(f"the row holds no value of ours: {type(error).__name__}: {error}") from error
