"""Layers of `contrib.layers` that few programs use: normalization by groups, to length 1; maxout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.contrib.framework import add_arg_scope
from flowrt.contrib.named_outputs import collect_named_outputs, get_variable_collections
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.gather_scatter import gather_nd
from flowrt.graph.ops.array.reductions import reduce_max, reduce_sum
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.comparison import not_equal, where
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.ops.nn.moments import batch_normalization as normalize
from flowrt.graph.ops.nn.moments import moments
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.initializers import Ones, Zeros
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys
from flowrt.variables.variable_scope import variable_scope


def _sizes(inputs: Tensor) -> list[Any]:
    """The size of each axis, an integer where it is known."""
    return [shape(inputs)[i] if size is None else size for i, size in enumerate(inputs.shape.as_list())]


def _of(inputs: Tensor) -> str:
    return f"inputs of shape {inputs.shape}"


@add_arg_scope
def group_norm(
    inputs: Any, groups: int = 32, channels_axis: int = -1, reduction_axes: Sequence[int] = (-3, -2),
    center: bool = True, scale: bool = True, epsilon: float = 1e-6, activation_fn: Any = None,
    param_initializers: Any = None, reuse: Any = None, variables_collections: Any = None,
    outputs_collections: Any = None, trainable: bool = True, scope: Any = None,
    mean_close_to_zero: bool = False,
) -> Tensor:  # fmt: skip
    """Each group of channels of each image normalized by its mean and deviation over ``reduction_axes``,
    times ``gamma``, plus ``beta``.

    Y. Wu and K. He, Group Normalization (2018). Variances are computed around the mean whatever
    ``mean_close_to_zero``. Raises `InvalidArgumentError` for channels that are no multiple of ``groups``,
    and axes that are of unknown size or both reduced and the channels.
    """
    inputs = convert_to_tensor(inputs)
    rank = inputs.shape.ndims
    if rank is None or not all(-rank <= axis < rank for axis in (channels_axis, *reduction_axes)):
        raise misuse(
            f"group_norm: expected axes {channels_axis} and {list(reduction_axes)}; got {_of(inputs)}"
        )
    at, reduced = channels_axis % rank, [axis % rank for axis in reduction_axes]
    channels = inputs.shape.as_list()[at]
    if at in reduced or None in [inputs.shape.as_list()[axis] for axis in (at, *reduced)]:
        raise misuse(f"group_norm: expected channels and other axes of known sizes; got {_of(inputs)}")
    if channels % groups:
        raise misuse(f"group_norm: expected a multiple of {groups} channels; got {channels}")
    sizes, each = _sizes(inputs), channels // groups
    grouped = reshape(inputs, stack([*sizes[:at], groups, each, *sizes[at + 1 :]]))
    axes = [at + 1, *(axis + (axis > at) for axis in reduced)]
    initializers = {"beta": Zeros(), "gamma": Ones(), **(param_initializers or {})}
    with variable_scope(scope, "GroupNorm", [inputs], reuse=reuse):
        made: dict[str, Any] = {"beta": None, "gamma": None}
        for name, is_there in (("beta", center), ("gamma", scale)):
            if is_there:
                keys = [
                    GraphKeys.GLOBAL_VARIABLES,
                    GraphKeys.MODEL_VARIABLES,
                    *get_variable_collections(variables_collections, name),
                ]
                own = get_variable(name, [channels], inputs.dtype, initializers[name], None, trainable, keys)
                made[name] = reshape(own, [1] * at + [groups, each] + [1] * (rank - at - 1))
        mean, variance = moments(grouped, axes, keepdims=True)
        outputs = normalize(grouped, mean, variance, made["beta"], made["gamma"], epsilon)
        outputs = reshape(outputs, stack(sizes))
        outputs.set_shape(inputs.shape)
        outputs = outputs if activation_fn is None else activation_fn(outputs)
        return collect_named_outputs(outputs_collections, get_default_graph().get_name_scope(), outputs)


@add_arg_scope
def unit_norm(inputs: Any, dim: int, epsilon: float = 1e-7, scope: Any = None) -> Tensor:
    """The inputs divided by their length along the axis ``dim``, the root of ``epsilon`` plus the squares.

    Raises `InvalidArgumentError` unless the inputs have an axis ``dim``, counted from the first.
    """
    inputs = convert_to_tensor(inputs)
    if inputs.shape.ndims is None or not 0 <= dim < inputs.shape.ndims:
        raise misuse(f"unit_norm: expected inputs with an axis {dim}; got {_of(inputs)}")
    with variable_scope(scope, "UnitNorm", [inputs]):
        return inputs / sqrt(epsilon + reduce_sum(square(inputs), dim, keepdims=True))


@add_arg_scope
def maxout(inputs: Any, num_units: int, axis: int = -1, scope: Any = None) -> Tensor:
    """The largest of each ``size / num_units`` consecutive elements along ``axis``.

    I. Goodfellow et al., Maxout Networks (2013). Raises `InvalidArgumentError` unless the size of the axis is
    a multiple of ``num_units``.
    """
    inputs = convert_to_tensor(inputs)
    with variable_scope(scope, "MaxOut", [inputs]):
        rank = inputs.shape.ndims
        features = inputs.shape.as_list()[axis] if rank is not None and -rank <= axis < rank else None
        if features is None or features % num_units:
            raise misuse(f"maxout: expected a multiple of {num_units} along axis {axis}; got {_of(inputs)}")
        sizes = _sizes(inputs)
        sizes[axis] = num_units
        return reduce_max(reshape(inputs, stack([*sizes, features // num_units])), -1)


@add_arg_scope
def dense_to_sparse(
    tensor: NumericLike, eos_token: Any = 0, outputs_collections: Any = None, scope: Any = None
) -> SparseTensor:
    """The elements of ``tensor`` other than ``eos_token``, and their places."""
    with variable_scope(scope, "dense_to_sparse", [tensor]):
        given = convert_to_tensor(tensor)
        places = where(not_equal(given, convert_to_tensor(eos_token, given.dtype)))
        found: Any = SparseTensor(places, gather_nd(given, places), shape(given, out_type="int64"))
        graph = get_default_graph()
        collect_named_outputs(outputs_collections, graph.get_name_scope(), found)
        return found
