"""Training that goes on from a model: initializers as variables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from flowrt.dtypes import FLOATING, as_dtype
from flowrt.errors import InvalidArgumentError, nearest
from flowrt.onnx.proto import array_of
from flowrt.onnx.surface import tf
from flowrt.onnx.values import NeedsValueError, Value, ancestors_of, is_known

Build = Callable[[Mapping[str, Value]], Any]
"""A function that builds the model with these values instead of some initializers."""


def trainable_variables(
    model: Any, inputs: Mapping[str, Value], names: Collection[str] | Literal[True], build: Build
) -> dict[str, Value]:
    """A variable of the default graph for each of the initializers ``names``, True being all that can be one;
    the values by name. Raises `InvalidArgumentError` for a name that is no float initializer.
    """
    floats = {each.name: each for each in model.graph.initializer if _is_float(each)}
    for name in () if names is True else names:
        if name not in floats:
            raise InvalidArgumentError(
                f"trainable: expected initializers of floats; got {name!r}.{nearest(name, floats)}"
            )
    left = set(floats) - _statistics(model) - set(inputs) if names is True else set(names)
    arrays = {name: array_of(each) for name, each in floats.items() if name in left}
    for name in _say_how(arrays, inputs, build) if names is True else ():
        del arrays[name]
    return {name: tf.Variable(array, name=as_name(name)) for name, array in arrays.items()}


def _is_float(tensor: Any) -> bool:
    dtype = array_of(tensor).dtype
    return dtype.kind != "O" and as_dtype(dtype) in FLOATING


def _statistics(model: Any) -> set[str]:
    """The means and variances of batch normalizations, which are averages and no weights."""
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    return {name for node in norms for name in node.input[3:]}


def _say_how(arrays: Mapping[str, Any], inputs: Mapping[str, Value], build: Build) -> set[str]:
    """The names of those that building needs to know: found by building aside without them."""
    needed: set[str] = set()
    while True:
        with tf.Graph().as_default():
            asked = {
                name: tf.placeholder(as_dtype(array.dtype), array.shape)
                for name, array in arrays.items()
                if name not in needed
            }
            aside = {name: _alike(value) for name, value in inputs.items()}
            try:
                build({**asked, **aside})
            except NeedsValueError as error:
                above = ancestors_of(error.tensor)
                found = {name for name, value in asked.items() if value.op.name in above}
                if not found:
                    raise
                needed |= found
            else:
                return needed


def _alike(value: Value) -> Value:
    """A placeholder for a tensor of another graph."""
    if isinstance(value, list):
        return [_alike(each) for each in value]
    return value if is_known(value) else tf.placeholder(value.dtype, value.shape)


def as_name(name: str) -> str:
    """``name`` without what the name of an operation may not have."""
    return re.sub(r"[^A-Za-z0-9_.\\/-]", "_", name).lstrip("_/-\\") or "initializer"
