"""Make large values small: zlib above a size, and only when it helps."""

from __future__ import annotations

import zlib

from echomq_tasks.errors import Undecodable
from echomq_tasks.scripts.arguments import whole

#: The server holds no string above this, so no honest value grows past it.
_LARGEST = 512 << 20


def check_threshold(compress_above: int | None) -> int | None:
    """Return ``compress_above`` when it is a size in bytes, or None for never.

    Raises:
      InvalidArgument: when it is neither.
    """
    return None if compress_above is None else whole(compress_above, "compress_above", 0, _LARGEST)


def squeezed(data: bytes, above: int | None) -> bytes | None:
    """``data`` compressed; None when it is not larger than ``above`` bytes, or would not become smaller."""
    if above is None or len(data) <= above:
        return None
    small = zlib.compress(data, 1)
    return small if len(small) < len(data) else None


def restored(data: bytes) -> bytes:
    """What was compressed.

    Raises:
      Undecodable: when ``data`` is cut, has more behind it, or would grow beyond what the server could have held.
    """
    reader = zlib.decompressobj()
    try:
        plain = reader.decompress(data, _LARGEST)
    except zlib.error as error:
        raise Undecodable(f"the compressed value is damaged: {error}") from None
    if not reader.eof or reader.unused_data:
        raise Undecodable("the compressed value is cut short, or has something behind it")
    return plain
