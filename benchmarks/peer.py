"""A process of one queue, in the queue's environment, run by the harness.

It speaks lines of JSON: a client takes orders and answers each; a worker says that it is ready, and works once told to.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from typing import IO, Any

from peers import base
from peers.tally import Tally


def main() -> None:
    """Do what the command line says."""
    place = json.loads(sys.argv[1])
    # What libraries print must not get between the lines of JSON.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    adapter: type[base.Adapter] = importlib.import_module(f"peers.{place['peer']}").Peer
    if place["role"] == "about":
        tell(out, about(adapter))
        return
    if place["role"] == "worker":
        base.use(Tally(place["tally"], place["slot"]))
    peer = adapter(place["url"], place["variant"], place["concurrency"])
    if place["two_queues"]:
        peer.open_second_queue()
    if place["role"] == "client":
        serve(peer, out)
    else:
        tell(out, {"ready": True})
        if not sys.stdin.readline():
            return
        threading.Thread(target=leave_with_harness, daemon=True).start()
        peer.work()


def about(adapter: type[base.Adapter]) -> dict[str, Any]:
    """What the adapter tells about the queue."""
    names = ("variants", "senders", "pace", "send_pace", "left", "probes", "note", "bulk", "two_queues")
    return {"version": adapter.version()} | {name: getattr(adapter, name) for name in names}


def serve(peer: base.Adapter, out: IO[str]) -> None:
    """Carry out the orders of the harness; times are taken here, where no pipe is in between."""
    tell(out, {"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        seconds, cpu = time.perf_counter(), time.process_time()
        if order["do"] == "clock":
            peer.send_clock()
        elif order["do"] == "aside":
            peer.send_aside()
        elif order["many"]:
            peer.send_many(order["job"], order["jobs"])
        else:
            peer.send(order["job"], order["jobs"])
        tell(out, {"seconds": time.perf_counter() - seconds, "cpu": time.process_time() - cpu})
    os._exit(0)


def leave_with_harness() -> None:
    """End this process when the harness closes its side, however long the worker would take to stop."""
    sys.stdin.read()
    os._exit(0)


def tell(out: IO[str], answer: dict[str, Any]) -> None:
    """Send a line to the harness."""
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
