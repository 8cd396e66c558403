"""The codecs of cached functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from echomq_tasks.cache import Codec, PlainCodec, TypedCodec
from echomq_tasks.cache.schema import return_annotation
from echomq_tasks.errors import Unencodable


class ReturnCodec:
    """The codec of a function that has been given none: plain JSON where other runtimes share its rows, else the typed
    codec of its return annotation.

    It is chosen when it is first needed: what the annotation names may be defined further down, as the class that a
    method belongs to.

    Parameters:
      function: the function.

    Attributes:
      plain: asked whether rows are shared.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._found: Codec | None = None
        self.plain: Callable[[], bool] = lambda: False

    @property
    def _codec(self) -> Codec:
        found = self._found
        if found is None:
            found = PlainCodec() if self.plain() else TypedCodec(return_annotation(self._function))
            self._found = found
        return found

    def encode(self, value: Any) -> bytes:
        """As :meth:`Codec.encode`."""
        return self._codec.encode(value)

    def decode(self, data: bytes) -> Any:
        """As :meth:`Codec.decode`."""
        return self._codec.decode(data)

    def immutable(self, value: Any) -> bool:
        """As :meth:`Codec.immutable`."""
        return self._codec.immutable(value)


class SharingCodec:
    """Another codec, whose values all readers in a process get as one object, also when they could change it.

    Parameters:
      codec: writes and reads them.
    """

    def __init__(self, codec: Codec) -> None:
        self.encode = codec.encode
        self.decode = codec.decode
        for_row: Callable[[bytes], Codec] | None = getattr(codec, "for_row", None)
        if for_row is not None:
            self.for_row = lambda row: SharingCodec(for_row(row))

    def immutable(self, value: Any) -> bool:
        """True: whoever asked for it says that nobody changes them."""
        return True


class LocalCodec:
    """Another codec, of a table without a server: a value that all readers get as one object needs no bytes.

    Parameters:
      codec: writes and reads the values.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.decode = codec.decode
        self.immutable = codec.immutable
        for_row: Callable[[bytes], Codec] | None = getattr(codec, "for_row", None)
        if for_row is not None:
            self.for_row = lambda row: LocalCodec(for_row(row))

    def encode(self, value: Any) -> bytes:
        """As :meth:`Codec.encode`; nothing for a value without an encoded form that is never read from its bytes."""
        try:
            return self._codec.encode(value)
        except Unencodable as error:
            if self._codec.immutable(value):
                return b""
            raise Unencodable(
                f"{error}. Or, as it is cached in this process alone: isolate=False, which gives all callers the one "
                "object"
            ) from None
