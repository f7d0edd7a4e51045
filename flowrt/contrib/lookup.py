"""``flowrt.contrib.lookup``: `flowrt.lookup`, with functions of one table for one look-up."""

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.lookup import (
    FastHashSpec,
    HasherSpec,
    HashTable,
    IdTableWithHashBuckets,
    KeyValueTensorInitializer,
    MutableHashTable,
    TextFileIdTableInitializer,
    TextFileIndex,
    TextFileInitializer,
    TextFileStringTableInitializer,
    index_table_from_file,
    index_table_from_tensor,
    index_to_string_table_from_file,
    index_to_string_table_from_tensor,
)
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "FastHashSpec", "HashTable", "HasherSpec", "IdTableWithHashBuckets", "KeyValueTensorInitializer",
    "MutableHashTable", "TextFileIdTableInitializer", "TextFileIndex", "TextFileInitializer",
    "TextFileStringTableInitializer", "index_table_from_file", "index_table_from_tensor", "index_to_string",
    "index_to_string_table_from_file", "index_to_string_table_from_tensor", "string_to_index",
]  # fmt: skip


def string_to_index(tensor: Any, mapping: Any, default_value: Any = -1, name: str | None = None) -> Any:
    """The places in ``mapping`` of the strings ``tensor``."""
    return index_table_from_tensor(mapping, default_value=default_value, name=name).lookup(tensor)


def index_to_string(tensor: Any, mapping: Any, default_value: Any = "UNK", name: str | None = None) -> Tensor:
    """The strings at the places ``tensor`` of ``mapping``."""
    found: Tensor = index_to_string_table_from_tensor(mapping, default_value, name).lookup(tensor)
    return found


__getattr__ = missing_from("contrib.lookup")
