"""Every op with a rule of batching against itself, one element at a time; one generic test, no code an op."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.dtypes import as_dtype
from flowrt.graph.construction.batching_rules import Value
from flowrt.graph.construction.graph import Operation, get_default_graph
from flowrt.graph.functions.batching import Batching, has_rule
from flowrt.graph.op_def import Effect, OpDef, Sample, registered_ops
from flowrt.graph.ops.surface import all as _all_ops  # noqa: F401  (defines every op)
from tests.each import of_each_op
from tests.graph.evaluation import values_of

SIZE = 3

SOMETIMES_LOOPED = {
    "BiasAdd": "a bias an element, channels first",
    "Conv2D": "a filter an element",
    "Conv2DBackpropInput": "a filter an element",
    "Conv3D": "a filter an element",
    "Conv3DBackpropInputV2": "a filter an element",
    "DepthwiseConv2dNative": "a filter an element",
    "DepthwiseConv2dNativeBackpropInput": "a filter an element",
    "Diag": "of more than a vector",
    "DiagPart": "of more than a matrix",
    "LayerNorm": "a scale an element",
    "OneHot": "values an element",
    "PadV2": "a value an element",
    "ReverseSequence": "sequences along the first axis",
    "SegmentMax": "ids an element",
    "SegmentMean": "ids an element",
    "SegmentMin": "ids an element",
    "SegmentProd": "ids an element",
    "SegmentSum": "ids an element",
    "SoftmaxCrossEntropyWithLogits": "labels that broadcast",
}
"""Ops with a rule that has no way for some inputs, and for which."""


class Looped(Exception):
    """The rule had no way."""


def refuse(*_: Any) -> Any:
    raise Looped


def cases() -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{position}")
        for op in registered_ops().values()
        if has_rule(op) and op.effect is Effect.PURE
        for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    ]


def varied(value: np.ndarray) -> np.ndarray:
    """A batch of values like ``value`` that are valid where it is: in its range, indices in reverse."""
    if value.dtype.kind in "biuO":
        return np.stack([value, value[::-1] if value.ndim else value, value])
    return np.stack([value, value * value.dtype.type(0.75), value * value.dtype.type(0.875)])


def choices(op: OpDef, sample: Sample) -> list[tuple[int, ...]]:
    """Which inputs are batched: all that may be, and each alone."""
    hosts = [
        a.on_host for a, v in zip(op.inputs, sample.inputs, strict=True) for _ in (v if a.is_list else [v])
    ]
    free = [i for i, on_host in enumerate(hosts) if not on_host]
    return list(dict.fromkeys([tuple(free), *[(i,) for i in free]])) if free else []


def template(op: OpDef, sample: Sample, batched: tuple[int, ...]) -> tuple[Operation, list[Any], list[Any]]:
    """The op on placeholders for what is batched and constants for the rest; the placeholders and their
    batches.
    """
    rows, batches, arguments = [], [], []
    position = itertools.count()
    for argument, value in zip(op.inputs, sample.inputs, strict=True):
        tensors = []
        for item in value if argument.is_list else [value]:
            array = np.asarray(item)
            if next(position) in batched:
                tensors.append(tf.placeholder(as_dtype(array.dtype), array.shape))
                rows.append(tensors[-1])
                batches.append(varied(array))
            else:
                tensors.append(tf.constant(array))
        arguments.append(tensors if argument.is_list else tensors[0])
    result = op(*arguments, **sample.attrs)
    first = result[0] if isinstance(result, list) else result
    return first.op, rows, batches


@of_each_op(cases())
def test_a_rule_does_to_a_batch_what_the_op_does_to_each_element(op: OpDef, sample: Sample) -> None:
    for batched in choices(op, sample):
        with tf.Graph().as_default():
            operation, rows, batches = template(op, sample, batched)
            sources = [tf.placeholder(as_dtype(b.dtype), b.shape) for b in batches]
            known = {row: Value(source, True) for row, source in zip(rows, sources, strict=True)}
            batching = Batching(SIZE, known, {operation}, refuse)
            try:
                values = batching(operation.outputs)
            except Looped:
                assert op.name in SOMETIMES_LOOPED
                continue
            found = values_of([v.tensor for v in values], dict(zip(sources, batches, strict=True)))
            each = [
                values_of(list(operation.outputs), {row: b[i] for row, b in zip(rows, batches, strict=True)})
                for i in range(SIZE)
            ]
        for k, (value, result) in enumerate(zip(values, found, strict=True)):
            expected = np.stack([outputs[k] for outputs in each])
            result = np.asarray(result) if value.is_batched else np.stack([result] * SIZE)
            assert result.shape == expected.shape
            assert result.dtype == expected.dtype
            if result.dtype == object:
                assert result.tolist() == expected.tolist()
            else:
                compare(result, expected)


def compare(result: np.ndarray, expected: np.ndarray) -> None:
    close = {2: 2e-2, 4: 1e-4}.get(result.dtype.itemsize, 1e-9)
    if result.dtype.kind in "fcV":
        wide = np.complex128 if result.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(result.astype(wide), expected.astype(wide), rtol=close, atol=close)
    else:
        np.testing.assert_array_equal(result, expected)


def test_what_is_sometimes_looped_has_a_rule() -> None:
    assert all(registered_ops()[name].batch is not None for name in SOMETIMES_LOOPED)
    assert get_default_graph().version == 0
