"""Every script runs as a user who may touch the keys of one queue, or the node leases, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from script_cases import ABSENT, CASES, DUE, FLAT, IN_LANE, WAITING, WAITING_IN_LANE, fill, key_of
from support.servers import ServerProcess
from wire.handwriting import Wire, text

from echomq_tasks.connection import Connection, connect
from echomq_tasks.scripts.loader import load_scripts

PASSWORD = "only-this-queue"
RIGHTS = ["-@all", "+@read", "+@write", "+@scripting", "+time", "+publish", "-@dangerous"]


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose users these tests may set up."""
    with ServerProcess(tmp_path_factory.mktemp("private")) as process:
        yield process


@pytest.fixture
def admin(private: ServerProcess) -> Iterator[Connection]:
    private.flush()
    with connect(private.url) as opened:
        yield opened


def limited(server: ServerProcess, key: str) -> redis.Redis:
    """A client that may touch what begins with ``key`` and run scripts."""
    server.client().acl_setuser(
        "limited",
        enabled=True,
        reset=True,
        passwords=["+" + PASSWORD],
        keys=[key + "*"],
        channels=[key + "*"],
        commands=RIGHTS,
    )
    return redis.Redis(port=server.port, username="limited", password=PASSWORD)


def test_every_script_has_its_case() -> None:
    assert set(CASES) == set(load_scripts())


@pytest.mark.parametrize("name", CASES)
def test_a_script_needs_no_key_beyond_its_prefix(
    name: str, admin: Connection, private: ServerProcess, queue_name: str
) -> None:
    wire = Wire(admin, queue_name)
    fill(wire)
    key = key_of(name, wire)
    with limited(private, key) as client:
        reply = text(client.eval(load_scripts()[name].text, 1, key, *CASES[name].args))
    if CASES[name].reply is not None:
        assert reply == CASES[name].reply
    elif name == "job_claim":
        # The lane is at its limit, so its job stays; the due one is promoted and claimed.
        assert [entry[0] for entry in reply[1:]] == [WAITING, DUE]
        assert wire.ids(f"g:{wire.row(WAITING_IN_LANE)['group']}:pending") == [WAITING_IN_LANE]
    else:
        assert name == "job_get"
        assert reply[0][0] == "active"
        assert reply[0][reply[0].index("payload") + 1] == "p"
        assert reply[1] == []


def test_the_same_user_cannot_reach_another_queue(admin: Connection, private: ServerProcess, queue_name: str) -> None:
    wire = Wire(admin, queue_name)
    fill(wire)
    before = wire.dumps()
    with limited(private, "emq:{another}:") as client:
        for name, case in CASES.items():
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.eval(load_scripts()[name].text, 1, key_of(name, wire), *case.args)
    assert wire.dumps() == before


def test_a_flow_job_settled_by_that_user_stays_on_its_own_slot(
    admin: Connection, private: ServerProcess, queue_name: str
) -> None:
    wire = Wire(admin, queue_name)
    fill(wire)
    with limited(private, wire.base) as client:
        client.eval(load_scripts()["job_complete"].text, 1, wire.base, *CASES["job_complete"].args)
    assert len(wire.read("flow:outbox")) == 1
    others = [key for key in admin.client.scan_iter() if not key.startswith(wire.base.encode())]
    assert [key for key in others if not key.startswith(b"{emq}:")] == []
    assert (wire.row(FLAT), wire.row(IN_LANE), wire.row(ABSENT)) == ({}, {}, {})
