"""Numbers rounded to the values that a quantized tensor could have: `FakeQuantWithMinMaxArgs` and its kin.

The range is moved so that 0 is one of the values. Gradients pass where the input is inside the range, and
everywhere while both of its ends are 0: variables that have no range yet do not stop training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import all_delivered, delivered
from flowrt.graph.shapes import Shape, format_shape

__all__ = [
    "fake_quant_with_min_max_args", "fake_quant_with_min_max_args_gradient", "fake_quant_with_min_max_vars",
    "fake_quant_with_min_max_vars_gradient", "fake_quant_with_min_max_vars_per_channel",
    "fake_quant_with_min_max_vars_per_channel_gradient",
]  # fmt: skip

_ATTRS = "num_bits: int = 8, narrow_range: bool = False"


def _steps(xp: Any, low: Any, high: Any, num_bits: int, narrow_range: bool) -> tuple[Any, Any, Any]:
    """The ends of the range as it is moved, and the distance of two values, in float32."""
    if not 2 <= num_bits <= 16:
        raise InvalidArgumentError(f"num_bits: expected 2 to 16; got {num_bits}")
    first, last = np.float32(narrow_range), np.float32(2**num_bits - 1)
    low, high = (xp.asarray(v, dtype=np.float32) for v in (low, high))
    scale = (high - low) / (last - first)
    safe = xp.where(scale == 0, np.float32(1), scale)
    zero = xp.clip(first - low / safe, first, last)
    zero = xp.floor(zero + np.float32(0.5))
    return (first - zero) * scale, (last - zero) * scale, scale


def _quantized(
    xp: Any, inputs: Any, low: Any, high: Any, num_bits: int, narrow_range: bool, out: Any = None
) -> Any:
    begin, end, scale = _steps(xp, low, high, num_bits, narrow_range)
    safe = xp.where(scale == 0, np.float32(1), scale)
    inside = xp.clip(inputs, begin, end)
    made = xp.floor((inside - begin) * (np.float32(1) / safe) + np.float32(0.5)) * scale + begin
    return delivered(xp, made, np.float32, out)


def _passing(
    xp: Any, gradients: Any, inputs: Any, low: Any, high: Any, num_bits: int, narrow_range: bool, axes: Any
) -> list[Any]:
    """The gradients of the inputs, and of the ends of the range: of what is cut off."""
    begin, end, _ = _steps(xp, low, high, num_bits, narrow_range)
    is_range = (xp.asarray(low) != 0) | (xp.asarray(high) != 0)
    below, above = (inputs < begin) & is_range, (inputs > end) & is_range
    zero = np.float32(0)
    return [
        xp.where(below | above, zero, gradients),
        xp.where(below, gradients, zero).sum(axis=axes),
        xp.where(above, gradients, zero).sum(axis=axes),
    ]


def _attrs_of(op: Any) -> dict[str, Any]:
    return {key: op.get_attr(key) for key in ("num_bits", "narrow_range")}


# --- a range that attributes say

_ENDS = "min: float = -6.0, max: float = 6.0"


def _args_shape(s: ShapeContext) -> Sequence[Shape]:
    low, high = s.attrs["min"], s.attrs["max"]
    if not low < high:
        raise InvalidArgumentError(f"min: expected less than max; got min={low}, max={high}")
    return unchanged(s)


fake_quant_with_min_max_args_gradient: OpDef[Tensor] = define_op(
    "FakeQuantWithMinMaxArgsGradient",
    "gradients: float32, inputs: float32 -> backprops: float32",
    attrs=f"{_ENDS}, {_ATTRS}",
    shape=_args_shape,
    kernel=lambda xp, gradients, inputs, min, max, num_bits, narrow_range, out=None: delivered(
        xp, _passing(xp, gradients, inputs, min, max, num_bits, narrow_range, None)[0], np.float32, out
    ),
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(*rng.normal(0, 3, (2, 5)).astype(np.float32), min=-2.0, max=3.0)],
    doc="The gradient of FakeQuantWithMinMaxArgs.",
)


def _args_vjp(op: Any, dy: Tensor) -> list[Any]:
    ends = {key: op.get_attr(key) for key in ("min", "max")}
    return [fake_quant_with_min_max_args_gradient(dy, op.inputs[0], **ends, **_attrs_of(op))]


fake_quant_with_min_max_args: OpDef[Tensor] = define_op(
    "FakeQuantWithMinMaxArgs",
    "inputs: float32 -> outputs: float32",
    attrs=f"{_ENDS}, {_ATTRS}",
    shape=_args_shape,
    kernel=lambda xp, inputs, min, max, num_bits, narrow_range, out=None: _quantized(
        xp, inputs, min, max, num_bits, narrow_range, out
    ),
    vjp=_args_vjp,
    samples=lambda rng: [
        sample(rng.normal(0, 3, (2, 5)).astype(np.float32), min=-2.0, max=3.0, differentiable=False),
        sample(np.zeros((0, 2), np.float32), num_bits=4, narrow_range=True),
    ],
    doc="Numbers rounded to values of a range that is the same for all.",
)


# --- a range that is computed, of all or of each channel


def _check_ends(s: ShapeContext, first: int, is_by_channel: bool) -> None:
    for name, shape in zip(("min", "max"), s.shapes[first : first + 2], strict=True):
        expected = 1 if is_by_channel else 0
        if shape is not None and len(shape) != expected:
            raise InvalidArgumentError(f"{name}: expected rank {expected}; got shape {format_shape(shape)}")


def _define(name: str, is_by_channel: bool, doc: str) -> tuple[OpDef[Tensor], OpDef[list[Tensor]]]:
    def axes(x: Any) -> Any:
        return tuple(range(x.ndim - 1)) if is_by_channel else None

    def gradient_shape(s: ShapeContext) -> Sequence[Shape]:
        _check_ends(s, 2, is_by_channel)
        return [s.shapes[1], s.shapes[2], s.shapes[3]]

    def gradient_kernel(
        xp: Any,
        gradients: Any,
        inputs: Any,
        min: Any,
        max: Any,
        num_bits: int,
        narrow_range: bool,
        out: Any = None,
    ) -> Any:
        made = _passing(xp, gradients, inputs, min, max, num_bits, narrow_range, axes(inputs))
        return all_delivered(xp, made, np.float32, out)

    def calls(rng: np.random.Generator, count: int, **options: Any) -> Any:
        x = rng.normal(0, 3, (count, 4, 3)).astype(np.float32)
        ends = [np.array([-2, -0.5, 0.5], np.float32), np.array([3, 4, 6], np.float32)]
        return sample(*x, *(ends if is_by_channel else [np.float32(-2), np.float32(3)]), **options)

    gradient: OpDef[list[Tensor]] = define_op(
        f"{name}Gradient",
        "gradients: float32, inputs: float32, min: float32, max: float32 -> backprops_wrt_input: float32, "
        "backprop_wrt_min: float32, backprop_wrt_max: float32",
        attrs=_ATTRS,
        shape=gradient_shape,
        kernel=gradient_kernel,
        vjp=NONDIFFERENTIABLE,
        samples=lambda rng: [calls(rng, 2)],
        doc=f"The gradient of {name}.",
    )

    def shape(s: ShapeContext) -> Sequence[Shape]:
        _check_ends(s, 1, is_by_channel)
        return [s.shapes[0]]

    op: OpDef[Tensor] = define_op(
        name,
        "inputs: float32, min: float32, max: float32 -> outputs: float32",
        attrs=_ATTRS,
        shape=shape,
        kernel=lambda xp, inputs, min, max, num_bits, narrow_range, out=None: _quantized(
            xp, inputs, min, max, num_bits, narrow_range, out
        ),
        vjp=lambda op, dy: gradient(dy, *op.inputs, **_attrs_of(op)),
        samples=lambda rng: [calls(rng, 1, narrow_range=True, num_bits=4, differentiable=False)],
        doc=doc,
    )
    return op, gradient


fake_quant_with_min_max_vars, fake_quant_with_min_max_vars_gradient = _define(
    "FakeQuantWithMinMaxVars", False, "Numbers rounded to values of one range, which is computed."
)
fake_quant_with_min_max_vars_per_channel, fake_quant_with_min_max_vars_per_channel_gradient = _define(
    "FakeQuantWithMinMaxVarsPerChannel", True, "Numbers rounded to values of a range of each channel."
)
