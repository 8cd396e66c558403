"""Looking for a reply before sleeping: while it pays, and not once it does not."""

from __future__ import annotations

import os
import threading

import pytest

from echomq_tasks.scripts.wire import Looks


@pytest.fixture(autouse=True)
def _two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setattr(threading, "active_count", lambda: 1)


def test_among_many_threads_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks()
    monkeypatch.setattr(threading, "active_count", lambda: 9)
    assert looks.allowed() == 0
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert looks.allowed() > 0


def test_a_server_that_answers_at_once_is_looked_at() -> None:
    looks = Looks()
    for _ in range(100):
        assert looks.allowed() > 0
        looks.hit()


def test_a_server_that_is_far_away_is_waited_for_and_tried_again_now_and_then() -> None:
    looks = Looks()
    tried = 0
    for _ in range(5_000):
        if looks.allowed():
            tried += 1
            looks.miss()
    assert 16 < tried < 40


def test_one_quick_answer_brings_looking_back() -> None:
    looks = Looks()
    for _ in range(100):
        if looks.allowed():
            looks.miss()
    while not looks.allowed():
        pass
    looks.hit()
    assert looks.allowed() > 0


def test_with_one_processor_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert Looks().allowed() == 0
