"""Functions that turn encoded `Example` messages into tensors, a feature each.

features = flowrt.parse_single_example(record, {
    "image": flowrt.FixedLenFeature([], flowrt.string),
    "label": flowrt.FixedLenFeature([], flowrt.int64, default_value=0),
    "words": flowrt.VarLenFeature(flowrt.int64),       # a SparseTensor
})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import DType, as_dtype, float32, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.text.csv_lines import decode_csv_op
from flowrt.graph.ops.text.examples import parse_example_op, parse_single_example_op
from flowrt.graph.shapes import Shape, as_shape, is_static
from flowrt.graph.source import misuse
from flowrt.graph.typing import TensorLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "FixedLenFeature", "FixedLenSequenceFeature", "VarLenFeature", "decode_csv", "parse_example",
    "parse_single_example",
]  # fmt: skip


class FixedLenFeature(NamedTuple):
    """A feature with as many values in every example.

    Args:
        shape: The shape of the values.
        dtype: float32, int64 or string.
        default_value: The values where an example lacks the feature; without a default that is an error.

    Example:
        >>> feature = {'x': tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0]))}
        >>> example = tf.train.Example(features=tf.train.Features(feature=feature))
        >>> wanted = {'x': tf.FixedLenFeature([2], tf.float32)}
        >>> tf.parse_single_example(example.SerializeToString(), wanted)['x'].eval()
        array([1., 2.], dtype=float32)
    """

    shape: Any
    dtype: Any
    default_value: Any = None


class VarLenFeature(NamedTuple):
    """A feature with any number of values of ``dtype``: a `SparseTensor`.

    Example:
        >>> feature = {'ids': tf.train.Feature(int64_list=tf.train.Int64List(value=[4, 5, 6]))}
        >>> example = tf.train.Example(features=tf.train.Features(feature=feature))
        >>> wanted = {'ids': tf.VarLenFeature(tf.int64)}
        >>> ids = tf.parse_single_example(example.SerializeToString(), wanted)['ids']
        >>> tf.sparse_tensor_to_dense(ids).eval()
        array([4, 5, 6])
    """

    dtype: Any


class FixedLenSequenceFeature(NamedTuple):
    """A feature with any number of rows of ``shape``, padded to the longest of the batch with
    ``default_value`` (by default zeros or empty strings). ``allow_missing`` has to be true.
    """

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None


class _Asked(NamedTuple):
    """Features by kind, each sorted by name as TensorFlow does."""

    sparse: dict[str, DType]
    dense: dict[str, tuple[tuple[int | None, ...], Tensor]]


def parse_example(
    serialized: TensorLike, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """Parse a vector of n encoded `Example` messages, ``serialized``.

    Returns by name a tensor ``[n, *shape]`` for each `FixedLenFeature`, ``[n, longest, *shape]`` for each
    `FixedLenSequenceFeature`, and a `SparseTensor` for each `VarLenFeature`. ``example_names``, a vector of
    strings, are what errors call the examples.

    Raises `DTypeError` and `InvalidArgumentError` for features that cannot be. A step raises
    `InvalidArgumentError` for a message that is none, and for a feature of another dtype or number of values,
    or missing without a default: with the example and the feature.
    """
    asked = _asked("parse_example", features)
    with name_scope(name, "ParseExample", [serialized, example_names]):
        outputs = parse_example_op(
            convert_to_tensor(serialized, string),
            np.zeros(0, object) if example_names is None else convert_to_tensor(example_names, string),
            list(asked.sparse),
            list(asked.dense),
            [default for _, default in asked.dense.values()],
            sparse_types=list(asked.sparse.values()),
            dense_shapes=[shape for shape, _ in asked.dense.values()],
        )
    return _by_name(asked, outputs)


def parse_single_example(
    serialized: TensorLike, features: Mapping[str, Any], name: str | None = None, example_names: Any = None
) -> dict[str, Any]:
    """The same as `parse_example` for one message, a string scalar: tensors without the first dimension.

    Example:
        >>> feature = {'label': tf.train.Feature(int64_list=tf.train.Int64List(value=[3]))}
        >>> message = tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        >>> parsed = tf.parse_single_example(message, {'label': tf.FixedLenFeature([], tf.int64)})
        >>> parsed['label'].eval()
        np.int64(3)
    """
    asked = _asked("parse_single_example", features)
    with name_scope(name, "ParseSingleExample", [serialized]):
        outputs = parse_single_example_op(
            convert_to_tensor(serialized, string),
            [default for _, default in asked.dense.values()],
            num_sparse=len(asked.sparse),
            sparse_keys=list(asked.sparse),
            sparse_types=list(asked.sparse.values()),
            dense_keys=list(asked.dense),
            dense_shapes=[shape for shape, _ in asked.dense.values()],
        )
    return _by_name(asked, outputs)


def _by_name(asked: _Asked, outputs: list[Tensor]) -> dict[str, Any]:
    count = len(asked.sparse)
    parts = zip(outputs[:count], outputs[count : 2 * count], outputs[2 * count : 3 * count], strict=True)
    found: dict[str, Any] = {
        key: SparseTensor(*three) for key, three in zip(asked.sparse, parts, strict=True)
    }
    return found | dict(zip(asked.dense, outputs[3 * count :], strict=True))


def _asked(function: str, features: Mapping[str, Any]) -> _Asked:
    if not features:
        raise misuse(f"{function}: expected features; got {features!r}", InvalidArgumentError)
    asked = _Asked({}, {})
    for key in sorted(features):
        where, feature = f"{function}: feature {key!r}", features[key]
        if not isinstance(feature, (FixedLenFeature, VarLenFeature, FixedLenSequenceFeature)):
            raise misuse(f"{where}: expected a FixedLenFeature or another kind; got {feature!r}", DTypeError)
        dtype = as_dtype(feature.dtype)
        if dtype not in (float32, int64, string):
            raise misuse(f"{where}: expected dtype float32, int64 or string; got {dtype.name}", DTypeError)
        if isinstance(feature, VarLenFeature):
            asked.sparse[key] = dtype
        else:
            asked.dense[key] = _dense(where, feature, dtype)
    return asked


def _dense(where: str, feature: Any, dtype: DType) -> tuple[tuple[int | None, ...], Tensor]:
    """The shape and the default of a dense feature: without elements if there is none."""
    shape: Shape = as_shape(feature.shape)
    given = feature.default_value
    if isinstance(feature, FixedLenSequenceFeature):
        if not feature.allow_missing or shape is None or not is_static(shape):
            raise misuse(
                f"{where}: expected allow_missing=True and a known shape; got {feature}", InvalidArgumentError
            )
        missing: Any = b"" if dtype is string else 0
        return (None, *shape), reshape(convert_to_tensor(missing if given is None else given, dtype), [])
    if shape is None or not is_static(shape):
        raise misuse(f"{where}: expected a known shape; got {feature.shape!r}", InvalidArgumentError)
    if given is None:
        return shape, convert_to_tensor(np.zeros(0, dtype.np), dtype)
    return shape, reshape(convert_to_tensor(given, dtype), shape)


def decode_csv(
    records: Any,
    record_defaults: Sequence[Any],
    field_delim: str = ",",
    use_quote_delim: bool = True,
    name: str | None = None,
    na_value: str = "",
    select_cols: Sequence[int] | None = None,
) -> list[Tensor]:
    """Lines of comma-separated values (RFC 4180), one tensor of the shape of ``records`` for each column.

    A column has the dtype of its default, float32, float64, int32, int64 or string; the default stands for a
    field that is empty or ``na_value``, and without an element (``[]``) it makes the field required. Only the
    columns ``select_cols`` are read, if given.

    Raises `InvalidArgumentError`, when run, with the record and the field: for a field that is missing or not
    of its dtype, another number of fields, and quotes that do not match.
    """
    return decode_csv_op(
        convert_to_tensor(records, string),
        [convert_to_tensor(default) for default in record_defaults],
        field_delim=field_delim,
        use_quote_delim=use_quote_delim,
        na_value=na_value,
        select_cols=list(select_cols or ()),
        name=name,
    )
