"""``contrib.learn.io``: input functions of arrays and frames, and features for servers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from flowrt.contrib.feature_columns import infer_real_valued_columns
from flowrt.contrib.learn.arrays import input_fn_of_arrays
from flowrt.estimator import export
from flowrt.estimator import inputs as core
from flowrt.feature_column.columns import Column
from flowrt.graph.construction.graph import Graph
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "InputFnOps", "build_default_serving_input_fn", "build_parsing_serving_input_fn",
    "infer_real_valued_columns_from_input", "infer_real_valued_columns_from_input_fn", "numpy_input_fn",
    "pandas_input_fn",
]  # fmt: skip


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool = True,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], Any]:
    """`estimator.inputs.numpy_input_fn`, which shuffles if not told otherwise."""
    return core.numpy_input_fn(x, y, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool = True,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], Any]:
    """`estimator.inputs.pandas_input_fn`, which shuffles if not told otherwise."""
    return core.pandas_input_fn(
        x, y, batch_size, num_epochs, shuffle, queue_capacity, num_threads, target_column
    )


def infer_real_valued_columns_from_input_fn(input_fn: Callable[[], Any]) -> list[Column]:
    """A `real_valued_column` for each feature that ``input_fn`` gives."""
    with Graph().as_default():
        given = input_fn()
    return infer_real_valued_columns(given[0] if isinstance(given, tuple) else given)


def infer_real_valued_columns_from_input(x: Any) -> list[Column]:
    """A `real_valued_column` named "" for the numbers of ``x``, [examples, features]."""
    dataset = input_fn_of_arrays(x, None, None, shuffle=False, epochs=1)
    return infer_real_valued_columns_from_input_fn(lambda: dataset().make_one_shot_iterator().get_next())


class InputFnOps(NamedTuple):
    """The result of a serving input function: features for the model, None, and the tensors that are fed."""

    features: Any
    labels: Any
    default_inputs: Mapping[str, Any]


def build_parsing_serving_input_fn(
    feature_spec: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], InputFnOps]:
    """See `estimator.export.build_parsing_serving_input_receiver_fn`."""
    return _as_ops(export.build_parsing_serving_input_receiver_fn(feature_spec, default_batch_size))


def build_default_serving_input_fn(
    features: Mapping[str, Any], default_batch_size: int | None = None
) -> Callable[[], InputFnOps]:
    """See `estimator.export.build_raw_serving_input_receiver_fn`."""
    return _as_ops(export.build_raw_serving_input_receiver_fn(features, default_batch_size))


def _as_ops(receiver_fn: Callable[[], Any]) -> Callable[[], InputFnOps]:
    def serving_input_fn() -> InputFnOps:
        features, fed, _ = receiver_fn()
        return InputFnOps(features, None, fed)

    return serving_input_fn


__getattr__ = missing_from("contrib.learn.io")
