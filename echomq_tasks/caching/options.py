"""Options that ``cached`` does not have: what other caches call ours, and what has no need of one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Final

from echomq_tasks.errors import InvalidArgument

_TTL: Final = "ttl=60, in seconds, or a function of the value"
_ENTRIES: Final = "max_entries=10_000, the most rows in L1"
_NAME: Final = "name=, the table"
_KEY: Final = "key=, called with the arguments"
_CONNECTION: Final = "connection=, as connect(url) returns it, or EMQ_URL"
_ONE_LOAD: Final = "nothing: it is safe to share, and one caller loads for all; lease= and wait= say how long"
_CODEC: Final = "codec=, as echomq_tasks.cache.PickleCodec(secret); JSON that keeps types by default"
_WHEN: Final = "ttl=lambda value: 60 if value else 0, for 0 is not kept"

#: By the names that functools, cachetools, dogpile.cache, cashews, aiocache, Django and others have for them.
_THEIRS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("timeout", "expire", "expires", "expiration_time", "expiration", "expire_after", "seconds"), _TTL),
    **dict.fromkeys(("time_to_live", "max_age", "lifetime", "ttl_seconds"), _TTL),
    **dict.fromkeys(("maxsize", "max_size", "capacity", "maxlen", "limit"), _ENTRIES),
    "typed": "nothing: types count, so that 1, 1.0 and True are three calls",
    "getsizeof": "max_bytes=, the most bytes in L1",
    "cache": "l1=, a mapping of your own as the first layer",
    "condition": f"{_ONE_LOAD}. To keep some values only, {_WHEN}",
    **dict.fromkeys(("lock", "distributed_lock", "lock_timeout", "protected"), _ONE_LOAD),
    **dict.fromkeys(("namespace", "prefix", "key_prefix", "region", "table", "alias"), _NAME),
    **dict.fromkeys(("key_builder", "key_func", "key_generator", "function_key_generator", "make_name", "hash"), _KEY),
    **dict.fromkeys(("noself", "skip_self"), "nothing: self does not count"),
    **dict.fromkeys(("serializer", "plugins", "pickle", "pickle_type", "secret"), _CODEC),
    **dict.fromkeys(("skip_cache_func", "should_cache_fn", "unless", "cache_none"), _WHEN),
    "early_ttl": "refresh_ahead=0.8, a part of the ttl",
    "soft_ttl": "stale=300, seconds past the ttl",
    "grace": "stale=300, seconds past the ttl",
    **dict.fromkeys(("url", "client", "backend", "endpoint", "redis"), _CONNECTION),
    **dict.fromkeys(("info", "enable_stats", "stats"), "nothing: cache_info() is always there"),
}


def refuse_unknown(given: Iterable[str], ours: Iterable[str]) -> None:
    """Refuse options that ``cached`` does not have, and say what to use in place of the first.

    Parameters:
      given: their names.
      ours: the names of the options that there are.

    Raises:
      InvalidArgument: when there is one.
    """
    for name in given:
        if (instead := _THEIRS.get(name.lower())) is not None:
            raise InvalidArgument(f"cached has no option {name}=. Here it is {instead}")
        known = sorted(ours)
        near = difflib.get_close_matches(name.lower(), known, n=1)
        hint = f"did you mean {near[0]}=?" if near else f"it has {', '.join(f'{each}=' for each in known)}"
        raise InvalidArgument(f"cached has no option {name}=: {hint}")
