"""Ops that parse `Example` messages into tensors, one or two for each feature that is asked for.

A dense feature has values for its whole shape in every example, or a default; one with an unknown first
dimension (``[None, 3]``) has as many rows as an example has, padded with the default to the longest of the
batch. A sparse feature has any number of values: their places, the values, and the shape that they are in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes, protos
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array, words
from flowrt.graph.shapes import Shape, format_shape

Array = np.ndarray[Any, Any]
Dims = tuple[int | None, ...]


def _floats(feature: Any) -> Array:
    """The floats of a list, read from its bytes, which end with them: 784 take 1 us, converted 20."""
    count = len(feature.float_list.value)
    packed = feature.float_list.SerializeToString()
    return np.frombuffer(packed, "<f4", count, len(packed) - 4 * count)


def _strings(feature: Any) -> Array:
    values = feature.bytes_list.value
    return string_array(values, (len(values),))


_KINDS: dict[str, tuple[DType, Callable[[Any], Array]]] = {
    "bytes_list": (dtypes.string, _strings),
    "float_list": (dtypes.float32, _floats),
    "int64_list": (dtypes.int64, lambda feature: np.array(feature.int64_list.value, np.int64)),
}


def _rows(found: Sequence[Any], called: Sequence[str], key: str, dtype: DType) -> list[Array | None]:
    """The values of the feature ``key`` in each example; None if it lacks them."""
    pairs = zip(found, called, strict=True)
    return [_values(each, key, dtype, f"{name}, feature {key!r}") for each, name in pairs]


def _values(features: Any, key: str, dtype: DType, where: str) -> Array | None:
    if key not in features:
        return None
    kind = features[key].WhichOneof("kind")
    if kind is None:
        return None
    own, read = _KINDS[kind]
    if own is not dtype:
        raise InvalidArgumentError(f"{where}: expected values of {dtype.name}; got {own.name}")
    return read(features[key])


def _read(texts: Sequence[bytes], names: Sequence[bytes]) -> tuple[list[Any], list[str]]:
    """The features of each example, and what errors call it."""
    called = [f"example {i}{f' ({names[i].decode()})' if names else ''}" for i in range(len(texts))]
    found = []
    for text, name in zip(texts, called, strict=True):
        try:
            found.append(protos.example_pb2.Example.FromString(text).features.feature)
        except protos.DecodeError:
            raise InvalidArgumentError(
                f"{name}: expected an Example message; got {len(text)} bytes that are none"
            ) from None
    return found, called


def _dense(found: Sequence[Any], called: Sequence[str], key: str, default: Array, shape: Dims) -> Array:
    """The values of one dense feature, ``[examples, *shape]``."""
    dtype = dtypes.as_dtype(default.dtype)
    rows = [
        _values(each, key, dtype, f"{name}, feature {key!r}")
        for each, name in zip(found, called, strict=True)
    ]
    if shape and shape[0] is None:
        return _padded(rows, called, key, default, shape[1:])
    count = _size(shape)
    made = np.empty((len(rows), count), dtype.np)
    for i, row in enumerate(rows):
        if row is None and not default.size:
            raise InvalidArgumentError(
                f"{called[i]}, feature {key!r}: expected values of {dtype.name}; it has none"
            )
        if row is None:
            made[i] = default.reshape(-1)
        elif len(row) == count:
            made[i] = row
        else:
            raise InvalidArgumentError(
                f"{called[i]}, feature {key!r}: expected {count} values, for shape {format_shape(shape)}; "
                f"got {len(row)}"
            )
    return made.reshape(len(rows), *shape)


def _size(shape: Dims) -> int:
    return math.prod(size for size in shape if size is not None)


def _padded(
    rows: Sequence[Array | None], called: Sequence[str], key: str, default: Array, inner: Dims
) -> Array:
    """Rows of different lengths, filled with ``default`` behind their ends."""
    size = _size(inner)
    lengths = [0 if row is None else len(row) for row in rows]
    for name, length in zip(called, lengths, strict=True):
        if size == 0 or length % size:
            raise InvalidArgumentError(
                f"{name}, feature {key!r}: expected values for rows of shape {format_shape(inner)}; "
                f"got {length}"
            )
    made = np.full((len(rows), max(lengths, default=0)), default.reshape(-1)[0], default.dtype)
    for line, row in zip(made, rows, strict=True):
        if row is not None:
            line[: len(row)] = row
    return made.reshape(len(rows), -1 if made.size else 0, *inner)


def _sparse(
    found: Sequence[Any], called: Sequence[str], key: str, dtype: DType
) -> tuple[Array, Array, Array]:
    """The places ``[n, 2]``, values ``[n]`` and shape of one sparse feature."""
    rows = [
        _values(each, key, dtype, f"{name}, feature {key!r}")
        for each, name in zip(found, called, strict=True)
    ]
    lengths = np.array([0 if row is None else len(row) for row in rows], np.int64)
    there = [row for row in rows if row is not None]
    values = np.concatenate(there) if there else np.empty(0, dtype.np)
    starts = np.cumsum(lengths) - lengths
    places = np.stack(
        [np.repeat(np.arange(len(rows)), lengths), np.arange(len(values)) - np.repeat(starts, lengths)], 1
    )
    return places.astype(np.int64), values, np.array([len(rows), lengths.max(initial=0)], np.int64)


def _key(name: Any) -> str:
    return host_array(name).item().decode() if not isinstance(name, str) else name


def _parsed(
    texts: Sequence[bytes],
    names: Sequence[bytes],
    sparse: Iterator[tuple[str, DType]],
    dense: Iterator[tuple[str, Any, Dims]],
) -> tuple[list[tuple[Array, Array, Array]], list[Array]]:
    found, called = _read(texts, names)
    return (
        [_sparse(found, called, key, dtype) for key, dtype in sparse],
        [_dense(found, called, key, host_array(default), shape) for key, default, shape in dense],
    )


def _parse_many(
    xp: Any, serialized: Any, names: Any, sparse_keys: Any, dense_keys: Any, dense_defaults: Any,
    sparse_types: Sequence[DType], dense_shapes: Sequence[Dims],
) -> list[Any]:  # fmt: skip
    texts, called = host_array(serialized), host_array(names)
    if called.size and called.shape != texts.shape:
        raise InvalidArgumentError(
            f"names: expected one for each of {texts.size} examples; got {called.size}"
        )
    sparse, dense = _parsed(
        texts.reshape(-1).tolist(),
        called.reshape(-1).tolist(),
        zip(map(_key, sparse_keys), sparse_types, strict=True),
        zip(map(_key, dense_keys), dense_defaults, dense_shapes, strict=True),
    )
    return [*(part for parts in zip(*sparse, strict=True) for part in parts), *dense]


def _parse_one(
    xp: Any, serialized: Any, dense_defaults: Any, sparse_keys: Sequence[str], sparse_types: Sequence[DType],
    dense_keys: Sequence[str], dense_shapes: Sequence[Dims],
) -> list[Any]:  # fmt: skip
    sparse, dense = _parsed(
        [host_array(serialized).item()],
        (),
        zip(map(_text, sparse_keys), sparse_types, strict=True),
        zip(map(_text, dense_keys), dense_defaults, dense_shapes, strict=True),
    )
    parts = [(places[:, 1:], values, shape[1:]) for places, values, shape in sparse]
    return [*(part for each in zip(*parts, strict=True) for part in each), *(row[0] for row in dense)]


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


def _many_shape(s: ShapeContext) -> Sequence[Shape]:
    batch = s.shapes[0]
    if batch is not None and len(batch) != 1:
        raise InvalidArgumentError(f"serialized: expected a vector; got shape {format_shape(batch)}")
    count = None if batch is None else batch[0]
    return [
        *_sparse_shapes(len(s.attrs["sparse_types"]), 2),
        *((count, *shape) for shape in s.attrs["dense_shapes"]),
    ]


def _one_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0] not in (None, ()):
        raise InvalidArgumentError(f"serialized: expected a scalar; got shape {format_shape(s.shapes[0])}")
    return [*_sparse_shapes(len(s.attrs["sparse_types"]), 1), *s.attrs["dense_shapes"]]


def _sparse_shapes(count: int, rank: int) -> list[Shape]:
    return [*[(None, rank)] * count, *[(None,)] * count, *[(rank,)] * count]


def _samples(rng: np.random.Generator) -> tuple[bytes, bytes]:
    """Two examples with the features a (2 floats), b (integers) and c (strings)."""
    made = []
    for count in range(2):
        example = protos.example_pb2.Example()
        feature = example.features.feature
        feature["a"].float_list.value.extend(rng.standard_normal(2))
        feature["b"].int64_list.value.extend(range(1 + count))
        feature["c"].bytes_list.value.extend([b"x\0"] * count)
        made.append(example.SerializeToString(deterministic=True))
    return made[0], made[1]


def _many_samples(rng: np.random.Generator) -> Iterator[Sample]:
    texts = words(*_samples(rng))
    none = np.zeros(0, object)
    a, b, c = words(b"a")[0], words(b"b")[0], words(b"c")[0]
    key = [np.array(name, object) for name in (a, b, c)]
    defaults = (np.zeros(0, np.float32), np.array(-1))
    yield sample(
        texts, none, (key[2],), (key[0], key[1]), defaults, sparse_types=(dtypes.string,),
        dense_shapes=((2,), (None,)),
    )  # fmt: skip
    yield sample(
        texts, none, (key[1],), (key[0],), defaults[:1], sparse_types=(dtypes.int64,), dense_shapes=((2,),)
    )


parse_example_op: OpDef[list[Tensor]] = define_op(
    "ParseExample",
    "serialized: string, names: string, sparse_keys: Nsparse * string, dense_keys: Ndense * string, "
    "dense_defaults: *Tdense in ANY -> sparse_indices: Nsparse * int64, sparse_values: *sparse_types in ANY, "
    "sparse_shapes: Nsparse * int64, dense_values: *Tdense",
    attrs="sparse_types: list(type), dense_shapes: list(shape)",
    shape=_many_shape,
    kernel=_parse_many,
    vjp=NONDIFFERENTIABLE,
    samples=_many_samples,
    doc="The features of a vector of encoded `Example` messages.",
)


def _one_samples(rng: np.random.Generator) -> Iterator[Sample]:
    yield sample(
        np.array(_samples(rng)[1], object), (np.zeros(0, np.float32),), num_sparse=2, sparse_keys=("b", "c"),
        sparse_types=(dtypes.int64, dtypes.string), dense_keys=("a",), dense_shapes=((2,),),
    )  # fmt: skip


parse_single_example_op: OpDef[list[Tensor]] = define_op(
    "ParseSingleExample",
    "serialized: string, dense_defaults: *Tdense in ANY -> sparse_indices: num_sparse * int64, "
    "sparse_values: *sparse_types in ANY, sparse_shapes: num_sparse * int64, dense_values: *Tdense",
    attrs="num_sparse: int, sparse_keys: list(string), dense_keys: list(string), sparse_types: list(type), "
    "dense_shapes: list(shape)",
    shape=_one_shape,
    kernel=_parse_one,
    vjp=NONDIFFERENTIABLE,
    samples=_one_samples,
    doc="The features of one encoded `Example` message.",
)
