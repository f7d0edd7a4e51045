"""Contents of tables: tensors, or the lines of a file."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DType, as_dtype, int64, string
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.ops.state.lookup import (
    LINE_NUMBER,
    WHOLE_LINE,
    initialize_table,
    initialize_table_from_file,
)
from flowrt.graph.source import misuse
from flowrt.variables.variable import GraphKeys


class TextFileIndex:
    """Columns of a file that are none: the whole line, and its number from 0 on."""

    WHOLE_LINE, LINE_NUMBER = WHOLE_LINE, LINE_NUMBER


class KeyValueTensorInitializer:
    """The contents of a table as tensors of equal length."""

    def __init__(
        self, keys: Any, values: Any, key_dtype: Any = None, value_dtype: Any = None, name: str | None = None
    ) -> None:
        self._keys = convert_to_tensor(keys, key_dtype, "keys")
        self._values = convert_to_tensor(values, value_dtype, "values")

    @property
    def key_dtype(self) -> DType:
        return self._keys.dtype

    @property
    def value_dtype(self) -> DType:
        return self._values.dtype

    def initialize(self, table: Any) -> Operation:
        """The operation that sets the entries of ``table``."""
        return initialize_table(table.resource_handle, self._keys, self._values)


class TextFileInitializer:
    """The contents of a table as two columns of a file, numbers from 0 on or `TextFileIndex`'s.

    Lines past ``vocab_size`` are not read. A step that initializes raises `NotFoundError` without the file
    and `InvalidArgumentError`, with the line, for one with too few columns.
    """

    def __init__(
        self,
        filename: Any,
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
    ) -> None:
        self._filename = convert_to_tensor(filename, string)
        self._key_dtype, self._value_dtype = as_dtype(key_dtype), as_dtype(value_dtype)
        self._columns: dict[str, Any] = {
            "key_index": key_index,
            "value_index": value_index,
            "delimiter": delimiter,
        }
        self._count = -1 if vocab_size is None else vocab_size
        wanted = {
            key_index: self._key_dtype, value_index: self._value_dtype
        }  # fmt: skip
        if wanted.get(LINE_NUMBER, int64) is not int64 or wanted.get(WHOLE_LINE, string) is not string:
            raise misuse(
                "TextFileInitializer: expected int64 for numbers of lines and string for whole lines; got "
                f"{self._key_dtype.name} and {self._value_dtype.name}",
                DTypeError,
            )

    @property
    def key_dtype(self) -> DType:
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        return self._value_dtype

    def initialize(self, table: Any) -> Operation:
        """The operation that sets the entries of ``table``."""
        graph = get_default_graph()
        graph.add_to_collections(GraphKeys.ASSET_FILEPATHS, self._filename)
        return initialize_table_from_file(
            table.resource_handle, self._filename, vocab_size=self._count, **self._columns
        )


class TextFileStringTableInitializer(TextFileInitializer):
    """Strings by the numbers of their lines."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = LINE_NUMBER,
        value_column_index: int = WHOLE_LINE,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_string_table_init",
    ) -> None:
        super().__init__(
            filename, int64, key_column_index, string, value_column_index, vocab_size, delimiter, name
        )


class TextFileIdTableInitializer(TextFileInitializer):
    """Numbers of lines by what is in them."""

    def __init__(
        self,
        filename: Any,
        key_column_index: int = WHOLE_LINE,
        value_column_index: int = LINE_NUMBER,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_id_table_init",
        key_dtype: Any = string,
    ) -> None:
        super().__init__(
            filename, key_dtype, key_column_index, int64, value_column_index, vocab_size, delimiter, name
        )
