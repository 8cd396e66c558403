"""Live events over TLS, whose bytes come in other portions than the socket's."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.live import LONG, event, gap, kill_listeners, publish
from support.servers import ServerProcess

from echomq_tasks.bus import Bus, Event
from echomq_tasks.connection import connect


async def serve(context: ssl.SSLContext, upstream: int, started: asyncio.Future[int], ended: asyncio.Event) -> None:
    """Speak TLS in front of a plain server."""
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        onward = await asyncio.open_connection("127.0.0.1", upstream)
        writers.append(onward[1])
        await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))

    async with await asyncio.start_server(pass_on, "127.0.0.1", 0, ssl=context) as listener:
        started.set_result(listener.sockets[0].getsockname()[1])
        await ended.wait()
        # At once: a farewell in TLS would wait for the peer's. What is open when the loop ends fails some other test.
        for each in writers:
            each.transport.abort()
        await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})


@pytest.fixture
def url(server: ServerProcess, tmp_path: Path) -> Iterator[str]:
    server.flush()
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -keyout"
    subprocess.run([*command.split(), key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    loop = asyncio.new_event_loop()
    started: asyncio.Future[int] = loop.create_future()
    ended = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(context, server.port, started, ended),))
    thread.start()
    port = asyncio.run_coroutine_threadsafe(asyncio.wait_for(started, LONG), loop).result(LONG)
    yield f"valkeys://127.0.0.1:{port}?ssl_cert_reqs=none&ssl_check_hostname=false"
    loop.call_soon_threadsafe(ended.set)
    thread.join()
    loop.close()


def test_large_and_many_events_and_a_broken_connection_over_tls(
    url: str, server: ServerProcess, queue_name: str
) -> None:
    queues = [f"{queue_name}-{number}" for number in range(500)]
    with connect(url) as connection, connect(server.url) as direct, Bus(connection).subscribe(*queues) as events:
        text = "0123456789" * 200_000
        for number in range(3):
            publish(direct, queues[number], json.dumps({"event": "large", "text": text}))
            assert event(events) == Event("large", queues[number], more={"text": text})
            pipe = direct.client.pipeline(transaction=False)
            for small in range(300):
                pipe.publish(f"emq:{{{queues[7]}}}:events", json.dumps({"event": str(small)}))
            pipe.execute()
            assert [event(events).event for _ in range(300)] == [str(small) for small in range(300)]
        kill_listeners(direct)
        assert gap(events).queues == tuple(sorted(queues))
        publish(direct, queues[499], '{"event":"x"}')
        assert event(events) == Event("x", queues[499])
        assert events.get(0.05) is None
