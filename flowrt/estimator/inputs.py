"""Input functions of arrays, for `Estimator`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrt.data import Dataset
from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.tf1.missing_names import missing_from

__all__ = ["numpy_input_fn", "pandas_input_fn"]


def numpy_input_fn(
    x: NumericLike,
    y: NumericLike | None = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """A function that gives batches of ``x``, an array or a dict of them, and of ``y``, likewise, as tensors:
    features, or features and labels. ``num_epochs`` None means without end. ``shuffle`` has to be said;
    ``queue_capacity`` and ``num_threads`` are accepted.

    Raises `InvalidArgumentError` for arrays of different lengths.
    """
    if not isinstance(shuffle, bool):
        raise misuse(
            f"numpy_input_fn: expected shuffle to be True or False; got {shuffle!r}", InvalidArgumentError
        )
    parts = [x] if y is None else [x, y]
    arrays = [_as_arrays(part) for part in parts]
    lengths = {
        len(array) for part in arrays for array in (part.values() if isinstance(part, dict) else [part])
    }
    if len(lengths) != 1:
        raise misuse(
            f"numpy_input_fn: expected arrays of one length; got {sorted(lengths)}", InvalidArgumentError
        )

    def input_fn() -> Any:
        dataset = Dataset.from_tensor_slices(arrays[0] if y is None else tuple(arrays))
        dataset = dataset.shuffle(max(lengths)) if shuffle else dataset
        return dataset.repeat(num_epochs).batch(batch_size).make_one_shot_iterator().get_next()

    return input_fn


def _as_arrays(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {name: np.asarray(values) for name, values in part.items()}
    return np.asarray(part)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """The same as `numpy_input_fn` for the columns of a data frame; ``y`` is a series or another frame."""
    columns = {name: x[name].to_numpy() for name in x.columns}
    frame = y is not None and hasattr(y, "columns")
    labels = (
        {name: y[name].to_numpy() for name in y.columns} if frame else None if y is None else y.to_numpy()
    )
    return numpy_input_fn(columns, labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


__getattr__ = missing_from("estimator.inputs")
