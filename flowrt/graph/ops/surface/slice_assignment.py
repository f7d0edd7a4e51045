"""Slices of variables that set what they are slices of: ``variable[2:5].assign(value)``.

The variable is read when it is assigned, and written whole: a pair of operations that steps keep in order.
"""

from __future__ import annotations

import functools
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.slicing import strided_slice_grad, strided_slice_op
from flowrt.graph.ops.base.filling import fill
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.comparison import select_v2
from flowrt.graph.ops.state.variable_ops import assign_variable_op, read_variable_op
from flowrt.graph.shapes import compatible
from flowrt.graph.source import misuse


def assignment(part: Tensor) -> Any:
    """The method ``assign(value)`` of a slice of a variable, which returns the variable's new value.

    Raises ``AttributeError`` for any other tensor: ``hasattr`` tells them apart.
    """
    op = part.op
    if op.op_def is not strided_slice_op or not op.inputs[0].op.op_def.reads_variable:
        raise AttributeError("'Tensor' object has no attribute 'assign': expected a slice of a variable")
    return functools.partial(_assign, part)


def _assign(part: Tensor, value: Any, name: str | None = None) -> Tensor:
    cut, read = part.op, part.op.inputs[0].op
    given = convert_to_tensor(value, part.dtype)
    if not compatible(given.spec.shape, part.spec.shape):
        raise misuse(f"assign: expected shape {part.shape}, the slice's; got {given.shape}")
    with part.graph.name_scope(name or "strided_slice_assign"), part.graph.device(read.device):
        handle = read.inputs[0]
        now = read_variable_op(handle, dtype=part.dtype)

        def placed(values: Tensor) -> Tensor:
            return strided_slice_grad(shape(now), *cut.inputs[1:], values, **masks)

        masks = {key: cut.get_attr(key) for key in strided_slice_grad.positional_attrs()}
        changed = select_v2(placed(fill(shape(part), True)), placed(given), now)
        written = assign_variable_op(handle, changed)
        with part.graph.control_dependencies([written]):
            return read_variable_op(handle, dtype=part.dtype)
