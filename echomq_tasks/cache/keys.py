"""The key of a call: which row of a table holds its result (wire §9)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping
from hashlib import blake2b
from inspect import Parameter, Signature
from struct import Struct
from typing import Any, NamedTuple

from echomq_tasks.cache import fastkeys
from echomq_tasks.cache.canonical import canonical
from echomq_tasks.cache.immutable import immutable
from echomq_tasks.cache.modules import module_of
from echomq_tasks.errors import InvalidArgument, InvalidId, UnstableKey
from echomq_tasks.identity import MAX_SNOWFLAKE, brand, is_branded, to_base62
from echomq_tasks.scripts.arguments import shown

#: The form of the bytes below. Another form finds none of the rows of this one.
_FORM = b"1"
#: Letters and digits of an id.
_ID = 14
#: A digest: the number of the row, but for its top bit, and the rest.
_split = Struct(">Q16s").unpack
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Key(NamedTuple):
    """Where the result of a call is kept.

    Attributes:
      id: the row, a branded id of the table's kind.
      rest: the 16 bytes of the call's digest that the id has no room for; they travel with the value and tell two calls
        of one id apart. Empty for a row that is known by its id alone, which other runtimes share.
    """

    id: str
    rest: bytes


class KeyMaker:
    """Makes the keys of one function's calls.

    Arguments are bound to the signature, so that ``f(1)``, ``f(x=1)`` and a call that leaves a default out agree. The
    function's module and qualified name are part of the key: what has the same of both is one function.

    Parameters:
      function: the function.
      kind: the table's kind, three letters.
      ignore: the names of parameters that do not count, ``*args`` and ``**kwargs`` by their names too.
      key: called with the arguments, answers what identifies the call; it must depend on nothing that may change
        without the answer changing too.
      bound: whether the first parameter (``self``) is not among the arguments.
      ids_only: whether a call that may share a row must be of an id of the kind.

    Attributes:
      fast: called with ``(args, kwargs)``, answers a cheap key that is equal to another of **this** maker only when the
        calls have one key, and hashes quickly; None when the arguments have none. Two equal calls may have different
        fast keys. It holds no argument that does not count.
      counts_nothing: whether there is no argument that counts, so that all calls have one key.
      shares: whether a call may be of a row shared with other runtimes: the function has one argument that counts, or
        ``key``. A call is, when that is a branded id of the kind.

    Raises:
      InvalidArgument: when the function has no name or no signature, ``ignore`` names no parameter, or both ``ignore``
        and ``key`` are given.
      InvalidId: when ``kind`` is not three letters A-Z.
    """

    fast: fastkeys.FastKey

    def __init__(
        self,
        function: Callable[..., Any],
        kind: str,
        *,
        ignore: Iterable[str] = (),
        key: Callable[..., Any] | None = None,
        bound: bool = False,
        ids_only: bool = False,
    ) -> None:
        brand(kind, 0)
        name = getattr(function, "__qualname__", None)
        if not isinstance(name, str):
            raise InvalidArgument(f"{shown(function)} has no name to tell its rows by: wrap it into a function")
        ignored = _names(ignore, name)
        if key is not None and (ignored or not callable(key)):
            raise InvalidArgument(
                f"{name}() takes a function as key=, or names of parameters as ignore=, and not both: leave what does "
                "not count out of what key= answers"
            )
        self._kind, self._name, self._key = kind, name, key
        self._ids_only, self.counts_nothing = ids_only, False
        known_by = canonical(module_of(function)) + canonical(name)
        self._only: Parameter | None = None
        if key is not None:
            self._begun = blake2b(_FORM + b"k" + known_by, digest_size=24)
            self.shares, self.fast = True, self._fast_by_key
            return
        prefix = _FORM + b"c" + known_by
        self._signature = _signature(function, name, bound)
        parameters = list(self._signature.parameters.values())
        unknown = ignored - {parameter.name for parameter in parameters}
        if unknown:
            names = ", ".join(parameter.name for parameter in parameters) or "none"
            raise InvalidArgument(f"{name}() has no parameter {min(unknown)!r} to ignore; it has: {names}")
        # By name too: a release that swaps two parameters must not find the rows of the one before.
        self._counting = [(canonical(each.name), each) for each in parameters if each.name not in ignored]
        self.counts_nothing = not self._counting
        self._defaults = {each.name: each.default for each in parameters}
        #: From how many positional arguments on a call without names is complete; None when it takes more to bind one.
        self._enough: int | None = None
        if all(each.kind in _BY_POSITION for each in parameters):
            self._enough = sum(each.default is Parameter.empty for each in parameters)
        if len(self._counting) == 1 and self._counting[0][1].kind in (*_BY_POSITION, *_BY_NAME):
            self._only = self._counting[0][1]
            prefix += self._counting[0][0]
        #: The digest of what all keys have in common.
        self._begun = blake2b(prefix, digest_size=24)
        self.shares = self._only is not None
        self.fast = self._choose_fast(parameters, ignored)

    def key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key of a call, the same in every process.

        Raises:
          UnstableKey: when an argument that counts has no form that another process would know again.
          InvalidId: when only ids are keys, and this call is of none of the kind.
          TypeError: when the function cannot be called with these arguments.
        """
        if self._key is not None:
            value = self._key(*args, **kwargs)
            return self._shared(value) or self._digested(self._canonical_key(value))
        only = self._only
        if only is not None:
            # Of a single parameter it is the value itself, without the dict for all of them.
            alone = not kwargs and len(args) == len(self._defaults) == 1 and self._enough is not None
            value = args[0] if alone else self._values(args, kwargs)[only.name]
            return self._shared(value) or self._digested(self._argument(only, value))
        parts: list[bytes] = []
        values = self._values(args, kwargs)
        for name, parameter in self._counting:
            parts += name, self._argument(parameter, values[parameter.name])
        return self._digested(b"".join(parts))

    def _digested(self, data: bytes) -> Key:
        """The key that stands for ``data`` behind what all keys have in common: its 24-byte BLAKE2b digest, whose first
        63 bits number the row."""
        # A copy, for what is the same for all was digested once.
        whole = self._begun.copy()
        whole.update(data)
        number, rest = _split(whole.digest())
        return Key(self._kind + to_base62(number & MAX_SNOWFLAKE), rest)

    def _fast_by_key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
        # The arguments are no key here: `key=` may look elsewhere too, as at whose request this is.
        assert self._key is not None
        return fastkeys.of_value(self._key(*args, **kwargs))

    def _shared(self, value: object) -> Key | None:
        if type(value) is str and len(value) != _ID and not self._ids_only:
            return None
        # A `str` subclass is an id too: were it not, what others invalidate under that id would live on here.
        if is_branded(value, self._kind):
            return Key(str.__str__(value), b"")
        if self._ids_only:
            raise self._no_id(value)
        return None

    def _no_id(self, value: object) -> InvalidId:
        return InvalidId(
            f"{self._name}() is of the ids of the kind {self._kind}, whose rows it shares, and {shown(value)} is none: "
            f"an id is {self._kind} and 11 letters and digits, as identity.brand({self._kind!r}, number) makes it. For "
            "arguments of any sort leave kind= out"
        )

    def _values(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._enough is not None and not kwargs and self._enough <= len(args) <= len(self._defaults):
            # Most calls, at a tenth of what binding costs.
            return {**self._defaults, **dict(zip(self._defaults, args, strict=False))}
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() cannot be called so: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def _argument(self, parameter: Parameter, value: object) -> bytes:
        try:
            return canonical(value)
        except UnstableKey as error:
            if value is parameter.default:
                # As of `missing = object()`: it stands for itself wherever this function is.
                return b"="
            raise UnstableKey(
                f"{self._name}() has no key for its argument {parameter.name!r}: {error}. Leave it out with "
                f"ignore=({parameter.name!r},), or say what identifies a call with key="
            ) from None

    def _canonical_key(self, value: object) -> bytes:
        try:
            return canonical(value)
        except UnstableKey as error:
            raise UnstableKey(
                f"key= of {self._name}() answered what is no key: {error}. Answer strings, numbers, or tuples of them"
            ) from None

    def _choose_fast(self, parameters: list[Parameter], ignored: frozenset[str]) -> fastkeys.FastKey:
        if any(_may_change(parameter.default) for _, parameter in self._counting):
            # The same call has another key after its default changed.
            return fastkeys.never
        inner = fastkeys.of_many if self._only is None else fastkeys.of_one
        if not ignored:
            return inner
        placed = [parameter for parameter in parameters if parameter.kind in _BY_POSITION]
        places = frozenset(place for place, parameter in enumerate(placed) if parameter.name in ignored)
        kinds = {parameter.kind for parameter in parameters if parameter.name in ignored}
        named = frozenset(parameter.name for parameter in parameters if parameter.kind in _BY_NAME)
        kept, skipped = named - ignored, named & ignored
        return fastkeys.without(
            places,
            len(placed) if Parameter.VAR_POSITIONAL in kinds else None,
            kept.__contains__ if Parameter.VAR_KEYWORD in kinds else lambda name: name not in skipped,
            inner,
        )


def _names(ignore: object, function: str) -> frozenset[str]:
    if isinstance(ignore, str) or not isinstance(ignore, Iterable):
        raise InvalidArgument(
            f"ignore= of {function}() is a list of parameter names, as ['session'], not {shown(ignore)}"
        )
    names = list(ignore)
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(f"ignore= of {function}() is a list of parameter names, and {shown(name)} is none")
    return frozenset(names)


def _signature(function: Callable[..., Any], name: str, bound: bool) -> Signature:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"{name}() does not tell its parameters: say what identifies a call with key=, or wrap it into a function"
        ) from None
    parameters = list(signature.parameters.values())
    if not bound:
        return signature
    if not parameters or parameters[0].kind not in (*_BY_POSITION, Parameter.VAR_POSITIONAL):
        raise InvalidArgument(f"{name}() is a method without self: give it a first parameter, or make it static")
    # A method may take self among its `*args`.
    first = [] if parameters[0].kind in _BY_POSITION else parameters[:1]
    return signature.replace(parameters=[*first, *parameters[1:]])


def _may_change(default: object) -> bool:
    if default is Parameter.empty or immutable(default):
        return False
    if isinstance(default, (list, dict, set, bytearray, tuple)):
        return True
    try:
        canonical(default)
    except UnstableKey:
        return False
    return True
