"""``flowrt.keras.backend``: flowrt's operations under Keras's names, with Keras's arguments; sessions, values
and the learning phase.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes, nn
from flowrt.control_flow.branches import cond
from flowrt.functions.functional_ops import foldl, foldr, map_fn
from flowrt.graph.construction import constant as constants
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.derivatives import gradients as derivatives
from flowrt.graph.ops.array import concat_and_split, padding, ranges, reductions, scans, statistics
from flowrt.graph.ops.array import tile_and_reverse as tiling
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.base import filling, identities
from flowrt.graph.ops.base import shape_manipulation as shapes
from flowrt.graph.ops.base.identities import stop_gradient
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise import arithmetic, comparison, math
from flowrt.graph.ops.elementwise.complex_parts import abs
from flowrt.graph.ops.nn import conv_functions, pooling
from flowrt.graph.ops.nn import moments as statistics_of
from flowrt.graph.ops.nn.bias import bias_add as nn_bias_add
from flowrt.graph.ops.nn.bias import dropout as nn_dropout
from flowrt.graph.ops.random import random_ops
from flowrt.graph.ops.text.python_calls import print_
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.typing import DataFormat, PaddingName
from flowrt.image.resizing import resize_bilinear, resize_nearest_neighbor
from flowrt.keras import losses
from flowrt.keras.activations import elu, hard_sigmoid, relu, sigmoid, softmax, softplus, softsign, tanh
from flowrt.keras.engine.nodes import history_of
from flowrt.keras.layers.convolutional import repeat_elements
from flowrt.keras.layers.local import local_conv1d, local_conv2d
from flowrt.keras.layers.products import batch_dot, batch_flatten, dot
from flowrt.keras.layers.recurrence import rnn
from flowrt.keras.network_functions import (
    batch_normalization,
    bias_add,
    binary_crossentropy,
    categorical_crossentropy,
    conv1d,
    conv2d,
    conv2d_transpose,
    conv3d,
    conv3d_transpose,
    ctc_batch_cost,
    ctc_decode,
    ctc_label_dense_to_sparse,
    depthwise_conv2d,
    dropout,
    in_top_k,
    normalize_batch_in_training,
    pool2d,
    pool3d,
    resize_images,
    separable_conv2d,
    sparse_categorical_crossentropy,
    spatial_2d_padding,
    spatial_3d_padding,
    temporal_padding,
    to_dense,
)
from flowrt.keras.state.graph_state import get_uid, reset_uids, tracked
from flowrt.keras.state.seeds import op_seed
from flowrt.keras.state.sessions import (
    batch_get_value,
    batch_set_value,
    clear_session,
    eval,
    function,
    get_session,
    get_value,
    learning_phase,
    learning_phase_scope,
    set_learning_phase,
    set_session,
    set_value,
)
from flowrt.keras.state.settings import (
    epsilon,
    floatx,
    image_data_format,
    set_epsilon,
    set_floatx,
    set_image_data_format,
)
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.graph_scopes import name_scope
from flowrt.variables.variable import Variable

__getattr__ = missing_from("keras.backend")

# --- tensors


def backend() -> str:
    """The name under which programs know this backend."""
    return "tensorflow"


def cast_to_floatx(x: Any) -> Any:
    """An array, or tensor, of the dtype `floatx`."""
    return cast(x, floatx()) if isinstance(x, (Tensor, Variable)) else np.asarray(x, floatx())


def variable(value: Any, dtype: Any = None, name: str | None = None, constraint: Any = None) -> Variable:
    """A variable that `get_session` initializes."""
    element = dtypes.as_dtype(dtype or floatx())
    initial = value if isinstance(value, Tensor) else np.asarray(value, element.as_numpy_dtype)
    return tracked(Variable(initial, name=name, dtype=element, constraint=constraint))


def constant(value: Any, dtype: Any = None, shape: Any = None, name: str | None = None) -> Tensor:
    return constants.constant(value, dtype or floatx(), shape, name or "Const")


def placeholder(
    shape: Any = None,
    ndim: int | None = None,
    dtype: Any = None,
    sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """A tensor to feed, of this shape or this number of unknown dimensions."""
    dims = [None] * ndim if shape is None and ndim else shape
    return constants.placeholder(dtype or floatx(), dims, name=name)


def is_placeholder(x: Any) -> bool:
    return isinstance(x, Tensor) and x.op.type == "Placeholder"


def is_keras_tensor(x: Any) -> bool:
    """Whether a layer made ``x``. Raises `InvalidArgumentError` for what is no tensor."""
    if not is_tensor(x):
        raise misuse(f"is_keras_tensor: expected a tensor; got {x!r}")
    return isinstance(x, Tensor) and history_of(x) is not None


def is_tensor(x: Any) -> bool:
    return isinstance(x, (Tensor, Variable))


def is_sparse(tensor: Any) -> bool:
    return isinstance(tensor, SparseTensor)


def shape(x: Any) -> Tensor:
    return shapes.shape(x)


def int_shape(x: Any) -> tuple[int | None, ...] | None:
    """The static shape, or None if even the rank is unknown."""
    dims = x.shape if isinstance(x.shape, TensorShape) else TensorShape(x.shape)
    return None if dims.ndims is None else tuple(dims.as_list())


def ndim(x: Any) -> int | None:
    return x.shape.ndims if isinstance(x.shape, TensorShape) else len(x.shape)


def dtype(x: Any) -> str:
    return dtypes.as_dtype(x.dtype).name


def count_params(x: Any) -> int:
    return int(np.prod(x.shape.as_list()))


def cast(x: Any, dtype: Any) -> Tensor:
    return identities.cast(x, dtypes.as_dtype(dtype))


def identity(x: Any, name: str | None = None) -> Tensor:
    return identities.identity(x, name=name)


def zeros(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of zeros; a tensor if the shape is not static."""
    return _filled(np.zeros, filling.zeros, shape, dtype, name)


def ones(shape: Any, dtype: Any = None, name: str | None = None) -> Any:
    """A variable of ones; a tensor if the shape is not static."""
    return _filled(np.ones, filling.ones, shape, dtype, name)


def _filled(array: Any, tensor: Any, size: Any, dtype: Any, name: str | None) -> Any:
    known = None if isinstance(size, Tensor) else [getattr(n, "value", n) for n in size]
    if known is not None and {type(n) for n in known} <= {int, np.int32, np.int64}:
        return variable(array(known), dtype, name)
    return tensor(size, dtypes.as_dtype(dtype or floatx()))


def eye(size: int, dtype: Any = None, name: str | None = None) -> Variable:
    return variable(np.eye(size), dtype, name)


def zeros_like(x: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    return filling.zeros_like(x, dtype)


def ones_like(x: Any, dtype: Any = None, name: str | None = None) -> Tensor:
    return filling.ones_like(x, dtype)


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = "int32") -> Tensor:
    found = ranges.range(start, delta=step) if stop is None else ranges.range(start, stop, step)
    return cast(found, dtype)


def random_uniform_variable(
    shape: Any, low: float, high: float, dtype: Any = None, name: str | None = None, seed: Any = None
) -> Variable:
    return variable(np.random.RandomState(seed).uniform(low, high, shape), dtype, name)


def random_normal_variable(
    shape: Any, mean: float, scale: float, dtype: Any = None, name: str | None = None, seed: Any = None
) -> Variable:
    return variable(np.random.RandomState(seed).normal(mean, scale, shape), dtype, name)


def random_uniform(
    shape: Any, minval: float = 0.0, maxval: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    return random_ops.random_uniform(shape, minval, maxval, dtypes.as_dtype(dtype or floatx()), op_seed(seed))


def random_normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    return random_ops.random_normal(shape, mean, stddev, dtypes.as_dtype(dtype or floatx()), op_seed(seed))


def truncated_normal(
    shape: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = None, seed: Any = None
) -> Tensor:
    return random_ops.truncated_normal(shape, mean, stddev, dtypes.as_dtype(dtype or floatx()), op_seed(seed))


def random_binomial(shape: Any, p: float = 0.0, dtype: Any = None, seed: Any = None) -> Tensor:
    """Ones with the probability ``p``, else zeros."""
    return cast(
        comparison.less_equal(random_ops.random_uniform(shape, seed=op_seed(seed)), p), dtype or floatx()
    )


# --- updates


def update(x: Variable, new_x: Any) -> Any:
    return x.assign(new_x)


def update_add(x: Variable, increment: Any) -> Any:
    return x.assign_add(increment)


def update_sub(x: Variable, decrement: Any) -> Any:
    return x.assign_sub(decrement)


def moving_average_update(x: Variable, value: Any, momentum: Any) -> Any:
    """Move ``x`` towards ``value`` by the share ``1 - momentum``."""
    return x.assign_sub(arithmetic.multiply(arithmetic.subtract(x.read_value(), value), 1.0 - momentum))


# --- shapes


def reshape(x: Any, shape: Any) -> Tensor:
    return shapes.reshape(
        x, [-1 if n is None else n for n in shape] if isinstance(shape, (list, tuple)) else shape
    )


def expand_dims(x: Any, axis: int = -1) -> Tensor:
    return shapes.expand_dims(x, axis)


def squeeze(x: Any, axis: Any) -> Tensor:
    return shapes.squeeze(x, [axis])


def flatten(x: Any) -> Tensor:
    return shapes.reshape(x, [-1])


def transpose(x: Any) -> Tensor:
    return shapes.transpose(x)


def permute_dimensions(x: Any, pattern: Sequence[int]) -> Tensor:
    return shapes.transpose(x, list(pattern))


def concatenate(tensors: Sequence[Any], axis: int = -1) -> Tensor:
    return concat_and_split.concat(list(tensors), axis)


def stack(x: Sequence[Any], axis: int = 0) -> Tensor:
    return concat_and_split.stack(list(x), axis)


def repeat(x: Any, n: int) -> Tensor:
    """``[batch, features]`` as ``[batch, n, features]``."""
    return tiling.tile(shapes.expand_dims(x, 1), [1, n, 1])


def tile(x: Any, n: Any) -> Tensor:
    return tiling.tile(x, [n] if isinstance(n, int) else n)


def reverse(x: Any, axes: Any) -> Tensor:
    return tiling.reverse_v2(x, [axes] if isinstance(axes, int) else list(axes))


def slice(x: Any, start: Any, size: Any) -> Any:
    index = tuple(
        np.s_[begin:] if n == -1 else np.s_[begin : begin + n] for begin, n in zip(start, size, strict=True)
    )
    return convert_to_tensor(x)[index]


def one_hot(indices: Any, num_classes: int) -> Tensor:
    return ranges.one_hot(indices, num_classes)


def resize_volumes(
    x: Any, depth_factor: int, height_factor: int, width_factor: int, data_format: str
) -> Tensor:
    """Volumes times whole factors."""
    first = 2 if data_format == "channels_first" else 1
    for axis, factor in enumerate((depth_factor, height_factor, width_factor), first):
        x = repeat_elements(x, factor, axis)
    return x


# --- numbers


def _axes(axis: Any) -> Any:
    return list(axis) if isinstance(axis, (list, tuple)) else axis


def _as_floats(x: Any) -> Any:
    x = convert_to_tensor(x)
    return cast(x, floatx()) if x.dtype.is_bool else x


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_sum(x, _axes(axis), keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_prod(x, _axes(axis), keepdims)


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean; of bools the share that is true."""
    return reductions.reduce_mean(_as_floats(x), _axes(axis), keepdims)


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_max(x, _axes(axis), keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_min(x, _axes(axis), keepdims)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_any(cast(x, "bool"), _axes(axis), keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return reductions.reduce_all(cast(x, "bool"), _axes(axis), keepdims)


def var(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    x = _as_floats(x)
    return mean(math.square(arithmetic.subtract(x, mean(x, axis, True))), axis, keepdims)


def std(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return math.sqrt(var(x, axis, keepdims))


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Tensor:
    return statistics.reduce_logsumexp(x, _axes(axis), keepdims)


def cumsum(x: Any, axis: int = 0) -> Tensor:
    return scans.cumsum(x, axis)


def cumprod(x: Any, axis: int = 0) -> Tensor:
    return scans.cumprod(x, axis)


def argmax(x: Any, axis: int = -1) -> Tensor:
    return statistics.argmax(x, axis)


def argmin(x: Any, axis: int = -1) -> Tensor:
    return statistics.argmin(x, axis)


def square(x: Any) -> Tensor:
    return math.square(x)


def sqrt(x: Any) -> Tensor:
    """The root; 0 for negative numbers."""
    return math.sqrt(arithmetic.maximum(x, cast(0.0, convert_to_tensor(x).dtype)))


def exp(x: Any) -> Tensor:
    return math.exp(x)


def log(x: Any) -> Tensor:
    return math.log(x)


def round(x: Any) -> Tensor:
    return math.round(x)


def sign(x: Any) -> Tensor:
    return math.sign(x)


def pow(x: Any, a: Any) -> Tensor:
    return arithmetic.pow(x, a)


def sin(x: Any) -> Tensor:
    return math.sin(x)


def cos(x: Any) -> Tensor:
    return math.cos(x)


def clip(x: Any, min_value: Any, max_value: Any) -> Tensor:
    """``x`` in a range; the upper end is at least the lower one."""
    if isinstance(max_value, (int, float)) and isinstance(min_value, (int, float)):
        max_value = min_value if max_value < min_value else max_value
    low = -np.inf if min_value is None else min_value
    return arithmetic.clip_by_value(x, low, np.inf if max_value is None else max_value)


def equal(x: Any, y: Any) -> Tensor:
    return comparison.equal(x, y)


def not_equal(x: Any, y: Any) -> Tensor:
    return comparison.not_equal(x, y)


def greater(x: Any, y: Any) -> Tensor:
    return comparison.greater(x, y)


def greater_equal(x: Any, y: Any) -> Tensor:
    return comparison.greater_equal(x, y)


def less(x: Any, y: Any) -> Tensor:
    return comparison.less(x, y)


def less_equal(x: Any, y: Any) -> Tensor:
    return comparison.less_equal(x, y)


def maximum(x: Any, y: Any) -> Tensor:
    return arithmetic.maximum(x, y)


def minimum(x: Any, y: Any) -> Tensor:
    return arithmetic.minimum(x, y)


def l2_normalize(x: Any, axis: Any = None) -> Tensor:
    return statistics_of.l2_normalize(x, axis)


def gradients(loss: Any, variables: Any) -> list[Any]:
    return derivatives.gradients(loss, variables)


def print_tensor(x: Any, message: str = "") -> Any:
    """``x``, printed after ``message`` to the standard output whenever it is evaluated."""
    with get_default_graph().control_dependencies([print_(message, x, output_stream=sys.stdout)]):
        return identity(x)


# --- choices


def switch(condition: Any, then_expression: Any, else_expression: Any) -> Any:
    """One of two tensors or functions without arguments, by a scalar; or element by element."""
    condition = cast(condition, "bool")
    if condition.shape.ndims == 0:
        functions = [
            e if callable(e) else (lambda e=e: identities.identity(e))
            for e in (then_expression, else_expression)
        ]
        return cond(condition, functions[0], functions[1])
    then, other = (convert_to_tensor(e() if callable(e) else e) for e in (then_expression, else_expression))
    for _ in range((then.shape.ndims or 0) - (condition.shape.ndims or 0)):
        condition = shapes.expand_dims(condition, -1)
    return comparison.where_v2(condition, then, other)


def in_train_phase(x: Any, alt: Any, training: Any = None) -> Any:
    """``x`` in training, else ``alt``: tensors, or functions without arguments."""
    training = learning_phase() if training is None else training
    if isinstance(training, (bool, int, np.integer)):
        chosen = x if training else alt
        return chosen() if callable(chosen) else chosen
    return switch(training, x, alt)


def in_test_phase(x: Any, alt: Any, training: Any = None) -> Any:
    return in_train_phase(alt, x, training)


def get_graph() -> Any:
    return get_default_graph()
