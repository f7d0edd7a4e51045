"""The values of a model while it is imported.

an array of NumPy's     known: an initializer, a constant, or what follows from them
a tensor                known when the graph runs
a list                  a sequence
None                    an input that is left out, or an optional without a value
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import OpError, ResourceExhaustedError, UnimplementedError
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.evaluate import evaluate
from flowrt.graph.passes.prepare.prune import extract
from flowrt.onnx.surface import tf

MAX_FOLDED = 100_000
"""Elements: larger results are computed in the graph, where memory is planned."""

MAX_ELEMENTS = 1 << 28
"""Elements of a tensor of which the shape decides what is built: indices and weights of about that size."""

Value = Any


def is_known(value: Value) -> bool:
    """Whether it is there before the model runs; a sequence, if all of its values are."""
    if isinstance(value, list):
        return all(map(is_known, value))
    return value is None or isinstance(value, np.ndarray | np.generic)


class NeedsValueError(UnimplementedError):
    """Building needs to know ``tensor``, or its shape."""

    def __init__(self, message: str, tensor: Any) -> None:
        super().__init__(message)
        self.tensor = tensor


def shape_of(value: Value) -> list[int]:
    """The shape. Raises `NeedsValueError` if a size is known only at run time, and `ResourceExhaustedError`
    for more than `MAX_ELEMENTS`.
    """
    if isinstance(value, np.ndarray | np.generic):
        return list(value.shape)
    shape = value.shape
    if shape.ndims is None or None in shape.as_list():
        raise NeedsValueError(f"{value.op.name}: expected a shape that is known before; got {shape}", value)
    return bounded([int(size) for size in shape.as_list()])


def bounded(shape: list[int]) -> list[int]:
    """``shape``, of at most `MAX_ELEMENTS`; raises `ResourceExhaustedError`."""
    if math.prod(shape) > MAX_ELEMENTS:
        raise ResourceExhaustedError(f"expected a tensor of at most {MAX_ELEMENTS:,} elements; got {shape}")
    return shape


def rank_of(value: Value) -> int:
    """The rank. Raises `NeedsValueError` if it is known only at run time."""
    if isinstance(value, np.ndarray | np.generic):
        return value.ndim
    if value.shape.ndims is None:
        raise NeedsValueError(f"{value.op.name}: expected a rank that is known before", value)
    return int(value.shape.ndims)


def has_static_shape(value: Value) -> bool:
    if isinstance(value, np.ndarray | np.generic):
        return True
    return value.shape.ndims is not None and None not in value.shape.as_list()


def dtype_of(value: Value) -> np.dtype[Any]:
    """The dtype as NumPy has it."""
    return value.dtype if isinstance(value, np.ndarray | np.generic) else value.dtype.np


def ancestors_of(tensor: Any) -> set[str]:
    """The names of all operations that ``tensor`` depends on, those outside of its function included."""
    found: set[str] = set()
    stack = [tensor]
    while stack:
        each = stack.pop()
        if each.op.name not in found:
            found.add(each.op.name)
            stack += each.op.inputs
            if isinstance(each.graph, FuncGraph):
                stack += [outer for outer, inner in each.graph.captures.items() if inner is each]
    return found


def tensor(value: Value) -> Any:
    """The value as a tensor of the same dtype."""
    return tf.constant(value) if isinstance(value, np.ndarray | np.generic) else value


def compute(build: Callable[[], Value]) -> Value:
    """The results of ``build``, which takes only what is known: as arrays, unless they are large or the graph
    needs a session (it draws numbers, or loops); then as tensors of the default graph.
    """
    with tf.Graph() as graph:
        results = build()
        folded = _evaluated(graph, results)
    return build() if folded is _NOT_FOLDED else folded


_NOT_FOLDED = object()


def _evaluated(graph: Any, results: Value) -> Value:
    tensors = _tensors(results)
    if any(has_static_shape(each) and _elements(each) > MAX_FOLDED for each in tensors):
        return _NOT_FOLDED
    try:
        found = iter(evaluate(extract(graph, tensors, [], {}), {}))
    except OpError:
        return _NOT_FOLDED  # it needs a session, or fails when the model runs, with its own message
    return _replaced(results, found)


def _tensors(results: Value) -> list[Any]:
    if isinstance(results, list | tuple):
        return [each for part in results for each in _tensors(part)]
    return [] if results is None or is_known(results) else [results]


def _replaced(results: Value, values: Any) -> Value:
    if isinstance(results, list | tuple):
        return type(results)(_replaced(part, values) for part in results)
    return results if results is None or is_known(results) else array_from(next(values))


def array_from(result: Any) -> Any:
    """The result of a run as an array: a string alone comes as bytes, of which NumPy would drop zeros."""
    return np.array(result, object) if isinstance(result, bytes) else np.asarray(result)


def _elements(value: Value) -> int:
    return int(np.prod(shape_of(value), dtype=np.int64))


def axis_of(axis: int, rank: int) -> int:
    """``axis`` counted from the front."""
    return axis + rank if axis < 0 else axis


def axes_of(axes: Sequence[int], rank: int) -> list[int]:
    return [axis_of(int(axis), rank) for axis in axes]
