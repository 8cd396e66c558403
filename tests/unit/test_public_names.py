"""What a user may import: adding a name is a decision, losing one breaks an app."""

from __future__ import annotations

import importlib
import importlib.util

import pytest

PUBLIC = {
    "echomq_tasks": (
        "Bus Connection EchoMQError JobCancelled NewJob Queue Worker __version__ actor cached connect current_job flow"
    ),
    "echomq_tasks.brokers.dramatiq": (
        "BatchActor Delivery EchoMQBroker EchoMQConsumer JobActor SentMessage flow job_id run_flows"
    ),
    "echomq_tasks.bus": (
        "AsyncSubscription AsyncTail Bus Codec Consumer Delivery Event Gap GroupInfo JsonCodec Log Record Retention "
        "Runner Subscription Tail buses_with_handlers keep_retention"
    ),
    "echomq_tasks.cache": "Codec Key KeyMaker PickleCodec PlainCodec Table TableStats TypedCodec tables",
    "echomq_tasks.caching": "AsyncCachedFunction CacheInfo CacheWarning CachedDecorator CachedFunction cached",
    "echomq_tasks.connection": "Connection Server connect",
    "echomq_tasks.events": (
        "Announcing CACHE_EVENTS CONTROL_EVENTS CacheEvent EVENTS Event JOB_EVENTS QUEUE_EVENTS WORKER_EVENTS "
        "chosen_events event_text"
    ),
    "echomq_tasks.identity": (
        "EPOCH_MS MAX_SNOWFLAKE Mint NodeLease NodeStore brand check_id from_base62 group_id is_branded minted_at_ms "
        "snowflake to_base62"
    ),
    "echomq_tasks.middleware": "Lifecycle Retries",
    "echomq_tasks.queue": (
        "Admission Cancellation Children Claimed Complete Counts Discard Enqueued Flow FlowAdded Job JobInfo Lane "
        "LaneInfo Limits Metrics NewJob Parking Queue Release Renewal Repeat Retry Settlement State Swept Turn "
        "Unique Verdict check_job check_repeat extend_all"
    ),
    "echomq_tasks.results": "EchoMQBackend result_id",
    "echomq_tasks.scripts": "Call Script Scripts load_scripts",
    "echomq_tasks.signals": (
        "cache_hit cache_load cache_miss cancelled completed drained enqueued failed lease_lost namespace paused "
        "progress removed resumed retried scheduled stalled started worker_started worker_stopped worker_stopping"
    ),
    "echomq_tasks.worker": "Worker",
}


@pytest.mark.parametrize("module", PUBLIC)
def test_the_public_names_are_these(module: str) -> None:
    found = importlib.import_module(module)
    assert sorted(found.__all__) == sorted(PUBLIC[module].split())
    for name in found.__all__:
        assert hasattr(found, name)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_documented(module: str) -> None:
    found = importlib.import_module(module)
    assert found.__doc__
    undocumented = [
        name for name in found.__all__ if callable(getattr(found, name)) and not getattr(found, name).__doc__
    ]
    assert not undocumented


def test_the_package_of_cached_functions_is_not_hidden_by_the_decorator() -> None:
    # Else this import would give the function.
    import echomq_tasks.caching as module

    assert module.cached is importlib.import_module("echomq_tasks").cached
    assert importlib.util.find_spec("echomq_tasks.cached") is None
