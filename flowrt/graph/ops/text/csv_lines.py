"""The op that splits lines of comma-separated values into columns."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array, words
from flowrt.graph.shapes import Shape

_TYPES = {dtypes.float32, dtypes.float64, dtypes.int32, dtypes.int64, dtypes.string}


def _fields(line: bytes, delimiter: str, quotes: bool, where: str) -> list[bytes]:
    text = line.decode("latin-1")  # a byte stays a byte
    try:
        quoting: Any = csv.QUOTE_MINIMAL if quotes else csv.QUOTE_NONE
        (row,) = csv.reader([text], delimiter=delimiter, quoting=quoting, strict=True)
    except (csv.Error, ValueError) as error:
        raise InvalidArgumentError(f"{where}: expected a line of values; got {line!r:.80}: {error}") from None
    return [field.encode("latin-1") for field in row] or [b""]


def _value(field: bytes, default: Any, dtype: DType, na_value: bytes, where: str) -> Any:
    if not field or field == na_value:
        if not default.size:
            raise InvalidArgumentError(f"{where}: expected a value; it is missing and has no default")
        return default.reshape(-1)[0]
    if dtype is dtypes.string:
        return field
    try:
        number = float(field) if dtype.is_floating else int(field)
        with np.errstate(over="ignore"):
            return dtype.np.type(number)
    except (ValueError, OverflowError):
        raise InvalidArgumentError(f"{where}: expected {dtype.name}; got {field!r:.80}") from None


def _decode(
    xp: Any, records: Any, record_defaults: Sequence[Any], field_delim: str, use_quote_delim: bool,
    na_value: str, select_cols: Sequence[int], OUT_TYPE: Sequence[DType],
) -> list[Any]:  # fmt: skip
    lines = host_array(records)
    count = len(OUT_TYPE)
    wanted, missing = list(select_cols) or range(count), _text(na_value).encode()
    defaults = [host_array(default) for default in record_defaults]
    columns: list[list[Any]] = [[] for _ in range(count)]
    for i, line in enumerate(lines.reshape(-1).tolist()):
        fields = _fields(line, _text(field_delim), use_quote_delim, f"record {i}")
        if len(fields) <= wanted[-1] if select_cols else len(fields) != count:
            expected = f"at least {wanted[-1] + 1}" if select_cols else count
            raise InvalidArgumentError(f"record {i}: expected {expected} fields; got {len(fields)}")
        for j, place in enumerate(wanted):
            where = f"record {i}, field {place}"
            columns[j].append(_value(fields[place], defaults[j], OUT_TYPE[j], missing, where))
    return [_column(values, dtype, lines.shape) for values, dtype in zip(columns, OUT_TYPE, strict=True)]


def _column(values: list[Any], dtype: DType, shape: tuple[int, ...]) -> Any:
    if dtype is dtypes.string:
        return string_array(values, shape)
    return np.array(values, dtype.np).reshape(shape)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _shape(s: ShapeContext) -> Sequence[Shape]:
    types, select = s.attrs["OUT_TYPE"], s.attrs["select_cols"]
    if select and (len(select) != len(types) or list(select) != sorted(set(select)) or select[0] < 0):
        raise InvalidArgumentError(
            f"select_cols: expected {len(types)} places in ascending order; got {list(select)}"
        )
    if not set(types) <= _TYPES:
        raise InvalidArgumentError(
            "record_defaults: expected float32, float64, int32, int64 or string; got "
            f"{[dtype.name for dtype in types]}"
        )
    if len(_text(s.attrs["field_delim"])) != 1:
        raise InvalidArgumentError(f"field_delim: expected one character; got {s.attrs['field_delim']!r}")
    return [s.shapes[0]] * len(types)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    defaults = (np.array([0], np.int32), np.array([1.5]), words(b"x"))
    yield sample(words(b'1,2.5,"a,b"', b",,"), defaults)
    yield sample(words(b"1;2;3;nan"), (np.zeros(0, np.float32),), field_delim=";", select_cols=(1,))


decode_csv_op: OpDef[list[Tensor]] = define_op(
    "DecodeCSV",
    "records: string, record_defaults: *OUT_TYPE in ANY -> output: *OUT_TYPE",
    attrs="field_delim: string = ',', use_quote_delim: bool = True, na_value: string = '', "
    "select_cols: list(int) = ()",
    shape=_shape,
    kernel=_decode,
    vjp=NONDIFFERENTIABLE,
    samples=_samples,
    doc="Lines of comma-separated values (RFC 4180) as a tensor for each column.",
)
