"""The ``echomq`` command over a connection that loses requests and replies: one line, and the same command goes on."""

from __future__ import annotations

import pytest
from support.proxy import DroppingProxy
from support.shell import Shell, message, stock
from wire.handwriting import Wire

from echomq_tasks.connection import Connection
from echomq_tasks.queue import Queue
from echomq_tasks.scripts import load_scripts

FOR_GOOD = 10


@pytest.fixture
def queue(standalone: Connection, queue_name: str) -> Queue:
    """The queue, past the proxy."""
    return Queue(queue_name, standalone)


@pytest.fixture
def faulty(proxy: DroppingProxy, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The command, through the proxy."""
    return Shell(proxy.url, capsys)


def sha(script: str) -> bytes:
    return load_scripts()[script].sha.encode()


@pytest.mark.parametrize("loses", ["request", "reply"])
@pytest.mark.parametrize(
    ("command", "script"),
    [
        ("pause {q}", "queue_pause"),
        ("limits {q} --rate 5", "queue_rate"),
        ("drain {q} --yes", "queue_drain"),
        ("dead {q} --purge --yes", "job_remove"),
        ("dead {q} --retry --yes", "job_reprocess"),
        ("dead {q} --json", "job_get"),
        ("obliterate {q} --force --yes", "queue_obliterate"),
        ("repeats {q} --cancel nightly", "repeat_cancel"),
        ("metrics {q}", "queue_metrics"),
    ],
)
def test_a_connection_that_stays_away_is_one_line_and_the_same_command_goes_on(
    faulty: Shell, queue: Queue, proxy: DroppingProxy, loses: str, command: str, script: str
) -> None:
    stock(queue)
    if "obliterate" in command:
        queue.pause()
    lose = proxy.drop_request if loses == "request" else proxy.drop_reply
    lose(sha(script), times=FOR_GOOD)
    words = command.format(q=queue.name).split()
    said = faulty(*words)
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert line.startswith("echomq: ")
    assert proxy.url.rpartition(":")[2].split("/")[0] in line
    proxy.clear()
    again = faulty(*words)
    # What came through although its reply did not is done already.
    assert again.code == 0 or (loses == "reply" and script == "repeat_cancel")


@pytest.mark.parametrize("loses", ["request", "reply"])
def test_a_purge_that_broke_off_lost_nothing_but_the_dead(
    faulty: Shell, queue: Queue, proxy: DroppingProxy, standalone: Connection, loses: str
) -> None:
    queue.enqueue_many([message("mail", number) for number in range(450)])
    while claimed := queue.claim(200):
        for job in claimed:
            queue.retry(job, "E", max_retries=0)
    kept = queue.enqueue("kept").id
    dead = [job.id for job in queue.dead()]
    # In the middle of the second of three pages.
    (proxy.drop_request if loses == "request" else proxy.drop_reply)(dead[300].encode(), times=FOR_GOOD)
    wire = Wire(standalone, queue.name)
    assert faulty("dead", queue.name, "--purge", "--yes").code == 1
    proxy.clear()
    assert faulty("dead", queue.name, "--purge", "--yes").code == 0
    assert queue.counts().dead == 0
    assert [suffix for suffix in wire.keys() if suffix.startswith("job:")] == [f"job:{kept}"]
