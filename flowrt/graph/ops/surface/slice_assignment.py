"""Slices of variables that set what they are slices of: ``variable[2:5].assign(value)``.

The slice is written in place, under the variable's lock: threads that set other parts of it lose nothing.
"""

from __future__ import annotations

import functools
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.slicing import strided_slice_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_strided_slice_assign
from flowrt.graph.shapes import Shape, broadcast, compatible
from flowrt.graph.source import misuse


def assignment(part: Tensor) -> Any:
    """The method ``assign(value)`` of a slice of a variable, which returns the variable's new value. A value
    of fewer dimensions, or with some of length 1, is broadcast to the slice.

    Raises ``AttributeError`` for any other tensor: ``hasattr`` tells them apart.
    """
    op = part.op
    if op.op_def is not strided_slice_op or not op.inputs[0].op.op_def.reads_variable:
        raise AttributeError("'Tensor' object has no attribute 'assign': expected a slice of a variable")
    return functools.partial(_assign, part)


def _assign(part: Tensor, value: Any, name: str | None = None) -> Tensor:
    cut, read = part.op, part.op.inputs[0].op
    given = convert_to_tensor(value, part.dtype)
    if not _fits(given.spec.shape, part.spec.shape):
        raise misuse(f"assign: expected shape {part.shape}, the slice's; got {given.shape}")
    masks = {key: cut.get_attr(key) for key in resource_strided_slice_assign.positional_attrs()}
    with part.graph.name_scope(name or "strided_slice_assign"), part.graph.device(read.device):
        written = resource_strided_slice_assign(read.inputs[0], *cut.inputs[1:], given, **masks)
        with part.graph.control_dependencies([written]):
            return read_variable_op(read.inputs[0], dtype=part.dtype)


def _fits(given: Shape, part: Shape) -> bool:
    """Whether a value may be broadcast to a slice, as far as their shapes are known."""
    try:
        return compatible(broadcast(given, part), part)
    except InvalidArgumentError:
        return False
