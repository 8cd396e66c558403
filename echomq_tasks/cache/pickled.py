"""Pickle for values that nothing else keeps: only on request, and signed."""

from __future__ import annotations

import pickle
from hashlib import blake2b
from hmac import compare_digest
from typing import Any, Final

from echomq_tasks.cache.immutable import immutable
from echomq_tasks.cache.squeezing import check_threshold, restored, squeezed
from echomq_tasks.errors import InvalidArgument, Undecodable, Unencodable

_SIGNATURE: Final = 32
_SHORTEST: Final = 16


class PickleCodec:
    """Keeps whatever :mod:`pickle` can, signed with a secret key.

    Whoever can write an unsigned pickle can run code in its reader, so a row without a right signature is never
    unpickled. All processes that share the table need the same key; whoever has it must be trusted as their code is.

    A row is the letter ``P`` (``p``: compressed), 32 bytes of keyed BLAKE2b over all else, its table and its key, and
    the pickle. So whoever can write to the server cannot pass off the value of one call as that of another; only put an
    older value of the same call in its place.

    Parameters:
      key: the secret, at least 16 bytes, as ``secrets.token_bytes(32)`` makes it.
      compress_above: how many bytes of pickle are kept as they are; more are compressed. None: all.

    Raises:
      InvalidArgument: when ``key`` is no such secret, or ``compress_above`` is no size.
    """

    def __init__(self, key: bytes, *, compress_above: int | None = 4096) -> None:
        if not isinstance(key, bytes) or len(key) < _SHORTEST:
            # The key itself is not shown: the message may end in a log.
            raise InvalidArgument("key= of PickleCodec is a secret of at least 16 bytes, as secrets.token_bytes(32)")
        # BLAKE2b takes no key of more than 64 bytes.
        self._key = blake2b(key, digest_size=64, person=b"echomq.pickle").digest()
        self._above = check_threshold(compress_above)
        self._row = b""

    def for_row(self, row: bytes) -> PickleCodec:
        """The codec of one row: it reads what was signed for that row.

        Parameters:
          row: tells it from all others of all tables.
        """
        # Not by `copy`, which takes longer than to sign.
        made = object.__new__(type(self))
        vars(made).update(vars(self), _row=len(row).to_bytes(4, "big") + row)
        return made

    def encode(self, value: Any) -> bytes:
        """The signed pickle of ``value``.

        Raises:
          Unencodable: when it cannot be pickled.
        """
        try:
            body = pickle.dumps(value, protocol=5)
        except Exception as error:
            raise Unencodable(f"pickle cannot keep this {type(value).__qualname__}: {error}") from error
        small = squeezed(body, self._above)
        letter, body = (b"P", body) if small is None else (b"p", small)
        return letter + self._signed(letter, body) + body

    def decode(self, data: bytes) -> Any:
        """The value of a signed pickle.

        Raises:
          Undecodable: when the signature is not this key's, or the value's class is not there any more.
        """
        letter, signature, body = data[:1], data[1 : 1 + _SIGNATURE], data[1 + _SIGNATURE :]
        if letter not in (b"P", b"p") or not compare_digest(signature, self._signed(letter, body)):
            raise Undecodable("the row is no pickle signed with this key: it was not read")
        try:
            return pickle.loads(restored(body) if letter == b"p" else body)
        except Exception as error:
            raise Undecodable(f"the pickle cannot be read here: {type(error).__name__}: {error}") from error

    def immutable(self, value: Any) -> bool:
        """Tell whether ``value`` and all it holds cannot be changed."""
        return immutable(value)

    def _signed(self, letter: bytes, body: bytes) -> bytes:
        signed = blake2b(self._row + letter, digest_size=_SIGNATURE, key=self._key)
        signed.update(body)
        return signed.digest()
