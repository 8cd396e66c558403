"""The cache: function results over two layers, in the process and on the server (wire §9)."""

from __future__ import annotations

from echomq_tasks.cache.keys import Key, KeyMaker
from echomq_tasks.cache.pickled import PickleCodec
from echomq_tasks.cache.stats import TableStats
from echomq_tasks.cache.table import Table, tables
from echomq_tasks.cache.values import Codec, PlainCodec, TypedCodec

__all__ = ["Codec", "Key", "KeyMaker", "PickleCodec", "PlainCodec", "Table", "TableStats", "TypedCodec", "tables"]
