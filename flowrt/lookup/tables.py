"""Tables: handles of a session's dictionaries, asked by operations."""

from __future__ import annotations

from typing import Any, NamedTuple

from flowrt.dtypes import DType, as_dtype, int64, string
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.comparison import equal, where
from flowrt.graph.ops.state.lookup import (
    hash_table_op,
    lookup_table_export,
    lookup_table_find,
    lookup_table_insert,
    lookup_table_remove,
    lookup_table_size,
    mutable_hash_table_op,
)
from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.ops.text.hashing import string_to_hash_bucket_fast
from flowrt.graph.source import misuse
from flowrt.variables.variable import GraphKeys


class HasherSpec(NamedTuple):
    """A way to spread unknown words over buckets."""

    hasher: str
    key: Any = None


FastHashSpec = HasherSpec("fasthash")


class _Table:
    """Base of the tables: a handle, and what is looked up through it."""

    def __init__(self, handle: Tensor, key_dtype: DType, value_dtype: DType, default_value: Any) -> None:
        self._handle, self._key_dtype, self._value_dtype = handle, key_dtype, value_dtype
        self._default = convert_to_tensor(default_value, value_dtype)

    @property
    def resource_handle(self) -> Tensor:
        return self._handle

    table_ref = resource_handle

    @property
    def name(self) -> str:
        return self._handle.op.name

    @property
    def key_dtype(self) -> DType:
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        return self._value_dtype

    @property
    def default_value(self) -> Tensor:
        return self._default

    def size(self, name: str | None = None) -> Tensor:
        """The number of entries, int64."""
        return lookup_table_size(self._handle, name=name)

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The values of ``keys``, in their shape, the default where there is none; of a sparse tensor the
        values, at the same places.

        Raises `DTypeError` for keys of another dtype. A step raises `FailedPreconditionError` before the
        table is initialized.
        """
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        return lookup_table_find(
            self._handle, convert_to_tensor(keys, self._key_dtype), self._default, name=name
        )

    def export(self, name: str | None = None) -> list[Tensor]:
        """All keys and all values."""
        return lookup_table_export(self._handle, Tkeys=self._key_dtype, Tvalues=self._value_dtype, name=name)


class StaticHashTable(_Table):
    """A table with the contents of ``initializer``; other keys have ``default_value``."""

    def __init__(
        self, initializer: Any, default_value: Any, shared_name: str | None = None, name: str = "hash_table"
    ) -> None:
        if not hasattr(initializer, "initialize"):
            raise misuse(
                f"{type(self).__name__}: expected an initializer, such as KeyValueTensorInitializer; "
                f"got {initializer!r}"
            )
        with get_default_graph().name_scope(name):
            handle = hash_table_op(
                key_dtype=initializer.key_dtype,
                value_dtype=initializer.value_dtype,
                shared_name=shared_name or "",
            )
            super().__init__(handle, initializer.key_dtype, initializer.value_dtype, default_value)
            self._init = initializer.initialize(self)
        get_default_graph().add_to_collections(GraphKeys.TABLE_INITIALIZERS, self._init)

    @property
    def initializer(self) -> Operation:
        """The operation that sets the entries; `tables_initializer` runs it too."""
        return self._init

    init = initializer


HashTable = StaticHashTable


class MutableHashTable(_Table):
    """A table that steps change; it begins empty."""

    def __init__(
        self,
        key_dtype: Any,
        value_dtype: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        key, value = as_dtype(key_dtype), as_dtype(value_dtype)
        handle = mutable_hash_table_op(
            key_dtype=key, value_dtype=value, shared_name=shared_name or "", name=name
        )
        super().__init__(handle, key, value, default_value)

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Operation:
        """Set the values of ``keys``."""
        return lookup_table_insert(
            self._handle,
            convert_to_tensor(keys, self._key_dtype),
            convert_to_tensor(values, self._value_dtype),
            name=name,
        )

    def remove(self, keys: Any, name: str | None = None) -> Operation:
        return lookup_table_remove(self._handle, convert_to_tensor(keys, self._key_dtype), name=name)


class IdTableWithHashBuckets:
    """``table`` of numbers from 0 on, with ``num_oov_buckets`` more numbers behind them for keys that it has
    not: a key's bucket is its fingerprint modulo their number. ``table`` None has no entries.
    """

    def __init__(
        self,
        table: Any,
        num_oov_buckets: int,
        hasher_spec: HasherSpec = FastHashSpec,
        name: str | None = None,
        key_dtype: Any = None,
    ) -> None:
        if hasher_spec.hasher != "fasthash":
            raise misuse(f"IdTableWithHashBuckets: expected FastHashSpec; got {hasher_spec}")
        if table is None and num_oov_buckets <= 0:
            raise misuse("IdTableWithHashBuckets: expected a table, or num_oov_buckets above 0; got neither")
        self._table, self._buckets = table, num_oov_buckets
        self._key_dtype = as_dtype(key_dtype or (string if table is None else table.key_dtype))

    @property
    def key_dtype(self) -> DType:
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        return int64

    @property
    def initializer(self) -> Operation | None:
        """The operation that sets the entries of its table."""
        return None if self._table is None else self._table.initializer

    init = initializer

    @property
    def resource_handle(self) -> Tensor | None:
        return None if self._table is None else self._table.resource_handle

    def size(self, name: str | None = None) -> Tensor:
        """The number of entries and buckets, int64."""
        own = constant(0, int64) if self._table is None else self._table.size()
        return own + self._buckets

    def lookup(self, keys: Any, name: str | None = None) -> Any:
        """The numbers of ``keys``, in their shape; of a sparse tensor those of its values."""
        if isinstance(keys, SparseTensor):
            return SparseTensor(keys.indices, self.lookup(keys.values, name), keys.dense_shape)
        given = convert_to_tensor(keys, preferred_dtype=self._key_dtype)
        wanted = given if self._table is None else cast_key(given, self._table.key_dtype)
        if self._buckets == 0:
            return self._table.lookup(wanted, name)
        text = given if given.dtype is string else as_string(given)
        bucket = string_to_hash_bucket_fast(text, self._buckets)
        if self._table is None:
            return bucket
        ids = self._table.lookup(wanted)
        return where(equal(ids, self._table.default_value), bucket + self._table.size(), ids)


def cast_key(keys: Tensor, dtype: DType) -> Tensor:
    """``keys`` of integers as ``dtype``."""
    return keys if keys.dtype is dtype or dtype is string else cast(keys, dtype)


class StaticVocabularyTable(IdTableWithHashBuckets):
    """Numbers of words by ``initializer``, and ``num_oov_buckets`` for all others."""

    def __init__(
        self,
        initializer: Any,
        num_oov_buckets: int,
        lookup_key_dtype: Any = None,
        name: str = "static_vocabulary_table",
    ) -> None:
        table = None if initializer is None else StaticHashTable(initializer, -1, name=name)
        super().__init__(table, num_oov_buckets, key_dtype=lookup_key_dtype)
