"""What a worker process imports, which broker it finds, and what it says when it finds none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from dramatiq import Middleware
from dramatiq.brokers.stub import StubBroker

from echomq_tasks.brokers.dramatiq import EchoMQBroker
from echomq_tasks.worker.loading import (
    CANNOT_CONNECT,
    CANNOT_LOAD,
    LoadingFailed,
    check_functions,
    extend_path,
    function_named,
    load,
    other_brokers,
)

ACTORS = "from echomq_tasks import actor\n\n@actor\ndef act():\n    pass\n"
OWN = "from echomq_tasks.brokers.dramatiq import EchoMQBroker\nown = EchoMQBroker()\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Write a module that can be imported; nothing of it stays, and no broker is set."""
    monkeypatch.setattr(dramatiq.broker, "global_broker", None)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name: str, text: str) -> None:
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(text)
        # Undone at the end, whatever was imported meanwhile.
        monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
        del sys.modules[name]

    return write


def test_the_broker_is_the_global_one_or_the_one_that_is_named(write: Callable[[str, str], None]) -> None:
    write("app_a", OWN + ACTORS + "class Config:\n    broker = own\n")
    assert load("app_a", []) is dramatiq.broker.global_broker
    named = load("app_a:own", [])
    assert isinstance(named, EchoMQBroker)
    assert named is not dramatiq.broker.global_broker
    assert load("app_a:Config.broker", []) is named


def test_a_function_in_place_of_the_broker_is_called(write: Callable[[str, str], None]) -> None:
    write("app_b", OWN + "import dramatiq\ndef setup():\n    dramatiq.set_broker(own)\ndef idle():\n    pass\n")
    with pytest.raises(LoadingFailed, match=r"app_b:idle\(\) has set no broker"):
        load("app_b:idle", [])
    assert load("app_b:setup", []) is dramatiq.broker.global_broker is not None


def test_boot_hooks_run_between_the_first_module_and_the_others(write: Callable[[str, str], None]) -> None:
    steps: list[str] = []

    class Noting(Middleware):
        def after_process_boot(self, broker: Any) -> None:
            steps.append("booted")

    broker: Any = EchoMQBroker(middleware=[Noting()])
    broker.steps = steps
    dramatiq.set_broker(broker)
    for name in ("app_c", "app_d"):
        write(name, f"import dramatiq\ndramatiq.get_broker().steps.append({name!r})\n")
    load("app_c", ["app_d"])
    assert steps == ["app_c", "booted", "app_d"]


def test_the_broker_may_be_set_by_a_later_module(write: Callable[[str, str], None]) -> None:
    write("app_e", "x = 1")
    write("app_f", ACTORS)
    assert "act" in load("app_e", ["app_f"]).actors


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("1 / 0", "wrong", "the module 'wrong' cannot be imported"),
        ("import no_such_thing", "wrong", "the module 'wrong' cannot be imported"),
        ("raise SystemExit(7)", "wrong", "the module 'wrong' cannot be imported"),
        ("def f(:", "wrong", "the module 'wrong' cannot be imported"),
        ("def f():\n    1 / 0", "wrong:f", r"wrong:f\(\) failed"),
        (ACTORS, "wrong.nowhere", "is 'wrong.nowhere' spelled as for import"),
        (ACTORS, "wrong:missing", "the module 'wrong' has no 'missing'"),
        (ACTORS, "wrong:act", "wrong:act is an actor, .*: write wrong to run the actors of this module"),
        (OWN + "two = EchoMQBroker()", "wrong", "2 brokers.*: `echomq worker wrong:own` and `echomq worker wrong:two`"),
        ("VERSION = 1", "wrong:VERSION", "wrong:VERSION is of type int: neither a broker nor a function"),
        ("x = 1", "wrong", "wrong: no actor, and no broker"),
        (OWN, "wrong", r"write wrong:own, or dramatiq.set_broker\(own\)"),
    ],
)
def test_what_cannot_be_loaded_is_told(write: Callable[[str, str], None], text: str, name: str, said: str) -> None:
    write("wrong", text)
    with pytest.raises(LoadingFailed, match=said) as failed:
        load(name, [])
    assert failed.value.code == CANNOT_LOAD
    *above, _ = failed.value.text.split("\n")
    # The traceback is the module's own, from its first line on.
    assert bool(above) == ("cannot be imported" in said or "failed" in said)
    assert "importlib" not in failed.value.text
    assert "echomq_tasks" not in "".join(above)


def test_a_broker_of_another_kind_is_for_dramatiqs_worker(write: Callable[[str, str], None]) -> None:
    write("app_g", "x = 1")
    dramatiq.set_broker(StubBroker())
    with pytest.raises(LoadingFailed, match=r"app_g has a StubBroker.*run it with `dramatiq app_g`"):
        load("app_g", [])


def test_a_server_that_a_module_cannot_do_without_is_an_exit_code_of_its_own(write: Callable[[str, str], None]) -> None:
    write("app_h", "import dramatiq\nraise dramatiq.BrokerConnectionError('refused')")
    with pytest.raises(LoadingFailed, match="'app_h' needs the server while it is imported: refused") as failed:
        load("app_h", [])
    assert failed.value.code == CANNOT_CONNECT


def test_a_function_is_found_by_its_module_and_name(write: Callable[[str, str], None]) -> None:
    write("app_i", "class A:\n    @staticmethod\n    def f():\n        return 7\n")
    assert function_named("app_i:A.f")() == 7
    with pytest.raises(LoadingFailed, match="the module 'app_i' has no 'g'"):
        function_named("app_i:g")
    with pytest.raises(LoadingFailed, match=r"app_i:A\.__name__ is of type str, and no function"):
        function_named("app_i:A.__name__")


def test_functions_are_looked_for_in_what_is_imported_and_nothing_is_imported_for_it(
    write: Callable[[str, str], None],
) -> None:
    write("app_j", "def f():\n    pass\n")
    check_functions(["app_j:nope"])
    assert "app_j" not in sys.modules
    assert callable(function_named("app_j:f"))
    check_functions(["app_j:f"])
    with pytest.raises(LoadingFailed, match="the module 'app_j' has no 'nope'"):
        check_functions(["app_j:nope"])


def test_an_actor_in_place_of_the_broker_is_not_called(write: Callable[[str, str], None]) -> None:
    write("app_k", ACTORS.replace("pass", "calls.append(1)") + "calls = []\n")
    with pytest.raises(LoadingFailed):
        load("app_k:act", [])
    assert sys.modules["app_k"].calls == []


SEVERAL = (
    OWN
    + ACTORS
    + "@actor(broker=own)\ndef fetch():\n    pass\n\n"
    + "@actor(broker=EchoMQBroker())\ndef lost():\n    pass\n\nidle = EchoMQBroker()\n"
)


def test_other_brokers_with_actors_are_found_unless_one_was_chosen(write: Callable[[str, str], None]) -> None:
    write("app_l", SEVERAL)
    served = load("app_l", [])
    assert other_brokers(served, "app_l") == [("app_l:own", True, ["fetch"]), (None, True, ["lost"])]
    assert other_brokers(load("app_l:own", []), "app_l:own") == []
    # Found from another module, too, and named by the place in one that was named.
    write("app_m", "from app_l import own as ours, act\n")
    load("app_m", [])
    found = [name for name, _, _ in other_brokers(served, "app_m")]
    assert found == ["app_m:ours", None]


class Elusive:
    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("asked outside of a request")


def test_a_proxy_in_a_module_is_not_asked_for_its_class(write: Callable[[str, str], None]) -> None:
    write("app_n", ACTORS)
    served = load("app_n", [])
    sys.modules["app_n"].__dict__["request"] = Elusive()
    assert other_brokers(served, "app_n") == []


@pytest.mark.parametrize(("set_by", "blamed"), [("environment", 0), ("module", 1)])
def test_a_wrong_url_of_the_environment_is_told_without_a_traceback(
    write: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch, set_by: str, blamed: int
) -> None:
    monkeypatch.setenv("EMQ_URL", "http://x" if set_by == "environment" else "valkey://127.0.0.1")
    write("app_o", ACTORS if set_by == "environment" else OWN.replace("()", "('http://x')"))
    with pytest.raises(LoadingFailed, match="unknown URL scheme 'http'") as failed:
        load("app_o", [])
    assert failed.value.code == CANNOT_LOAD
    assert ("Traceback" in failed.value.text) == bool(blamed)
    assert ("EMQ_URL" in failed.value.text) == (not blamed)


def test_the_path_that_is_named_last_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["before"])
    extend_path([".", "one", "two"])
    assert sys.path == ["two", "one", ".", "before"]
