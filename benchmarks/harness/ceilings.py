"""What the server and the connection could do at best: two bare scripts, which keep a row and its place in a queue."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable

from bare import Bare

from harness.contest import Figures
from harness.servers import Server

#: A row of a job and its place among those that wait; any number of jobs a call.
PUSH = """
for i = 1, #ARGV do
  redis.call('HSET', KEYS[1] .. ARGV[i], 'payload', '{"x":1,"y":2}')
  redis.call('ZADD', KEYS[1] .. 'pending', i, ARGV[i])
end
return #ARGV
"""
#: So many of them taken off, with their rows, in one call: the least that a claim and a completion must do.
TAKE = """
local taken = redis.call('ZPOPMIN', KEYS[1] .. 'pending', ARGV[1])
for i = 1, #taken, 2 do
  redis.call('HGET', KEYS[1] .. taken[i], 'payload')
  redis.call('UNLINK', KEYS[1] .. taken[i])
end
return #taken / 2
"""
BASE = "emq:{ceiling}:"
#: The server's own tool, where Debian's `redis-tools` or `valkey-tools` are installed.
TOOLS = ("valkey-benchmark", "redis-benchmark")


def ceilings(server: Server, jobs: int) -> tuple[dict[str, Figures], list[str]]:
    """Jobs a second of each way to call the scripts, and what could not be measured."""
    figures: dict[str, Figures] = {}
    missing = []
    tool = next((found for name in TOOLS if (found := shutil.which(name))), None)
    if tool is None:
        missing.append("the server's own benchmark tool: not installed (Debian has it in redis-tools and valkey-tools)")
    else:
        for clients, pipeline in ((1, 1), (8, 1), (50, 50)):
            figures[f"server's tool, {clients} clients, pipelined by {pipeline}"] = _by_tool(
                tool, server, jobs * (10 if pipeline > 1 else 1), clients, pipeline
            )
    connection = Bare(server.url)
    for name, pipeline, batch in (
        ("bare connection, one by one", 1, 1),
        ("bare connection, pipelined by 100", 100, 1),
        ("bare connection, 100 jobs a call", 1, 100),
    ):
        amount = jobs if pipeline * batch == 1 else jobs * 5
        figures[name] = {
            "enqueue jobs/s": _rate(server, amount, _pusher(connection, pipeline, batch), pipeline * batch),
            "drain jobs/s": _rate(server, amount, _taker(connection, pipeline, batch), pipeline * batch, keep=True),
        }
    server.clear()
    return figures, missing


def _by_tool(tool: str, server: Server, jobs: int, clients: int, pipeline: int) -> Figures:
    server.clear()
    rates = {}
    for name, script, argument in (("enqueue", PUSH, "__rand_int__"), ("drain", TAKE, "1")):
        sha = str(server.client.script_load(script))
        command = [tool, "-p", str(server.port), "-n", str(jobs), "-r", "1000000000", "-c", str(clients)]
        command += ["-P", str(pipeline), "--csv", "EVALSHA", sha, "1", BASE, argument]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        # Its last line: the command's name and the requests a second come first.
        rates[f"{name} jobs/s"] = float(done.stdout.strip().splitlines()[-1].replace('"', "").split(",")[-7])
    return rates


def _pusher(connection: Bare, pipeline: int, batch: int) -> Callable[[int], None]:
    sha = connection.run(("SCRIPT", "LOAD", PUSH))[0]

    def push(first: int) -> None:
        calls = range(first, first + pipeline * batch, batch)
        connection.run(*(("EVALSHA", sha, 1, BASE, *(f"job:{n + 10**9}" for n in range(c, c + batch))) for c in calls))

    return push


def _taker(connection: Bare, pipeline: int, batch: int) -> Callable[[int], None]:
    sha = connection.run(("SCRIPT", "LOAD", TAKE))[0]

    def take(first: int) -> None:
        connection.run(*[("EVALSHA", sha, 1, BASE, batch)] * pipeline)

    return take


def _rate(server: Server, jobs: int, step: Callable[[int], None], size: int, *, keep: bool = False) -> float:
    if not keep:
        server.clear()
    begin = time.perf_counter()
    for first in range(0, jobs, size):
        step(first)
    return jobs / (time.perf_counter() - begin)
