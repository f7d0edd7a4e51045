"""Combinations of categories, one of each of several sparse tensors, and their hashes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType, int64, string
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.text.hashing import fingerprint64
from flowrt.graph.shapes import Shape

_MASK = (1 << 64) - 1
_FACTOR = 0xC6A4A7935BD1E995


def _shifted(value: int) -> int:
    return value ^ value >> 47


def _joined(first: int, second: int) -> int:
    """The fingerprint of a pair of fingerprints, by a round of MurmurHash64A, as in TensorFlow's crosses."""
    mixed = _shifted(second * _FACTOR & _MASK) * _FACTOR & _MASK
    found = (first ^ _FACTOR ^ mixed) * _FACTOR & _MASK
    return _shifted(_shifted(found) * _FACTOR & _MASK)


def _rows(indices: Any, values: Any, count: int) -> list[list[Any]]:
    rows: list[list[Any]] = [[] for _ in range(count)]
    for row, value in zip(indices[:, 0].tolist(), values.tolist(), strict=True):
        rows[row].append(value)
    return rows


def _cross(
    xp: Any, indices: Sequence[Any], values: Sequence[Any], shapes: Sequence[Any],
    dense_inputs: Sequence[Any], hashed_output: bool, num_buckets: int, hash_key: int, out_type: DType,
) -> list[Any]:  # fmt: skip
    indices, values, shapes, dense_inputs = (
        [np.asarray(x if xp is np or x.dtype == object else xp.asnumpy(x)) for x in group]
        for group in (indices, values, shapes, dense_inputs)
    )
    counts = {int(sizes[0]) for sizes in shapes} | {len(x) for x in dense_inputs}
    if len(counts) != 1:
        raise InvalidArgumentError(f"expected as many rows in each input; got {sorted(counts)}")
    (count,) = counts
    columns = [_rows(i, v, count) for i, v in zip(indices, values, strict=True)]
    columns += [x.tolist() for x in dense_inputs]
    made = [
        [
            _hash(each, hash_key, num_buckets) if hashed_output else _text(each)
            for each in itertools.product(*row)
        ]
        for row in zip(*columns, strict=True)
    ]
    places = [(row, i) for row, found in enumerate(made) for i in range(len(found))]
    flat = [each for found in made for each in found]
    return [
        xp.asarray(np.array(places, np.int64).reshape(-1, 2)),
        xp.asarray(np.array(flat, np.int64)) if out_type is int64 else np.array(flat, object),
        xp.asarray(np.array([count, max(map(len, made), default=0)], np.int64)),
    ]


def _hash(categories: Iterable[Any], key: int, num_buckets: int) -> int:
    found = key & _MASK
    for each in categories:
        found = _joined(found, fingerprint64(each) if isinstance(each, bytes) else each & _MASK)
    return found % (num_buckets or (1 << 63) - 1)


def _text(categories: Iterable[Any]) -> bytes:
    return b"_X_".join(each if isinstance(each, bytes) else str(each).encode() for each in categories)


def _shape(s: ShapeContext) -> Sequence[Shape]:
    return [(None, 2), (None,), (2,)]


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    places = np.array([[0, 0], [0, 1], [2, 0]])
    texts, sizes = np.array([b"a", b"b", b"c"], object), np.array([3, 2])
    numbers = np.array([[1], [2], [3]])
    yield sample(
        (places,), (texts,), (sizes,), (numbers,),
        hashed_output=True, num_buckets=10, hash_key=7, out_type=int64, internal_type=string,
    )  # fmt: skip
    yield sample(
        (places, places), (np.arange(3), np.arange(3)), (sizes, sizes), (),
        hashed_output=True, num_buckets=0, hash_key=7, out_type=int64, internal_type=int64,
    )  # fmt: skip
    yield sample(
        (places, places), (texts, np.arange(3)), (sizes, sizes), (),
        hashed_output=False, num_buckets=0, hash_key=0, out_type=string, internal_type=string,
    )  # fmt: skip


sparse_cross_op: OpDef[list[Tensor]] = define_op(
    "SparseCross",
    "indices: N * int64, values: *sparse_types in ANY, shapes: N * int64, dense_inputs: *dense_types in ANY "
    "-> output_indices: int64, output_values: out_type in int64 | string, output_shape: int64",
    attrs="hashed_output: bool, num_buckets: int, hash_key: int, out_type: type, internal_type: type",
    shape=_shape,
    kernel=_cross,
    vjp=NONDIFFERENTIABLE,
    samples=_samples,
    doc="The combinations of the values in each row of several inputs: joined texts, or hashes of them.",
)
