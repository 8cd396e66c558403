"""Workers and the server die while flows run over two queues: every parent runs once per claim, on all its results."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from chaos.crew import PATIENCE, Processes, watching
from support.eventually import eventually
from support.servers import ServerProcess

from echomq_tasks.queue import Flow, NewJob, Queue

pytestmark = pytest.mark.chaos

POINTS = ("outbox_read", "outbox_trim")
#: What the actors of :mod:`chaos.flow_shift` come to.
MIDDLE, TOP = [1, 2], [3, 10, 20]


class Crew(Processes):
    """Worker processes that run flows; one that ended is replaced."""

    def hire(self) -> None:
        self.start("-m", "chaos.flow_shift", str(self.threads))

    def replace_the_dead(self) -> int:
        """Answers how many had ended, all of them by SIGKILL."""
        dead = [process for process in self.running.values() if process.poll() is not None]
        for process in dead:
            assert self.wait(process) == -9
            self.hire()
        return len(dead)

    def replace_one(self, chance: random.Random) -> None:
        self.kill(chance.choice(sorted(self.running)))
        self.hire()


@pytest.fixture
def crew(own_server: ServerProcess, queue_name: str) -> Iterator[Crew]:
    with_two = Crew(own_server.url, queue_name, lease=1.0, threads=4)
    yield with_two
    with_two.close()


@pytest.fixture
def tops(own_server: ServerProcess, queue_name: str) -> Iterator[Queue]:
    """The queue of the uppermost parents, over a connection that no fault but the server's own death touches."""
    with watching(own_server.url, queue_name) as queue:
        yield queue


@pytest.fixture
def kids(tops: Queue) -> Queue:
    return Queue(f"{tops.name}.kids", tops.connection)


def message(actor: str, *args: Any) -> NewJob:
    return NewJob(json.dumps({"actor_name": actor, "args": args}))


def tree(tops: Queue, kids: Queue, number: int, seconds: float) -> Flow:
    """A parent with children in both queues, one of them a parent itself, with children in both too."""

    def near(value: int) -> Flow:
        return Flow(message("near", value, seconds), queue=tops.name)

    def leaf(value: int) -> Flow:
        return Flow(message("leaf", value, seconds), queue=kids.name)

    middle = Flow(message("middle", f"middle {number}"), [near(1), leaf(2)], queue=kids.name)
    return Flow(message("top", f"top {number}"), [middle, near(10), leaf(20)], queue=tops.name)


def client(server: ServerProcess) -> redis.Redis:
    return server.client()


def runs(server: ServerProcess, queue_name: str) -> list[tuple[str, str, int, list[int]]]:
    lines = client(server).lrange(f"chaos:{queue_name}:runs", 0, -1)
    return [(tag, job, token, results) for tag, job, token, results in map(json.loads, lines)]


def ran(server: ServerProcess, queue_name: str) -> int:
    """How many uppermost parents have run."""
    return len({tag for tag, *_ in runs(server, queue_name) if tag.startswith("top")})


def nothing_is_left(tops: Queue, kids: Queue) -> bool:
    client = tops.connection.client
    return not list(client.scan_iter(f"emq:{{{tops.name}*job:*", count=1000)) and not any(
        client.exists(queue.base + b"flow:outbox") for queue in (tops, kids)
    )


def check(server: ServerProcess, tops: Queue, kids: Queue, flows: int) -> None:
    """Every parent ran, each claim of it once, with all that its children returned; nothing is left."""
    eventually(lambda: nothing_is_left(tops, kids), PATIENCE, "all flows ended, and no outbox entry is left")
    lines = runs(server, tops.name)
    tags = [f"{kind} {number}" for kind in ("top", "middle") for number in range(flows)]
    assert {tag for tag, *_ in lines} == set(tags)
    for tag, _, token, results in lines:
        assert token >= 1
        assert results == (TOP if tag.startswith("top") else MIDDLE), tag
    claims = Counter((job, token) for _, job, token, _ in lines)
    assert set(claims.values()) == {1}
    assert len({job for _, job, _, _ in lines}) == len(tags)
    for queue in (tops, kids):
        counts = queue.counts()
        assert (counts.unfinished, counts.dead, counts.failed, counts.completed) == (0, 0, 0, 3 * flows)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_parent_runs_on_all_its_results_whatever_dies(
    own_server: ServerProcess, crew: Crew, tops: Queue, kids: Queue
) -> None:
    chance = random.Random(20261129)
    flows = 120
    tops.add_flows([tree(tops, kids, number, 0.01) for number in range(flows)])
    for _ in range(2):
        crew.hire()
    crashes = kills = 0
    plan = ["outbox_read", "kill", "outbox_trim", "server", "outbox_trim", "kill", "outbox_read", "server", "kill"]
    for step, fault in enumerate(plan, 1):
        eventually(lambda step=step: ran(own_server, tops.name) >= step * flows // 15, PATIENCE)
        if fault == "kill":
            crew.replace_one(chance)
            kills += 1
        elif fault == "server":
            own_server.kill()
            own_server.start()
        else:
            client(own_server).rpush(f"chaos:{tops.name}:crash:{fault}", 1)
            crashes += eventually(crew.replace_the_dead, PATIENCE, f"a worker died before {fault}")
    assert ran(own_server, tops.name) < flows, "the faults came while there was work"
    assert (crashes, kills) == (4, 3)
    with watching(own_server.url, tops.name) as fresh:
        check(own_server, fresh, Queue(kids.name, fresh.connection), flows)


@pytest.mark.parametrize("point", POINTS)
def test_two_parents_whose_facts_die_at_one_point_both_run_once(
    own_server: ServerProcess, crew: Crew, tops: Queue, kids: Queue, point: str
) -> None:
    # The facts of both lie in one outbox when the worker that tells of them dies there, again and again.
    client(own_server).rpush(f"chaos:{tops.name}:crash:{point}", 1, 1, 1)
    tops.add_flows([tree(tops, kids, number, 0.0) for number in range(2)])
    crew.hire()
    for _ in range(3):
        eventually(crew.replace_the_dead, PATIENCE, f"the worker died before {point}")
    check(own_server, tops, kids, 2)
