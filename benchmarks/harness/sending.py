"""How fast jobs are sent, one by one and in bulk, and what a waiting one takes of the server's memory."""

from __future__ import annotations

from harness.contest import Contestant, Figures
from harness.processes import PeerProcess

#: The longest field of a row that is kept compact, in bytes, and what we advise.
COMPACT, ADVISED = "hash-max-listpack-value", "1024"


def enqueue(contestant: Contestant) -> Figures:
    """Send from one process, to a queue that nobody works off."""
    server = contestant.server
    server.clear()
    with contestant.client() as client:
        # Has the server load scripts, which would be counted as memory of the jobs.
        _warm_up(client)
    server.clear()
    memory = server.memory()
    with contestant.client() as client:
        _warm_up(client)
        one = _sent(contestant, client, contestant.jobs("send_pace", contestant.scale.seconds * 0.7), many=False)
        # A burst of bulk is over too soon to be timed, so there are more of them.
        many = contestant.jobs("send_pace", contestant.scale.seconds * (3 if contestant.about["bulk"] else 0.7))
        bulk = _sent(contestant, client, max(many, 1000), many=True)
    # Its connections are gone with the client, of which some have a hundred.
    figures = {"bytes": (server.memory() - memory) / max(server.left(contestant.about["left"]), 1)}
    figures |= {f"one {name}": value for name, value in one.items()}
    return figures | {f"bulk {name}": value for name, value in bulk.items()}


def memory(contestant: Contestant) -> Figures:
    """What a waiting job takes: with a short name and with a longer one, at the server's defaults and as advised.

    A server keeps a row compact as long as no field of it is longer than a setting says, 64 bytes by default.
    """
    server = contestant.server
    figures: Figures = {}
    default = server.setting(COMPACT)
    try:
        for job, kind in (("nothing", "short"), ("nothing_under_a_name_of_some_length", "long")):
            for setting, words in ((default, "by default"), (ADVISED, "as advised")):
                server.set(COMPACT, setting)
                figures[f"{kind} {words}"] = _bytes(contestant, job)
    finally:
        server.set(COMPACT, default)
    return figures


def _bytes(contestant: Contestant, job: str) -> float:
    server = contestant.server
    server.clear()
    with contestant.client() as client:
        _warm_up(client)
    server.clear()
    before = server.memory()
    with contestant.client() as client:
        client.order(do="send", job=job, jobs=contestant.jobs("send_pace"), many=True)
    return (server.memory() - before) / max(server.left(contestant.about["left"]), 1)


def _warm_up(client: PeerProcess) -> None:
    for many in (False, True):
        client.order(do="send", job="nothing", jobs=50, many=many)


def _sent(contestant: Contestant, client: PeerProcess, jobs: int, many: bool) -> Figures:
    server = contestant.server
    before, (server_cpu, commands) = server.left(contestant.about["left"]), server.used()
    took = client.order(do="send", job="nothing", jobs=jobs, many=many)
    used, ran = server.used()
    if (sent := server.left(contestant.about["left"]) - before) != jobs:
        contestant.fault(f"sent {jobs} jobs, of which {sent} are on the server")
    return {
        "jobs/s": jobs / took["seconds"],
        "client us": took["cpu"] / jobs * 1e6,
        "server us": (used - server_cpu) / jobs * 1e6,
        "server commands": (ran - commands) / jobs,
    }
