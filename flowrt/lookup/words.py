"""Tables between words and their numbers in a vocabulary."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import as_dtype, int64, string
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import size
from flowrt.graph.ops.state.lookup import LINE_NUMBER, WHOLE_LINE
from flowrt.graph.source import misuse
from flowrt.lookup.contents import (
    KeyValueTensorInitializer,
    TextFileIdTableInitializer,
    TextFileStringTableInitializer,
)
from flowrt.lookup.tables import FastHashSpec, HasherSpec, IdTableWithHashBuckets, StaticHashTable, cast_key


def index_table_from_file(
    vocabulary_file: Any = None,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: Any = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    key_dtype: Any = string,
    name: str | None = None,
    key_column_index: int = WHOLE_LINE,
    value_column_index: int = LINE_NUMBER,
    delimiter: str = "\t",
) -> Any:
    """A table from the lines of a file to their numbers. Others have ``default_value``, or one of
    ``num_oov_buckets`` numbers behind.

    Raises `InvalidArgumentError` without a file, or for a negative number of buckets.
    """
    if not isinstance(vocabulary_file, Tensor) and not vocabulary_file:
        raise misuse("index_table_from_file: expected a vocabulary_file; got none")
    _check_buckets("index_table_from_file", num_oov_buckets)
    contents = TextFileIdTableInitializer(
        vocabulary_file, key_column_index, value_column_index, vocab_size, delimiter,
        key_dtype=int64 if as_dtype(key_dtype).is_integer else string,
    )  # fmt: skip
    return _with_buckets(contents, default_value, num_oov_buckets, hasher_spec, key_dtype, name)


def index_table_from_tensor(
    vocabulary_list: Any,
    num_oov_buckets: int = 0,
    default_value: Any = -1,
    hasher_spec: HasherSpec = FastHashSpec,
    dtype: Any = string,
    name: str | None = None,
) -> Any:
    """A table from the elements of a vector to their places; see `index_table_from_file` for the rest."""
    if vocabulary_list is None:
        raise misuse("index_table_from_tensor: expected a vocabulary_list; got None")
    _check_buckets("index_table_from_tensor", num_oov_buckets)
    keys = convert_to_tensor(vocabulary_list, preferred_dtype=dtype)
    if keys.dtype.is_integer != as_dtype(dtype).is_integer:
        raise misuse(
            f"index_table_from_tensor: expected keys of {as_dtype(dtype).name}; got {keys.dtype.name}",
            DTypeError,
        )
    keys = cast_key(keys, int64 if keys.dtype.is_integer else string)
    contents = KeyValueTensorInitializer(keys, cast(range(size(keys)), int64))
    return _with_buckets(contents, default_value, num_oov_buckets, hasher_spec, dtype, name)


def _check_buckets(where: str, count: int) -> None:
    if count < 0:
        raise misuse(f"{where}: expected num_oov_buckets of 0 or more; got {count}")


def _with_buckets(
    contents: Any, default: Any, buckets: int, hasher: HasherSpec, key_dtype: Any, name: str | None
) -> Any:
    with get_default_graph().name_scope(name or "string_to_index"):
        table = StaticHashTable(contents, default)
        if buckets or as_dtype(key_dtype) not in (string, int64):
            return IdTableWithHashBuckets(table, buckets, hasher, key_dtype=key_dtype)
        return table


def index_to_string_table_from_file(
    vocabulary_file: Any,
    vocab_size: int | None = None,
    default_value: Any = "UNK",
    name: str | None = None,
    key_column_index: int = LINE_NUMBER,
    value_column_index: int = WHOLE_LINE,
    delimiter: str = "\t",
) -> StaticHashTable:
    """A table from the numbers of a file's lines to the lines."""
    if not isinstance(vocabulary_file, Tensor) and not vocabulary_file:
        raise misuse("index_to_string_table_from_file: expected a vocabulary_file; got none")
    contents = TextFileStringTableInitializer(
        vocabulary_file, key_column_index, value_column_index, vocab_size, delimiter
    )
    with get_default_graph().name_scope(name or "index_to_string"):
        return StaticHashTable(contents, default_value)


def index_to_string_table_from_tensor(
    vocabulary_list: Any, default_value: Any = "UNK", name: str | None = None
) -> StaticHashTable:
    """A table from places in a vector of strings to the strings."""
    if vocabulary_list is None:
        raise misuse("index_to_string_table_from_tensor: expected a vocabulary_list; got None")
    values = convert_to_tensor(vocabulary_list, string)
    with get_default_graph().name_scope(name or "index_to_string"):
        contents = KeyValueTensorInitializer(cast(range(size(values)), int64), values)
        return StaticHashTable(contents, default_value)
