"""Identity: 63-bit snowflakes, 14-byte branded ids, and the node ids that keep processes apart (wire §1)."""

from __future__ import annotations

from echomq_tasks.identity.branded import (
    EPOCH_MS,
    MAX_SNOWFLAKE,
    brand,
    check_id,
    from_base62,
    group_id,
    is_branded,
    minted_at_ms,
    snowflake,
    to_base62,
)
from echomq_tasks.identity.mint import Mint
from echomq_tasks.identity.node import NodeLease, NodeStore

__all__ = [
    "EPOCH_MS",
    "MAX_SNOWFLAKE",
    "Mint",
    "NodeLease",
    "NodeStore",
    "brand",
    "check_id",
    "from_base62",
    "group_id",
    "is_branded",
    "minted_at_ms",
    "snowflake",
    "to_base62",
]
