"""A small Dramatiq app: letters are written, then posted; posting fails now and then."""

from __future__ import annotations

import os

import dramatiq
from echomq_tasks.brokers.dramatiq import EchoMQBroker

broker = EchoMQBroker(url=os.environ["SERVER_URL"])
dramatiq.set_broker(broker)

posted: list[str] = []
failed: set[str] = set()


@dramatiq.actor
def write(name: str) -> str:
    return f"Dear {name}, thank you."


@dramatiq.actor(max_retries=3, min_backoff=50)
def post(letter: str) -> None:
    if "Grace" in letter and letter not in failed:
        failed.add(letter)
        raise ConnectionError("the letter box is full")
    posted.append(letter)


def main() -> None:
    names = ["Ada", "Grace", "Edsger"]
    dramatiq.group([write.message(name) | post.message() for name in names]).run()
    post.send_with_options(args=("Dear reader, this came a little later.",), delay=200)

    worker = dramatiq.Worker(broker, worker_timeout=100)
    worker.start()
    broker.join("default", timeout=20_000)
    worker.stop()
    for letter in sorted(posted):
        print(letter)
    print(f"{len(posted)} letters posted, {len(failed)} at the second try")


if __name__ == "__main__":
    main()
