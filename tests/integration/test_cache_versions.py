"""What the server knows of a row or a tag never becomes older, whatever is sent again, and whatever clocks say."""

from __future__ import annotations

import pytest
from support.tables import FAR, MINUTE, OLD, A, B, Rows

from echomq_tasks.cache.claims import Lead
from echomq_tasks.cache.frames import newer
from echomq_tasks.cache.store import Store
from echomq_tasks.connection import Connection


@pytest.fixture
def store(standalone: Connection, queue_name: str) -> Store:
    return Store(queue_name, "USR", standalone)


@pytest.fixture
def rows(standalone: Connection, queue_name: str) -> Rows:
    return Rows(standalone, queue_name)


def lead(store: Store, row_id: str, *tags: str) -> str:
    verdict = store.claim(row_id, "me", MINUTE, tags)
    assert isinstance(verdict, Lead)
    return verdict.version


def test_a_drop_that_is_sent_again_drops_what_has_come_since(store: Store, rows: Rows) -> None:
    version = store.drop(A)
    rows.write(A, FAR + "v")
    assert newer(store.drop(A, version), FAR)
    assert store.peek(A) is None
    version = store.drop(B)
    flying = lead(store, B)
    assert newer(store.drop(B, version), flying)
    assert not store.fill(B, "me", flying, b"stale", MINUTE, led=True)


def test_a_message_that_comes_late_does_not_make_a_drop_older(store: Store, rows: Rows) -> None:
    dropped = store.drop(A)
    store.apply(A, OLD)
    assert rows.read(f"{A}:dropped") == dropped


def test_a_tag_or_a_row_that_is_dropped_again_by_a_clock_that_is_behind_is_dropped_above_the_last_time(
    store: Store,
) -> None:
    store.put(A, FAR, b"v", MINUTE, ["t"])
    tag, row = store.drop_tag("t", OLD), store.drop(A, OLD)
    assert newer(tag, FAR)
    assert newer(store.drop_tag("t", OLD), tag)
    assert newer(store.drop(A, OLD), row)


def test_a_tag_is_dropped_above_all_of_its_rows_also_when_the_last_one_is_older(store: Store) -> None:
    store.put(A, FAR, b"v", MINUTE, ["t"])
    store.put(B, OLD, b"v", MINUTE, ["t"])
    assert newer(store.drop_tag("t", OLD), FAR)
    assert store.peek(A, ["t"]) is None


def test_a_row_is_put_above_its_tags(store: Store) -> None:
    store.put(B, FAR, b"v", MINUTE, ["t"])
    store.drop_tag("t")
    store.put(A, OLD, b"v", MINUTE, ["t"])
    assert store.peek(A, ["t"]) is not None


def test_a_leader_who_asks_again_leads_above_a_tag_that_was_dropped_meanwhile(store: Store) -> None:
    lead(store, A, "t")
    dropped = store.drop_tag("t")
    again = lead(store, A, "t")
    assert newer(again, dropped)
    assert store.fill(A, "me", again, b"v", MINUTE, ["t"], led=True)
    assert store.peek(A, ["t"]) is not None
