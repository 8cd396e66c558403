"""What becomes of ends whose verdicts are in, whatever goes wrong with one of them."""

from __future__ import annotations

import logging
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from echomq_tasks.errors import EchoMQError, InvalidArgument, ServerUnavailable
from echomq_tasks.queue import Job, Retry, Verdict
from echomq_tasks.queue.turns import Answered
from echomq_tasks.worker import ends as module
from echomq_tasks.worker.asking import Ask
from echomq_tasks.worker.ends import Ends


class Broken(Exception):
    """What a hook of the user's raises."""


def end(number: int) -> Retry:
    return Retry(Job(f"JOB{number:011d}", b"{}", 1))


@pytest.fixture
def line() -> Any:
    return SimpleNamespace(queue=None, queue_name="q", unsettled=deque(), refused=deque(), stuck=False)


def hear(line: Any, ends: list[Retry], verdicts: list[Verdict | EchoMQError], broken: Retry) -> None:
    """Hear these, with a hook that breaks at the verdict on one of them."""

    def refused(queue: Any, told: Retry, verdict: Verdict) -> None:
        if told is broken:
            raise Broken

    broker: Any = SimpleNamespace(signalling=SimpleNamespace(refused=refused))
    ask = Ask(line, [], list(ends), 0, 0, ())
    Ends(broker, logging.getLogger(__name__)).hear(ask, verdicts)


def test_ends_that_spoilt_their_call_are_told_again_when_hearing_of_a_later_one_breaks(line: Any) -> None:
    spoilt, failed, broken, left = ends = [end(number) for number in range(4)]
    verdicts = [InvalidArgument("no"), ServerUnavailable("away"), Verdict.OK, Verdict.OK]
    with pytest.raises(Broken):
        hear(line, ends, verdicts, broken)
    assert [*line.refused] == [failed, spoilt, left]


def test_ends_that_are_told_singly_are_told_again_when_hearing_of_another_one_breaks(
    line: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoilt, broken, left = ends = [end(number) for number in range(3)]

    def turn_all(asked: Any) -> list[Answered]:
        singly = iter([InvalidArgument("no"), Verdict.OK, Verdict.OK])
        return [Answered([next(singly)], None) for _ in asked]  # type: ignore[arg-type]

    monkeypatch.setattr(module, "turn_all", turn_all)
    with pytest.raises(Broken):
        hear(line, ends, [InvalidArgument("no")] * 3, broken)
    assert [*line.refused] == [spoilt, left]
