"""Lookup tables: dictionaries of the session, behind handles, from keys to values of fixed dtypes.

They are on the host. A table that is initialized from a file keeps what was in it at that time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any, final

import numpy as np

from flowrt.dtypes import DType, string
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Operation
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    Privilege,
    ShapeContext,
    define_handle,
    define_op,
)
from flowrt.graph.ops.text.checkpoint_files import path_of
from flowrt.graph.ops.text.strings import host_array, string_array
from flowrt.graph.shapes import Shape
from flowrt.storage.durable_files import typed_os_errors

WHOLE_LINE, LINE_NUMBER = -2, -1
"""Columns of a file that are none."""


@final
class LookupTable:
    """The entries of a table; those of one that is not ``is_mutable`` are set once."""

    def __init__(self, name: str, key_dtype: DType, value_dtype: DType, is_mutable: bool) -> None:
        self.name, self.key_dtype, self.value_dtype = name, key_dtype, value_dtype
        self._is_mutable = is_mutable
        self._entries: dict[Any, Any] | None = {} if is_mutable else None
        self._lock = threading.Lock()

    def entries(self) -> dict[Any, Any]:
        """The entries. Raises `FailedPreconditionError` before they are set."""
        if self._entries is None:
            raise FailedPreconditionError(
                f"table {self.name!r} has no entries yet. Run tables_initializer(), or load the model with "
                "saved_model.loader.load"
            )
        return self._entries

    def initialize(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Set the entries, the first time. Raises `InvalidArgumentError` for a key with two values."""
        with self._lock:
            if self._entries:
                return
            found: dict[Any, Any] = {}
            for key, value in pairs:
                if found.setdefault(key, value) != value:
                    raise InvalidArgumentError(
                        f"table {self.name!r}: expected one value of {key!r:.80}; got {found[key]!r:.80} and "
                        f"{value!r:.80}"
                    )
            self._entries = found

    def insert(self, keys: Any, values: Any) -> None:
        with self._lock:
            self.entries().update(zip(_items(keys), _items(values), strict=True))

    def replace(self, keys: Any, values: Any) -> None:
        with self._lock:
            self._entries = dict(zip(_items(keys), _items(values), strict=True))

    def remove(self, keys: Any) -> None:
        with self._lock:
            for key in _items(keys):
                self.entries().pop(key, None)

    def find(self, keys: Any, default: Any) -> Any:
        """The values of ``keys``, in their shape."""
        entries, (missing,) = self.entries(), _items(default)
        found = [entries.get(key, missing) for key in _items(keys)]
        return _array(found, self.value_dtype, host_array(keys).shape)

    def export(self) -> list[Any]:
        """All keys and all values."""
        entries = self.entries()
        return [
            _array(list(entries), self.key_dtype, (len(entries),)),
            _array(list(entries.values()), self.value_dtype, (len(entries),)),
        ]


def _items(array: Any) -> list[Any]:
    found: list[Any] = host_array(array).reshape(-1).tolist()
    return found


def _array(items: list[Any], dtype: DType, shape: tuple[int, ...]) -> Any:
    if dtype is string:
        return string_array(items, shape)
    return np.array(items, dtype.np).reshape(shape)


_ATTRS = (
    "container: string = '', shared_name: string = '', use_node_name_sharing: bool = False, "
    "key_dtype: type, value_dtype: type"
)


def _define_table(name: str, is_mutable: bool, doc: str) -> OpDef:
    return define_handle(
        name,
        lambda node: LookupTable(node.name, node.attrs["key_dtype"], node.attrs["value_dtype"], is_mutable),
        doc,
        output="table_handle: resource",
        attrs=_ATTRS,
    )


hash_table_op = _define_table("HashTableV2", False, "The handle of a table that is initialized once.")
mutable_hash_table_op = _define_table("MutableHashTableV2", True, "The handle of a table that changes.")


def _of_keys(s: ShapeContext) -> list[Shape]:
    return [s.shapes[1]]


lookup_table_find = define_op(
    "LookupTableFindV2",
    "table_handle: resource, keys: Tin in ANY, default_value: Tout in ANY -> values: Tout",
    shape=_of_keys,
    kernel=lambda xp, table, keys, default: table.find(keys, default),
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=Effects(Effect.READ),
    doc="The values of keys in a table, or the default.",
)

lookup_table_size = define_op(
    "LookupTableSizeV2",
    "table_handle: resource -> size: int64",
    shape=lambda s: [()],
    kernel=lambda xp, table: np.asarray(len(table.entries()), np.int64),
    effects=Effects(Effect.READ),
    doc="The number of entries of a table.",
)

lookup_table_export: OpDef[list[Any]] = define_op(
    "LookupTableExportV2",
    "table_handle: resource -> keys: Tkeys in ANY, values: Tvalues in ANY",
    attrs="Tkeys: type, Tvalues: type",
    shape=lambda s: [(None,), (None,)],
    kernel=lambda xp, table: table.export(),
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=Effects(Effect.READ),
    doc="All keys and values of a table.",
)


def _define_write(name: str, inputs: str, kernel: Any, doc: str) -> OpDef[Operation]:
    return define_op(
        name, f"table_handle: resource, {inputs} ->", kernel=kernel, effects=Effects(Effect.WRITE), doc=doc
    )


initialize_table = _define_write(
    "InitializeTableV2",
    "keys: Tkey in ANY, values: Tval in ANY",
    lambda xp, table, keys, values: table.initialize(zip(_items(keys), _items(values), strict=True)),
    "Sets the entries of a table, the first time.",
)
lookup_table_insert = _define_write(
    "LookupTableInsertV2",
    "keys: Tin in ANY, values: Tout in ANY",
    lambda xp, table, keys, values: table.insert(keys, values),
    "Sets the values of keys in a table.",
)
lookup_table_import = _define_write(
    "LookupTableImportV2",
    "keys: Tin in ANY, values: Tout in ANY",
    lambda xp, table, keys, values: table.replace(keys, values),
    "Replaces the entries of a table.",
)
lookup_table_remove = _define_write(
    "LookupTableRemoveV2",
    "keys: Tin in ANY",
    lambda xp, table, keys: table.remove(keys),
    "Removes keys from a table.",
)


def _from_file(
    xp: Any,
    table: LookupTable,
    filename: Any,
    key_index: int,
    value_index: int,
    vocab_size: int,
    delimiter: str,
    offset: int,
) -> None:
    path = path_of(filename)
    with typed_os_errors(f"table {table.name!r}: {path}"), open(path, "rb") as file:
        lines = file.read().split(b"\n")
    lines = lines[: -1 if lines[-1] == b"" else None][offset:]
    if vocab_size > 0:
        if len(lines) < vocab_size:
            raise InvalidArgumentError(
                f"table {table.name!r}: {path}: expected {vocab_size} lines; it has {len(lines)}"
            )
        lines = lines[:vocab_size]
    columns = [
        _column(path, lines, index, dtype, delimiter.encode())
        for index, dtype in ((key_index, table.key_dtype), (value_index, table.value_dtype))
    ]
    table.initialize(zip(*columns, strict=True))


def _column(path: str, lines: list[bytes], index: int, dtype: DType, delimiter: bytes) -> list[Any]:
    if index == LINE_NUMBER:
        return list(range(len(lines)))
    texts = [line.rstrip(b"\r") for line in lines]
    if index != WHOLE_LINE:
        rows = [text.split(delimiter) for text in texts]
        short = [number for number, row in enumerate(rows, 1) if len(row) <= index]
        if short:
            raise InvalidArgumentError(f"{path}, line {short[0]}: expected {index + 1} columns")
        texts = [row[index] for row in rows]
    if dtype is string:
        return list(texts)
    try:
        return [dtype.np.type(text.decode()).item() for text in texts]
    except (ValueError, UnicodeDecodeError) as error:
        raise DTypeError(f"{path}: expected {dtype.name}; {error}") from None


initialize_table_from_file: OpDef[Operation] = define_op(
    "InitializeTableFromTextFileV2",
    "table_handle: resource, filename: string ->",
    attrs="key_index: int, value_index: int, vocab_size: int = -1, delimiter: string = '\\t', "
    "offset: int = 0",
    kernel=_from_file,
    effects=Effects(Effect.WRITE, privilege=lambda attrs: Privilege.READS_FILES),
    doc="Sets the entries of a table from the lines of a file, the first time.",
)
