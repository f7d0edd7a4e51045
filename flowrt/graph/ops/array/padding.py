"""Padding with constants or with mirrored elements of the tensor."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import in_front
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import LINEAR, OpDef, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.array.reductions import sum_op
from flowrt.graph.ops.array.slicing import getitem, slice_op
from flowrt.graph.ops.base.axes import factors, input_rank, nonzero, whole_along
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import subtract
from flowrt.graph.shapes import Shape, format_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike


def _paddings(s: ShapeContext) -> tuple[tuple[int | None, int | None], ...] | None:
    """The known part of the paddings, one pair per dimension; None if even their number is unknown."""
    given, dims, rows = s.value(1), s.shapes[0], s.shapes[1]
    if rows is not None and (len(rows) != 2 or rows[1] not in (None, 2)):
        raise InvalidArgumentError(f"paddings: expected shape [rank, 2]; got {format_shape(rows)}")
    count = len(given) if given is not None else rows[0] if rows is not None else None
    if dims is not None and count not in (None, len(dims)):
        raise InvalidArgumentError(
            f"paddings: expected one pair for each of {len(dims)} dimensions; got {count}"
        )
    if count is None:
        count = None if dims is None else len(dims)
    if given is None:
        return None if count is None else ((None, None),) * count
    _refuse_negative(given)
    return given


def _refuse_negative(paddings: Any) -> None:
    if any(p is not None and p < 0 for pair in paddings for p in pair):
        raise InvalidArgumentError(f"paddings: expected numbers of at least 0; got {paddings}")


def _padded(sign: int, s: ShapeContext) -> Sequence[Shape]:
    paddings = _paddings(s)
    if paddings is None:
        return [None]
    dims = s.shapes[0] or (None,) * len(paddings)
    return [tuple(_moved(d, sign, *pair) for d, pair in zip(dims, paddings, strict=True))]


def _moved(dim: int | None, sign: int, before: int | None, after: int | None) -> int | None:
    return None if dim is None or before is None or after is None else dim + sign * (before + after)


def _core(shape: Sequence[int], paddings: Any) -> tuple[builtins.slice, ...]:
    """The place of the unpadded tensor in a padded one of ``shape``."""
    return tuple(
        builtins.slice(before, dim - after) for dim, (before, after) in zip(shape, paddings, strict=True)
    )


def _room(xp: Any, input: Any, paddings: Any) -> Any:
    dims = [d + before + after for d, (before, after) in zip(input.shape, paddings, strict=True)]
    return xp.empty(dims, input.dtype)


def _pad_with(xp: Any, input: Any, paddings: Any, constant_values: Any, out: Any = None) -> Any:
    _refuse_negative(paddings)
    out = _room(xp, input, paddings) if out is None else out
    out[...] = constant_values
    out[_core(out.shape, paddings)] = input
    return out


def _pad_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, paddings = op.inputs[:2]
    return [slice_op(dy, getitem(paddings, (..., 0)), shape(x, out_type=paddings.dtype)), None]


def _pad_v2_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    dx, _ = _pad_vjp(op, dy)
    margin = subtract(sum_op(reshape(dy, [-1]), [0]), sum_op(reshape(dx, [-1]), [0]))
    return [dx, None, margin]


_PAIRS = np.array([[1, 0], [2, 1]], np.int32)

pad_op: OpDef[Tensor] = define_op(
    "Pad",
    "input: T in ANY, paddings: host Tpaddings in INDEX -> T",
    shape=lambda s: _padded(1, s),
    kernel=lambda xp, input, paddings, out=None: _pad_with(
        xp, input, paddings, b"" if input.dtype.kind == "O" else 0, out
    ),
    vjp=_pad_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), _PAIRS),
        sample(np.zeros((0, 2), np.complex64), _PAIRS.astype(np.int64)),
        sample(np.array([[True]]), _PAIRS),
        sample(np.array([[b"a"]], object), _PAIRS),
        sample(rng.standard_normal(()), np.zeros((0, 2), np.int32)),
    ),
    batch=in_front({1: (0, 0)}),
    axes=whole_along(lambda s: nonzero(s.value(1))),
    traits=Traits(narrows=True),
    doc="The input with ``paddings[i] = (before, after)`` zeros around dimension i.",
)


def _pad_v2_axes(s: ShapeContext) -> str | None:
    pairs, rank = nonzero(s.value(1)), input_rank(s)
    return (
        None if pairs is None or rank is None else f"{factors(rank, pairs)}, -> {factors(rank, pairs, 'r')}"
    )


pad_v2: OpDef[Tensor] = define_op(
    "PadV2",
    "input: T in ANY, paddings: host Tpaddings in INDEX, constant_values: T -> T",
    shape=lambda s: _padded(1, s),
    kernel=_pad_with,
    vjp=_pad_v2_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), _PAIRS, rng.standard_normal(())),
        sample(rng.integers(0, 9, (1, 2)), _PAIRS, np.array(7)),
    ),
    batch=in_front({1: (0, 0)}),
    axes=_pad_v2_axes,
    traits=Traits(narrows=True),
    doc="The input with ``paddings[i] = (before, after)`` elements ``constant_values`` around dimension i.",
)

# --- mirrored margins

_EDGE = {"REFLECT": 1, "SYMMETRIC": 0}
"""Number of edge elements that are not repeated."""


def _check_mirror(dims: Sequence[int | None], paddings: Any, mode: Any) -> None:
    edge = _EDGE[_mode(mode)]
    for axis, (dim, pair) in enumerate(zip(dims, paddings, strict=True)):
        if dim is not None and any(p is not None and p > max(dim - edge, 0) for p in pair):
            raise InvalidArgumentError(
                f"paddings[{axis}]: expected at most {dim - edge} in {_mode(mode)} mode; got {pair}"
            )


def _mode(mode: Any) -> str:
    return mode.decode() if isinstance(mode, bytes) else str(mode)


def _mirror_pad_shape(s: ShapeContext) -> Sequence[Shape]:
    paddings = _paddings(s)
    if paddings is not None and s.shapes[0] is not None:
        _check_mirror(s.shapes[0], paddings, s.attrs["mode"])
    return _padded(1, s)


def _mirror_pad(xp: Any, input: Any, paddings: Any, mode: Any, out: Any = None) -> Any:
    _refuse_negative(paddings)
    _check_mirror(input.shape, paddings, mode)
    edge = _EDGE[_mode(mode)]
    out = _room(xp, input, paddings) if out is None else out
    core = _core(out.shape, paddings)
    out[core] = input
    for axis, (before, after) in enumerate(paddings):
        rows = xp.moveaxis(out[(..., *core[axis + 1 :])], axis, 0)  # later axes are padded later
        end = len(rows) - after
        rows[:before] = rows[before + edge : 2 * before + edge][::-1]
        rows[end:] = rows[end - edge - after : end - edge][::-1]
    return out


def _mirror_pad_grad(xp: Any, input: Any, paddings: Any, mode: Any, out: Any = None) -> Any:
    edge = _EDGE[_mode(mode)]
    for axis, (before, after) in enumerate(paddings):
        rows = xp.moveaxis(input, axis, 0)
        end = rows.shape[0] - after
        core = rows[before:end].copy()
        core[edge : edge + before] += rows[:before][::-1]
        core[len(core) - edge - after : len(core) - edge] += rows[end:][::-1]
        input = xp.moveaxis(core, 0, axis)
    if out is None:
        return input if paddings else input.copy()
    out[...] = input
    return out


mirror_pad: OpDef[Tensor] = define_op(
    "MirrorPad",
    "input: T in ANY, paddings: host Tpaddings in INDEX -> T",
    attrs="mode: string",
    shape=_mirror_pad_shape,
    kernel=_mirror_pad,
    vjp=lambda op, dy: [mirror_pad_grad(dy, op.inputs[1], mode=op.get_attr("mode")), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 4)), _PAIRS, mode="REFLECT", differentiable=True),
        sample(rng.standard_normal((1, 2)), np.array([[1, 1], [2, 0]], np.int64), mode="SYMMETRIC"),
        sample(rng.integers(0, 9, (2, 3)), np.array([[0, 0], [0, 2]], np.int32), mode="REFLECT"),
        sample(rng.standard_normal(()), np.zeros((0, 2), np.int32), mode="SYMMETRIC"),
    ),
    batch=in_front({1: (0, 0)}),
    axes=whole_along(lambda s: nonzero(s.value(1))),
    traits=Traits(narrows=True),
    doc="The input padded with its mirror image, at the edge element (REFLECT) or next to it (SYMMETRIC).",
)

mirror_pad_grad: OpDef[Tensor] = define_op(
    "MirrorPadGrad",
    "input: T in NUMERIC, paddings: host Tpaddings in INDEX -> T",
    attrs="mode: string",
    shape=lambda s: _padded(-1, s),
    kernel=_mirror_pad_grad,
    vjp=lambda op, dx: [mirror_pad(dx, op.inputs[1], mode=op.get_attr("mode")), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 7)), _PAIRS, mode="REFLECT"),
        sample(rng.standard_normal((3, 4)), np.array([[1, 1], [2, 0]], np.int32), mode="SYMMETRIC"),
        sample(rng.standard_normal(()), np.zeros((0, 2), np.int32), mode="SYMMETRIC"),
    ),
    batch=in_front({1: (0, 0)}),
    axes=whole_along(lambda s: nonzero(s.value(1))),
    doc="The transpose of MirrorPad: each padding element is added to the element that it was copied from.",
)


def pad(
    tensor: TensorLike,
    paddings: NumericLike,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: TensorLike = 0,
) -> Tensor:
    """``tensor`` with elements added before and after it along each dimension.

    Args:
        tensor: A tensor.
        paddings: ``[rank, 2]`` integers: ``paddings[i]`` = (before, after) elements along dimension i.
        mode: "CONSTANT" pads with ``constant_values``, "REFLECT" mirrors at the edge element (at most dim - 1
            elements), "SYMMETRIC" next to it (at most dim).
        constant_values: The scalar that a constant padding consists of.

    Returns:
        A tensor of the same rank and dtype.

    Raises:
        InvalidArgumentError: The paddings do not fit the tensor, or the mode is unknown.

    Example:
        >>> tf.pad([[1, 2]], [[0, 0], [1, 2]]).eval()
        array([[0, 1, 2, 0, 0]], dtype=int32)
    """
    kind = mode.upper()
    if kind == "CONSTANT":
        zero = not isinstance(constant_values, (Tensor, np.ndarray)) and constant_values == 0
        return (
            pad_op(tensor, paddings, name=name)
            if zero
            else pad_v2(tensor, paddings, constant_values, name=name)
        )
    if kind not in _EDGE:
        raise misuse(f"pad: expected mode CONSTANT, REFLECT or SYMMETRIC; got {mode!r}")
    return mirror_pad(tensor, paddings, mode=kind, name=name)
