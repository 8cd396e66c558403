"""Make large values small: zlib above a size, and only when it helps."""

from __future__ import annotations

import zlib
from typing import Final

from echomq_tasks.errors import Undecodable
from echomq_tasks.scripts.arguments import whole

#: What is larger is not compressed, and nothing that would unpack to more is: a few bytes of a row are not to take all
#: the memory of whoever reads it. 64 MiB.
LARGEST: Final = 64 << 20
#: The server holds no string above this.
_STRING: Final = 512 << 20


def check_threshold(compress_above: int | None) -> int | None:
    """Return ``compress_above`` when it is a size in bytes, or None for never.

    Raises:
      InvalidArgument: when it is neither.
    """
    return None if compress_above is None else whole(compress_above, "compress_above", 0, _STRING)


def squeezed(data: bytes, above: int | None) -> bytes | None:
    """``data`` compressed; None when it is not larger than ``above`` bytes, too large, or would not become smaller."""
    if above is None or not above < len(data) <= LARGEST:
        return None
    small = zlib.compress(data, 1)
    return small if len(small) < len(data) else None


def restored(data: bytes) -> bytes:
    """What was compressed.

    Raises:
      Undecodable: when ``data`` is cut, has more behind it, or would unpack to more than :data:`LARGEST`.
    """
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(data, LARGEST)
    except MemoryError:
        raise Undecodable("there is no memory to unpack the compressed value") from None
    except zlib.error as error:
        raise Undecodable(f"the compressed value is damaged: {error}") from None
    if len(plain) >= LARGEST and not reader.eof:
        raise Undecodable(f"the compressed value unpacks to more than {LARGEST} bytes")
    if not reader.eof or reader.unused_data:
        raise Undecodable("the compressed value is cut short, or has something behind it")
    return plain
