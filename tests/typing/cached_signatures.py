"""What a type checker knows of cached functions; never run, only checked: see test_cached_signatures.py."""

from __future__ import annotations

from collections.abc import Coroutine
from decimal import Decimal
from typing import Any, assert_type

from echomq_tasks import cached
from echomq_tasks.cache import Key, Table
from echomq_tasks.caching import AsyncCachedFunction, CachedFunction, CacheInfo


@cached
def plain(sku: str, *, currency: str = "EUR") -> Decimal:
    return Decimal(1)


@cached(ttl=60, tags=("prices",), stale=300, refresh_ahead=0.8)
def with_options(sku: str) -> list[int]:
    return []


@cached(ttl=lambda value: 1.0 if value else 0.0)
async def coroutine(x: int) -> bytes:
    return bytes(x)


class Shop:
    @cached
    def method(self, sku: str) -> int:
        return 1

    @cached(ttl=5)
    async def async_method(self, sku: str) -> int:
        return 1

    @cached(ttl=5)
    @classmethod
    def class_method(cls, sku: str, *, day: int = 0) -> bytes:
        return b""

    @cached
    @classmethod
    async def async_class_method(cls, sku: str) -> bytes:
        return b""

    @classmethod
    @cached(ttl=5)
    def class_method_around(cls, sku: str) -> bytes:
        return b""

    @cached(ttl=5)
    @staticmethod
    def static_method(sku: str) -> bytes:
        return b""

    @cached
    @staticmethod
    async def async_static_method(sku: str) -> bytes:
        return b""

    @staticmethod
    @cached
    def static_method_around(sku: str) -> bytes:
        return b""

    @cached
    @staticmethod
    def without_arguments() -> bytes:
        return b""


class Branch(Shop): ...


def undecorated(sku: str) -> Decimal:
    return Decimal(1)


shop = Shop()

# Called, a cached function is its function.
assert_type(plain("a", currency="USD"), Decimal)
assert_type(with_options("a"), list[int])
_ = assert_type(coroutine(1), Coroutine[Any, Any, bytes])
assert_type(shop.method("a"), int)
assert_type(Shop.method(shop, "a"), int)
__ = assert_type(shop.async_method("a"), Coroutine[Any, Any, int])
assert_type(Shop.class_method("a", day=1), bytes)
assert_type(shop.class_method("a"), bytes)
assert_type(Branch.class_method("a"), bytes)
assert_type(Branch().method("a"), int)
assert_type(Shop.class_method_around("a"), bytes)
assert_type(shop.class_method_around("a"), bytes)
___ = assert_type(Shop.async_class_method("a"), Coroutine[Any, Any, bytes])
assert_type(Shop.static_method("a"), bytes)
assert_type(shop.static_method("a"), bytes)
____ = assert_type(shop.async_static_method("a"), Coroutine[Any, Any, bytes])
assert_type(Shop.static_method_around("a"), bytes)
assert_type(shop.static_method_around("a"), bytes)
assert_type(shop.without_arguments(), bytes)

# As a function, with and without options.
assert_type(cached(undecorated)("a"), Decimal)
assert_type(cached()(undecorated)("a"), Decimal)
assert_type(cached(ttl=5)(undecorated).refresh("a"), Decimal)

# Its verbs take what it takes, and answer what it answers.
assert_type(plain.refresh("a", currency="USD"), Decimal)
assert_type(plain.peek("a"), Decimal | None)
assert_type(plain.peek_or(0, "a", currency="USD"), Decimal | int)
assert_type(plain.invalidate("a"), bool)
assert_type(plain.put("a", Decimal(1)), bool)
assert_type(plain.invalidate_tags("prices"), bool)
assert_type(plain.cache_info(), CacheInfo)
assert_type(plain.cache_info().hits, int)
assert_type(plain.cache_info().stats.l2_hits, int)
assert_type(plain.key_for("a", currency="USD"), Key)
assert_type(plain.table, Table)
assert_type(plain.__wrapped__("a"), Decimal)
assert_type(shop.method.refresh("a"), int)
assert_type(shop.method.peek("a"), int | None)
assert_type(Shop.class_method.refresh("a", day=1), bytes)
assert_type(shop.static_method.peek("a"), bytes | None)


async def awaits() -> None:
    assert_type(await coroutine(1), bytes)
    assert_type(await coroutine.refresh(1), bytes)
    assert_type(await coroutine.peek(1), bytes | None)
    assert_type(await coroutine.peek_or(None, 1), bytes | None)
    assert_type(await coroutine.put(1, b""), bool)
    assert_type(await shop.async_method.refresh("a"), int)
    assert_type(await coroutine.cache_clear(), bool)
    assert_type(await Shop.async_class_method.refresh("a"), bytes)
    assert_type(await shop.async_static_method.peek("a"), bytes | None)


def takes_any(given: CachedFunction[..., Any], other: AsyncCachedFunction[..., Any]) -> str:
    return given.__name__


takes_any(plain, coroutine)
takes_any(shop.method, shop.async_method)

# Each of these is an error, and an ignore without one is an error too.
plain(1)  # type: ignore[arg-type]
plain()  # type: ignore[call-arg]
plain("a", curency="EUR")  # type: ignore[call-arg]
plain.refresh(1)  # type: ignore[arg-type]
plain.invalidate()  # type: ignore[call-arg]
plain.peek("a", x=1)  # type: ignore[call-arg]
plain.peek_or(0, 1)  # type: ignore[arg-type]
shop.method(shop, "a")  # type: ignore[call-arg, arg-type]
shop.method(1)  # type: ignore[arg-type]
Shop.class_method(1)  # type: ignore[arg-type]
Shop.class_method("a", 1)  # type: ignore[call-arg]
shop.class_method.refresh(Shop, "a")  # type: ignore[call-arg, arg-type]
Shop.static_method()  # type: ignore[call-arg]
shop.static_method(b"")  # type: ignore[arg-type]
shop.without_arguments("a")  # type: ignore[call-arg]
cached(ttl=5)(undecorated)(1)  # type: ignore[arg-type]
_ = coroutine("a")  # type: ignore[arg-type]
cached(7)  # type: ignore[call-overload]
cached(ttl="60")  # type: ignore[call-overload]
cached(tll=60)  # type: ignore[call-overload]
