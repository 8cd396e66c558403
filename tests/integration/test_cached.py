"""``@cached``: as easy as lru_cache, over two layers, with or without a server."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import logging
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from types import ModuleType
from typing import Any

import cachetools
import pytest
from support.children import in_child
from support.eventually import eventually
from support.servers import ServerProcess
from wire.handwriting import Wire

from echomq_tasks import Connection, cached
from echomq_tasks.cache import PickleCodec, reach
from echomq_tasks.cache.table import tables
from echomq_tasks.caching import AsyncCachedFunction, CachedFunction
from echomq_tasks.caching.naming import default_name
from echomq_tasks.errors import ConfigError, InvalidArgument, InvalidId, InvalidName, Unencodable, UnstableKey
from echomq_tasks.identity import brand

USER = brand("USR", 7)


class Calls:
    """Counts the calls of functions that answer how often they were called."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def __call__(self, *call: Any) -> int:
        self.all.append(call)
        return len(self.all)


@pytest.fixture
def default_server(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let the functions that are decorated without a connection begin anew at a URL."""

    def use(url: str) -> None:
        monkeypatch.setenv("EMQ_URL", url)
        monkeypatch.setattr(reach, "_DEFAULT", reach.Shared())

    return use


@pytest.fixture
def calls() -> Calls:
    return Calls()


@cached(ttl=60, l2=False)
def price(sku: str, *, currency: str = "EUR") -> Decimal:
    """What a thing costs."""
    return Decimal(len(sku))


@pytest.fixture
def another_process() -> Iterator[Callable[..., Any]]:
    """Makes the same function as another process has it: it shares nothing but the server."""
    with contextlib.ExitStack() as stack:

        def make(connection: Connection, name: str, function: Callable[..., Any], **options: Any) -> Any:
            own = stack.enter_context(Connection(connection.config))
            return cached(name=name, connection=own, **options)(function)

        yield make


# It is the function.


def test_it_has_the_name_the_docstring_and_the_signature_of_its_function() -> None:
    assert (price.__name__, price.__qualname__, price.__module__) == ("price", "price", __name__)
    assert price.__doc__ == "What a thing costs."
    assert str(inspect.signature(price)) == "(sku: 'str', *, currency: 'str' = 'EUR') -> 'Decimal'"
    assert price.__wrapped__("abc") == 3
    assert inspect.unwrap(price) is price.__wrapped__
    assert isinstance(price, CachedFunction)
    assert repr(price) == "<cached function price>"
    assert not inspect.iscoroutinefunction(price)


def test_it_is_pickled_and_copied_by_its_name_as_a_function_is() -> None:
    assert pickle.loads(pickle.dumps(price)) is price
    assert copy.copy(price) is copy.deepcopy(price) is price


def test_what_it_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        price.nothing_like_it  # type: ignore[attr-defined] # noqa: B018
    assert not hasattr(price, "cache_lock")


def test_it_does_no_io_before_it_is_called(
    default_server: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    default_server("valkey://127.0.0.1:1")
    tried: list[object] = []
    monkeypatch.setattr("socket.socket.connect", lambda *args: tried.append(args) or 1 / 0)
    threads = threading.active_count()
    made = cached(ttl=1, coherence="lane")(len_of)
    assert made.cache_info() == (0, 0, 10_000, 0)
    assert made.key_for("a") == made.key_for(x="a")
    assert (threading.active_count(), tried) == (threads, [])


# It caches.


def test_a_call_is_answered_from_both_layers(
    connection: Connection, queue_name: str, calls: Calls, another_process: Callable[..., Any]
) -> None:
    def function(x: str, y: int = 2) -> int:
        return calls(x, y)

    one, two = (another_process(connection, queue_name, function) for _ in range(2))
    assert [one("a"), one("a", 2), one(x="a"), one(y=2, x="a"), two("a"), two("a")] == [1] * 6
    assert one("b") == 2
    assert calls.all == [("a", 2), ("b", 2)]
    assert one.cache_info() == (3, 2, 10_000, 2)
    assert two.cache_info() == (1, 1, 10_000, 1)
    assert (two.cache_info().stats.l2_hits, two.cache_info().stats.loads) == (1, 0)


def test_arguments_of_other_types_are_other_calls(calls: Calls) -> None:
    @cached
    def function(x: Any) -> int:
        return calls(x)

    values = [1, 1.0, True, "1", b"1", None, (1,), (True,), 0, False, 0.0, -0.0, Decimal(1), [1], {"a": 1}]
    first = [function(value) for value in values]
    assert first == list(range(1, len(values) + 1))
    assert [function(value) for value in values] == first


def test_none_is_cached_and_an_error_is_not(calls: Calls) -> None:
    @cached
    def function(x: str) -> None:
        if calls(x) == 1:
            raise KeyError(x)

    with pytest.raises(KeyError):
        function("a")
    assert function("a") is None
    assert function("a") is None
    assert len(calls.all) == 2


def test_a_call_that_the_function_cannot_take_is_a_type_error() -> None:
    for call in (lambda: price(), lambda: price("a", "b"), lambda: price("a", curency="EUR")):  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"price\(\)"):
            call()


def test_an_argument_without_a_stable_form_is_refused_with_advice() -> None:
    with pytest.raises(UnstableKey, match=r"ignore=\('sku',\)"):
        price(object())  # type: ignore[arg-type]


def test_what_does_not_count_is_ignored_and_key_says_what_does(calls: Calls) -> None:
    @cached(ignore=["session"])
    def ignoring(session: object, x: int) -> int:
        return calls(x)

    @cached(key=lambda session, x: abs(x))
    def keyed(session: object, x: int) -> int:
        return calls(x)

    assert [ignoring(object(), 1), ignoring(object(), 1), ignoring(session=object(), x=1)] == [1, 1, 1]
    assert [keyed(object(), 3), keyed(object(), -3), keyed(object(), 4)] == [2, 2, 3]


def test_the_ttl_may_depend_on_the_value_and_zero_is_not_kept(calls: Calls) -> None:
    @cached(ttl=lambda value: 60 if value > 1 else 0)
    def function(x: str) -> int:
        return calls(x)

    assert [function("a"), function("a"), function("a")] == [1, 2, 2]


def test_a_value_that_can_be_changed_is_each_callers_own_unless_they_promise_not_to() -> None:
    @cached
    def isolated() -> list[int]:
        return [1]

    @cached(isolate=False)
    def shared() -> list[int]:
        return [1]

    isolated().append(2)
    assert isolated() == [1]
    assert isolated() is not isolated()
    assert shared() is shared()


def test_l1_is_bounded_and_a_mapping_of_ones_own_is_taken(calls: Calls) -> None:
    @cached(max_entries=2)
    def bounded(x: int) -> int:
        return calls(x)

    @cached(l1=cachetools.LRUCache(maxsize=2))
    def borrowed(x: int) -> int:
        return calls(x)

    for function in (bounded, borrowed):
        for x in range(5):
            function(x)
        info = function.cache_info()
        assert (info.maxsize, info.currsize, info.misses, info.stats.evictions) == (2, 2, 5, 3)
        assert function(4) == function(4)


def test_a_mapping_of_ones_own_may_let_values_expire(calls: Calls) -> None:
    clock = [0.0]
    rows = cachetools.TTLCache(maxsize=2, ttl=5, timer=lambda: clock[0])

    @cached(l1=rows)
    def function(x: int) -> int:
        return calls(x)

    assert [function(1), function(1), function(2), function(1)] == [1, 1, 2, 1]
    clock[0] = 6.0
    assert (function(1), function(1), function.peek(2)) == (3, 3, None)
    assert function.cache_info() == (3, 3, 2, 1)
    function.cache_clear()
    assert len(rows) == 0


def test_what_cache_info_answers_can_be_used_as_that_of_lru_cache(calls: Calls) -> None:
    functions = [decorate(lambda x: calls(x)) for decorate in (functools.lru_cache(maxsize=10_000), cached)]
    for function in functions:
        for x in (1, 1, 2):
            function(x)
    theirs, ours = (function.cache_info() for function in functions)
    assert (tuple(ours), repr(ours), ours._fields) == (tuple(theirs), repr(theirs), theirs._fields)
    assert pickle.loads(pickle.dumps(ours)).stats == copy.copy(ours).stats == ours.stats
    assert (ours._replace(hits=7).stats, ours._replace(hits=7)[:2]) == (ours.stats, (7, ours.misses))


def test_a_key_of_cachetools_works_as_a_key(calls: Calls) -> None:
    @cached(key=lambda *args: tuple(cachetools.keys.hashkey(*args)))
    def function(x: int, y: int) -> int:
        return calls(x, y)

    assert [function(1, 2), function(1, 2), function(2, 1)] == [1, 1, 2]


def test_values_that_json_does_not_keep_are_kept_by_a_signed_pickle(
    connection: Connection, queue_name: str, another_process: Callable[..., Any]
) -> None:
    def function() -> Any:
        return functools.partial(int, base=2)

    codec = PickleCodec(b"a secret of the tests")
    one, two = (another_process(connection, queue_name, function, codec=codec) for _ in range(2))
    assert one()("101") == two()("101") == 5
    assert two.cache_info().stats.l2_hits == 1
    other = another_process(connection, queue_name, function, codec=PickleCodec(b"not the same secret"))
    assert other()("11") == 3
    assert other.cache_info().stats.loads == 1


# Its verbs.


def test_the_verbs_reach_the_other_processes(
    connection: Connection, queue_name: str, calls: Calls, another_process: Callable[..., Any]
) -> None:
    def function(x: str, y: int = 0) -> int:
        return calls(x, y)

    one, two = (another_process(connection, queue_name, function) for _ in range(2))
    assert (one.peek("a"), one("a"), one.peek("a"), two("a"), two.peek(x="a", y=0)) == (None, 1, 1, 1, 1)

    assert one.refresh("a") == 2
    eventually(lambda: two("a") == 2)
    assert one.put("a", 0, 70)
    eventually(lambda: two(x="a") == 70)
    assert one.put("b", 80, y=1)
    assert (two("b", 1), one("b", y=1)) == (80, 80)
    assert one.invalidate("a")
    assert one.peek("a") is None
    eventually(lambda: two("a") == 3)
    assert one("a") == 3
    assert one.cache_clear()
    # It lets go of one row after the other.
    eventually(lambda: two.peek("b", 1) is two.peek("a") is None)
    assert two("a") == 4
    assert len(calls.all) == 4


def test_tags_drop_what_was_cached_with_them(
    connection: Connection, queue_name: str, calls: Calls, another_process: Callable[..., Any]
) -> None:
    def function(user: int, page: int) -> int:
        return calls(user, page)

    def tags(user: int, page: int) -> list[str]:
        return [f"user:{user}", f"page:{page}"]

    one, two = (another_process(connection, queue_name, function, tags=tags) for _ in range(2))
    assert [one(7, 1), one(7, 2), one(8, 1), two(7, 1), two(8, 1)] == [1, 2, 3, 1, 3]
    assert one.put(9, 2, 90)
    assert one.invalidate_tags("user:7", "page:2")
    assert one.peek(7, 1) is None
    eventually(lambda: two.peek(7, 1) is None)
    assert [two(8, 1), two(7, 1), one(9, 2)] == [3, 4, 5]


def test_fixed_tags_are_looked_at_when_the_function_is_decorated() -> None:
    assert cached(tags=("a", "b"), l2=False)(len_of)("abc") == 3
    with pytest.raises(InvalidName, match="several texts"):
        cached(tags="ab")(len_of)
    with pytest.raises(InvalidName):
        cached(tags=("",))(len_of)


def len_of(x: str) -> int:
    return len(x)


def test_put_needs_a_value_and_refuses_one_that_cannot_be_kept() -> None:
    last = r"price.put\(\) takes the arguments of a call, and last of all the value, by position"
    for args, kwargs in [((), {}), ((Decimal(1),), {}), (("a",), {"value": Decimal(1)}), ((), {"sku": "a"})]:
        with pytest.raises(TypeError, match=last):
            price.put(*args, **kwargs)
    with pytest.raises(Unencodable):
        price.put("a", object())


def test_a_cached_none_can_be_told_from_nothing(standalone: Connection, queue_name: str) -> None:
    def function(default: int, missing: object = None) -> None:
        return None

    plain = cached(function)
    assert (plain.peek(1), plain.peek_or("nothing", 1)) == (None, "nothing")
    plain(1)
    assert (plain.peek_or("nothing", 1), plain.peek_or("nothing", default=1, missing=2)) == (None, "nothing")
    on_server = cached(name=queue_name, connection=standalone, max_entries=0)(function)
    assert on_server.peek_or(plain, 1) is plain
    on_server(1)
    assert on_server.peek_or(plain, 1) is None

    @cached
    async def later(default: int) -> None:
        return None

    async def main() -> None:
        assert await later.peek_or(1, 7) == 1
        await later(7)
        assert await later.peek_or(1, default=7) is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("maxsize", "max_entries="),
        ("typed", "types count"),
        ("timeout", "ttl=60"),
        ("expiration_time", "ttl=60"),
        ("expire", "ttl=60"),
        ("TTL", "did you mean ttl=?"),
        ("tll", "did you mean ttl=?"),
        ("refresh_ahed", "did you mean refresh_ahead=?"),
        ("cache", "l1="),
        ("lock", "one caller loads for all"),
        ("condition", "ttl=lambda value"),
        ("namespace", "name="),
        ("qqq", "it has codec=, coherence=, connection=, ignore="),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_what_there_is(option: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=f"cached has no option {option}=") as caught:
        cached(**{option: 1})
    assert says in str(caught.value)


def test_its_parameters_are_told_as_those_of_lru_cache(calls: Calls) -> None:
    theirs = functools.lru_cache(maxsize=3, typed=True)(calls).cache_parameters()
    assert cached(max_entries=3)(len_of).cache_parameters() == theirs
    assert cached(l1=cachetools.LRUCache(3))(len_of).cache_parameters() == theirs


def test_cache_clear_begins_to_count_anew(calls: Calls) -> None:
    @cached
    def function(x: int) -> int:
        return calls(x)

    assert [function(1), function(1), function(2)] == [1, 1, 2]
    assert function.cache_info() == (1, 2, 10_000, 2)
    assert function.cache_clear()
    assert function.cache_info() == (0, 0, 10_000, 0)
    assert function(1) == 3
    assert function.cache_info() == (0, 1, 10_000, 1)
    assert function.cache_info().stats.loads == 3


def test_the_table_underneath_has_the_rows(standalone: Connection, queue_name: str, calls: Calls) -> None:
    @cached(name=queue_name, connection=standalone, kind="PRC")
    def function(x: str, y: str) -> int:
        return calls(x, y)

    assert function("a", "b") == 1
    key = function.key_for("a", y="b")
    assert key.id.startswith("PRC")
    assert function.table.fetch(key, lambda: 99) == 1
    assert function.table.name == queue_name
    assert function.table.invalidate(key)
    assert function("a", "b") == 2


# Async.


def test_an_async_function_is_cached_and_its_verbs_are_awaited(
    connection: Connection, queue_name: str, calls: Calls, another_process: Callable[..., Any]
) -> None:
    async def function(x: str, y: int = 0) -> int:
        await asyncio.sleep(0)
        return calls(x, y)

    one, two = (another_process(connection, queue_name, function, tags=("all",)) for _ in range(2))
    assert isinstance(one, AsyncCachedFunction)
    assert inspect.iscoroutinefunction(one)
    assert asyncio.iscoroutinefunction(one)

    async def main() -> None:
        assert await asyncio.gather(*(one("a") for _ in range(10)), *(two("a") for _ in range(10))) == [1] * 20
        assert await one(x="a") == 1
        assert await one.peek("a") == 1
        assert await one.refresh("a") == 2
        assert await one.put("b", 5, 7)
        assert await two("b", 5) == 7
        assert await one.invalidate("a")
        assert await one.peek("a") is None
        assert await one.invalidate_tags("all")
        assert await one.peek("b", 5) is None
        assert await one("a") == 3
        assert await one.cache_clear()
        assert one.cache_info() == (0, 0, 10_000, 0)

    asyncio.run(main())
    assert asyncio.run(one("a")) == 4
    # From where nothing can be awaited.
    assert one.table.invalidate(one.key_for("a"))
    assert asyncio.run(one("a")) == 5


def test_a_plain_function_that_returns_a_coroutine_is_told_what_to_do() -> None:
    async def inner() -> int:
        return 1

    @cached
    @functools.wraps(inner)
    def wrapper() -> Any:
        return inner()

    with pytest.raises(TypeError, match=r"inner\(\) returned a coroutine, and is no `async def`"):
        wrapper()


def test_a_function_that_nobody_has_any_more_is_gone_with_its_table(standalone: Connection, queue_name: str) -> None:
    class Here:
        @cached(name=queue_name, connection=standalone)
        def method(self, x: int) -> list[int]:
            return [x]

    Here().method(1)
    gone = weakref.ref(Here.method), weakref.ref(Here.method.table)
    assert queue_name in [table.name for table in tables()]
    del Here
    # A thread of the cache may hold it for another moment.
    eventually(lambda: gc.collect() >= 0 and [each() for each in gone] == [None, None])
    assert queue_name not in [table.name for table in tables()]


# Which table.


def test_functions_of_other_names_have_other_tables() -> None:
    names = [default_name(each) for each in (price.__wrapped__, len_of, Calls.__call__, lambda: None)]
    assert names[:3] == [f"{__name__}.price", f"{__name__}.len_of", f"{__name__}.Calls.__call__"]
    assert price.table.name == names[0]
    assert len(set(names)) == 4


def named(module: str, qualname: str) -> Callable[..., Any]:
    def function() -> None: ...

    function.__module__, function.__qualname__ = module, qualname
    return function


def test_names_that_the_wire_does_not_allow_are_told_apart_all_the_same() -> None:
    strange = ["prix_é", "prix_è", "x" * 300, "x" * 301, "a.<locals>.b", "a.-locals-.b"]
    names = [default_name(named("shop", name)) for name in strange]
    assert len(set(names)) == len(strange)
    for name in names:
        assert len(name) <= 120
        cached(name=name)(len_of)
    assert names[-1] == "shop.a.-locals-.b"


SCRIPT = """
from echomq_tasks import cached

@cached
def triple(x: int) -> int:
    return 3 * x

if __name__ == "__main__":
    print(triple.table.name, triple(2), triple.cache_info().stats.l2_hits, triple.cache_info().stats.skipped)
"""


def test_a_script_that_is_run_or_imported_has_one_table_and_a_session_shares_none(
    server: ServerProcess, tmp_path: Any
) -> None:
    server.flush()
    (tmp_path / "tripling.py").write_text(SCRIPT)
    package = str(os.path.dirname(os.path.dirname(sys.modules["echomq_tasks"].__file__ or "")))
    environment = {**os.environ, "EMQ_URL": server.url, "PYTHONPATH": os.pathsep.join([package, str(tmp_path)])}

    def python(*args: str) -> str:
        command = [sys.executable, *args]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=60
        ).stdout.strip()

    assert python("tripling.py") == "tripling.triple 6 0 0"
    assert python("-m", "tripling") == "tripling.triple 6 1 0"
    assert python("-c", "from tripling import triple; print(triple(2), triple.cache_info().stats.l2_hits)") == "6 1"
    assert python("-c", SCRIPT) == "__main__.triple 6 0 0"
    assert python("-c", SCRIPT) == "__main__.triple 6 0 0"


def test_a_function_made_in_another_one_shares_rows_with_nobody_unless_it_is_named(
    standalone: Connection, queue_name: str
) -> None:
    def make(factor: int, **options: Any) -> Any:
        @cached(connection=standalone, **options)
        def times(x: int) -> int:
            return factor * x

        return times

    assert (make(2)(1), make(3)(1)) == (2, 3)
    wire = Wire(standalone, queue_name)
    assert list(wire.client.scan_iter("ecc:*")) == []
    assert (make(2, name=queue_name)(1), make(3, name=queue_name)(1)) == (2, 2)
    assert make(2, l2=True)(1) == make(3, l2=True)(1) == 2


# Rows that others share.


def test_a_function_of_one_branded_id_shares_its_row_with_other_runtimes(
    connection: Connection, queue_name: str, calls: Calls
) -> None:
    @cached(name=queue_name, kind="USR", connection=connection)
    def user(id: str) -> dict[str, Any]:
        calls(id)
        return {"id": id, "name": "Ann"}

    row = f"ecc:{{{queue_name}}}:{USER}"
    client = connection.client
    assert user(USER) == {"id": USER, "name": "Ann"}
    frame = client.get(row)
    assert frame is not None
    assert frame[14:] == b'{"id":"%s","name":"Ann"}' % USER.encode()

    # As another runtime puts and drops it, under a version of its own.
    version = user.table.name and brand("USR", 2**62)
    client.set(row, f'{version}{{"name":"Bob"}}', px=60_000)
    client.publish(f"ecc:{{{queue_name}}}:coh", f"{USER}:{version}")
    eventually(lambda: user(USER) == {"name": "Bob"})
    assert calls.all == [(USER,)]


def test_two_functions_of_one_id_must_not_have_one_table(standalone: Connection, queue_name: str) -> None:
    options: dict[str, Any] = {"name": queue_name, "kind": "USR", "connection": standalone}

    def name_of(id: str) -> str:
        return "Ann"

    def age_of(id: str) -> int:
        return 7

    kept = cached(**options)(name_of)
    with pytest.raises(InvalidArgument, match=r"age_of\(\) and .*name_of\(\) would have the same rows"):
        cached(**options)(age_of)
    # Of two arguments, of another kind, in another table, on another server; and the same one again.
    cached(**options)(lambda id, other: 1)
    cached(**{**options, "kind": "ACC"})(age_of)
    cached(**{**options, "name": f"{queue_name}-2"})(age_of)
    cached(**{**options, "connection": None})(age_of)
    assert cached(**options)(name_of)(USER) == kept(USER) == "Ann"


def test_rows_by_digest_of_one_table_are_told_apart_by_their_functions(standalone: Connection, queue_name: str) -> None:
    @cached(name=queue_name, connection=standalone)
    def one(x: int) -> int:
        return x

    @cached(name=queue_name, connection=standalone)
    def two(x: int) -> int:
        return -x

    assert [one(1), two(1), one(1), two(1)] == [1, -1, 1, -1]


VERSIONS = """
from __future__ import annotations
from dataclasses import dataclass
from decimal import Decimal

@dataclass(frozen=True)
class Price:
    amount: {amount}
    {more}

def price(sku: str) -> Price:
    return Price({value})
"""


def version(name: str, **fields: str) -> ModuleType:
    """A module of one name, at one version of its code."""
    module = ModuleType(name)
    sys.modules[name] = module
    exec(VERSIONS.format(**fields), module.__dict__)
    return module


def test_two_versions_of_the_code_with_other_return_types_do_not_read_each_others_rows(
    connection: Connection, queue_name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pricing", ModuleType("pricing"))
    old = version("pricing", amount="int", more="", value="100")
    old_price = cached(name=queue_name, connection=connection)(old.price)
    assert old_price("a") == old.Price(100)
    new = version("pricing", amount="Decimal", more='currency: str = "EUR"', value="Decimal('1.00')")
    new_price = cached(name=queue_name, connection=connection)(new.price)
    with caplog.at_level(logging.WARNING, "echomq_tasks.cache"):
        found = [new_price("a"), new_price("a")]
    assert found == [new.Price(Decimal("1.00"), "EUR")] * 2
    assert type(found[0]) is new.Price
    assert new_price.cache_info().stats.loads == 1
    told = [record for record in caplog.records if "cannot be read" in record.message]
    assert len(told) == 1
    assert "another version of the code" in told[0].message
    # And back: a process of the old version finds the row of the new one.
    third = cached(name=queue_name, connection=connection)(old.price)
    assert third("a") == old.Price(100)


def test_a_return_type_may_be_defined_after_the_function(standalone: Connection, queue_name: str) -> None:
    @cached(name=queue_name, connection=standalone)
    def later() -> Later:
        return Later(3)

    assert later() == Later(3)
    assert type(later()) is Later
    assert cached(name=queue_name, connection=standalone)(later.__wrapped__)() == Later(3)
    assert later.table.stats().loads == 1


@dataclass(frozen=True)
class Later:
    x: int


# The server.


def test_without_a_connection_all_functions_share_the_default_one(
    server: ServerProcess, default_server: Callable[[str], None], calls: Calls, queue_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    server.flush()
    default_server(server.url)
    made: list[Connection] = []

    def make(config: Any) -> Connection:
        made.append(Connection(config))
        return made[-1]

    monkeypatch.setattr(reach, "Connection", make)

    def function(x: str) -> int:
        return calls(x)

    one, two = (cached(name=f"{queue_name}-{each}")(function) for each in range(2))
    other = cached(name=f"{queue_name}-0")(function)
    assert made == []
    assert [one("a"), two("a"), other("a")] == [1, 2, 1]
    (connection,) = made
    connection.close()


def test_a_server_that_is_away_at_first_changes_no_answer(
    own_server: ServerProcess, default_server: Callable[[str], None], calls: Calls, queue_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    default_server(own_server.url)
    own_server.stop()

    @cached(name=queue_name)
    def function(x: str) -> int:
        return calls(x)

    with caplog.at_level(logging.WARNING, "echomq_tasks.cache"):
        assert [function("a"), function("a"), function("b")] == [1, 1, 2]
        assert function.refresh("a") == 3
        assert not function.invalidate("a")
        assert function.put("a", 9) is False
        assert function("a") == 9
    assert function.cache_info().stats.away
    assert len([record for record in caplog.records if "goes on without" in record.message]) == 1
    own_server.start()
    eventually(lambda: not (function(f"probe {len(calls.all)}") and function.cache_info().stats.away))
    assert cached(name=queue_name)(function.__wrapped__)("a") > 3
    function.table.close()


def test_a_wrong_url_is_told_at_the_first_call(default_server: Callable[[str], None], queue_name: str) -> None:
    default_server("http://example.com")
    with pytest.raises(ConfigError, match="http"):
        cached(name=queue_name)(len_of)("a")


def test_one_load_among_many_threads(standalone: Connection, queue_name: str, calls: Calls) -> None:
    begun: list[str] = []
    go = threading.Event()

    @cached(name=queue_name, connection=standalone)
    def function(x: str) -> int:
        begun.append(x)
        assert go.wait(20)
        return calls(x)

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(function, "a") for _ in range(20)]
        eventually(lambda: begun)
        go.set()
        assert {each.result() for each in asked} == {1}
    assert calls.all == [("a",)]


def test_the_child_of_a_fork_caches_on(standalone: Connection, queue_name: str, calls: Calls) -> None:
    @cached(name=queue_name, connection=standalone)
    def function(x: str) -> int:
        return calls(x)

    assert function("a") == 1

    def child() -> list[Any]:
        return [function("a"), function("b"), function.invalidate("a"), function("a")]

    assert in_child(child) == [1, 2, True, 3]
    eventually(lambda: function("a") == 3)
    assert calls.all == [("a",)]


# What is refused when a function is decorated.


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ttl": -1}, InvalidArgument, "ttl"),
        ({"ttl": "60"}, InvalidArgument, "ttl"),
        ({"name": "a b"}, InvalidName, "the cache table"),
        ({"name": ""}, InvalidName, "the cache table"),
        ({"kind": "usr"}, InvalidId, "USR|three letters"),
        ({"kind": "TAG"}, InvalidId, "TAG"),
        ({"ignore": "x"}, InvalidArgument, "list of parameter names"),
        ({"ignore": ["y"]}, InvalidArgument, "no parameter 'y'"),
        ({"ignore": ["x"], "key": len}, InvalidArgument, "not both"),
        ({"key": 7}, InvalidArgument, "key="),
        ({"jitter": 1}, InvalidArgument, "jitter"),
        ({"refresh_ahead": 2}, InvalidArgument, "refresh_ahead"),
        ({"stale": -1}, InvalidArgument, "stale"),
        ({"max_entries": -1}, InvalidArgument, "max_entries"),
        ({"l1": 7}, InvalidArgument, "l1"),
        ({"coherence": "both"}, InvalidArgument, "coherence"),
        ({"coherence": "lane", "l2": False}, InvalidArgument, "lane"),
        ({"codec": "json"}, InvalidArgument, "codec"),
    ],
)
def test_a_wrong_option_is_refused_when_the_function_is_decorated(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        cached(**options)(len_of)


@pytest.mark.parametrize("given", [60, "price", functools.partial(len_of), dict, Calls()])
def test_only_functions_are_cached(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="cached takes a function"):
        cached(given)


def test_generators_are_refused() -> None:
    def generator() -> Any:
        yield 1

    async def agenerator() -> Any:
        yield 1

    for each in (generator, agenerator):
        with pytest.raises(InvalidArgument, match="return a list"):
            cached(each)
