"""Batches of arrays for ``contrib.learn``, in the order in which TensorFlow's estimators read them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flowrt.base.structure import flatten, map_structure
from flowrt.data import Dataset
from flowrt.errors import InvalidArgumentError
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse

_SEED = 42
"""TensorFlow shuffles arrays with this seed, the same order in each program."""


def input_fn_of_arrays(
    x: Any, y: Any, batch_size: int | None, shuffle: bool, epochs: int | None
) -> Callable[[], Dataset]:
    """A function that gives ``epochs`` passes (None: without end) over ``x`` and ``y``, arrays, frames or
    dicts of arrays, in batches of ``batch_size`` (None: all); the last one of a pass may be smaller.

    Features of one number are [batch, 1]; labels of one number are [batch]. Raises `InvalidArgumentError`
    for a batch size below 1, arrays of different lengths, and without ``x``.
    """
    if x is None:
        raise misuse("expected x, or input_fn; got neither", InvalidArgumentError)
    if batch_size is not None and batch_size < 1:
        raise misuse(f"batch_size: expected at least 1; got {batch_size}", InvalidArgumentError)
    data = map_structure(_in_columns, x)
    if y is not None:
        data = (data, map_structure(_in_rows, y))
    lengths = {len(array) for array in flatten(data)}
    if len(lengths) != 1:
        raise misuse(f"x and y: expected arrays of one length; got {sorted(lengths)}", InvalidArgumentError)
    (count,) = lengths
    size = batch_size or count

    def batches() -> Iterator[Any]:
        random = np.random.RandomState(_SEED)
        done = 0
        while epochs is None or done < epochs:
            order = random.permutation(count) if shuffle else np.arange(count)
            for start in range(0, count, size):
                yield map_structure(operator.itemgetter(order[start : start + size]), data)
            done += 1

    def input_fn() -> Dataset:
        types = map_structure(operator.attrgetter("dtype"), data)
        shapes = map_structure(lambda array: TensorShape([None, *array.shape[1:]]), data)
        return Dataset.from_generator(batches, types, shapes)

    return input_fn


def _in_columns(values: Any) -> Any:
    array = np.asarray(values)
    return array.reshape(-1, 1) if array.ndim == 1 else array


def _in_rows(values: Any) -> Any:
    array = np.asarray(values)
    return array.reshape(len(array), *array.shape[2:]) if array.ndim > 1 and array.shape[1] == 1 else array
