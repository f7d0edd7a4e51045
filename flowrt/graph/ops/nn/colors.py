"""Colours as hue, saturation and value, and changes of these. The last dimension has red, green and blue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Rule, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Vjp
from flowrt.graph.ops.array.concat_and_split import split
from flowrt.graph.ops.array.ranges import one_hot
from flowrt.graph.ops.array.reductions import reduce_max, reduce_min, reduce_sum
from flowrt.graph.ops.array.statistics import argmax, argmin
from flowrt.graph.ops.array.tile_and_reverse import reverse, roll
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise.arithmetic import add_n, multiply, subtract
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import number
from flowrt.graph.shapes import Shape, format_shape


def _colors(s: ShapeContext) -> Sequence[Shape]:
    shape = s.shapes[0]
    if shape is not None and (not shape or shape[-1] not in (3, None)):
        raise InvalidArgumentError(
            f"images: expected 3 colours in the last dimension; got {format_shape(shape)}"
        )
    return [shape]


def hsv_of(xp: Any, rgb: Any) -> Any:
    red, green, blue = rgb[..., 0], rgb[..., 1], rgb[..., 2]
    value = rgb.max(axis=-1)
    spread = value - rgb.min(axis=-1)
    saturation = xp.where(value > 0, spread / xp.where(value > 0, value, 1), 0)
    safe = xp.where(spread > 0, spread, 1) * 6
    hue = xp.where(
        value == red,
        (green - blue) / safe,
        xp.where(value == green, (blue - red) / safe + 2 / 6, (red - green) / safe + 4 / 6),
    )
    hue = xp.where(spread > 0, xp.where(hue < 0, hue + 1, hue), 0)
    return xp.stack([hue, saturation, value], axis=-1)


def rgb_of(xp: Any, hsv: Any) -> Any:
    hue, saturation, value = hsv[..., 0] * 6, hsv[..., 1], hsv[..., 2]
    pure = xp.stack([xp.abs(hue - 3) - 1, 2 - xp.abs(hue - 2), 2 - xp.abs(hue - 4)], axis=-1)
    return ((xp.clip(pure, 0, 1) - 1) * saturation[..., None] + 1) * value[..., None]


def _hsv_vjp(op: Operation, dy: Tensor) -> list[Tensor]:
    """The gradient of `hsv_of`: of equal colours the first is the largest and the last the smallest, as in
    TensorFlow. None goes through the hue of a grey, nor through the saturation of black.
    """
    rgb = op.inputs[0]
    exact = rgb.dtype if rgb.dtype is dtypes.float64 else dtypes.float32
    rgb, dy = cast(rgb, exact), cast(dy, exact)
    of_hue, of_saturation, of_value = split(dy, 3, axis=-1)
    most = one_hot(argmax(rgb, -1), 3, dtype=exact)
    least = reverse(one_hot(argmin(reverse(rgb, [-1]), -1), 3, dtype=exact), [-1])
    value, smallest = (reduce(rgb, -1, keepdims=True) for reduce in (reduce_max, reduce_min))
    sixths = multiply(subtract(value, smallest), number(6, rgb))
    apart = subtract(roll(most, 1, -1), roll(most, 2, -1))  # the hue is the difference of these two colours
    hue = div_no_nan(reduce_sum(multiply(apart, rgb), -1, keepdims=True), sixths)
    steeper = multiply(multiply(hue, number(6, rgb)), subtract(most, least))
    by_hue = div_no_nan(subtract(apart, steeper), sixths)
    by_saturation = div_no_nan(subtract(div_no_nan(multiply(most, smallest), value), least), value)
    parts = [multiply(of_hue, by_hue), multiply(of_saturation, by_saturation), multiply(of_value, most)]
    return [cast(add_n(parts), op.inputs[0].dtype)]


def _define(
    name: str,
    inputs: str,
    change: Callable[..., Any],
    *extra: Any,
    doc: str,
    vjp: Vjp | Rule = NONDIFFERENTIABLE,
) -> OpDef[Tensor]:
    def kernel(xp: Any, images: Any, *numbers: Any, out: Any = None) -> Any:
        wide = images.astype(np.float32) if images.dtype.itemsize == 2 else images
        return delivered(xp, change(xp, wide, *numbers), images.dtype, out)

    return define_op(
        name,
        f"images: T in FLOATING{inputs} -> output: T",
        shape=_colors,
        kernel=kernel,
        vjp=vjp,
        samples=lambda rng: [
            sample(rng.uniform(0, 1, (2, 3, 3)).astype(np.float32), *extra),
            sample(rng.uniform(0, 1, (1, 4, 3)).astype(np.float16), *extra),
            sample(rng.uniform(0, 1, (1, 4, 3)), *extra),
        ],
        doc=doc,
    )


def _turned(xp: Any, images: Any, delta: Any) -> Any:
    hsv = hsv_of(xp, images)
    hue = hsv[..., 0] + delta
    return rgb_of(xp, xp.stack([hue - xp.floor(hue), hsv[..., 1], hsv[..., 2]], axis=-1))


def _saturated(xp: Any, images: Any, scale: Any) -> Any:
    hsv = hsv_of(xp, images)
    return rgb_of(xp, xp.stack([hsv[..., 0], xp.clip(hsv[..., 1] * scale, 0, 1), hsv[..., 2]], axis=-1))


rgb_to_hsv_op = _define(
    "RGBToHSV", "", hsv_of, vjp=_hsv_vjp, doc="Hue, saturation and value, each from 0 to 1."
)
hsv_to_rgb_op = _define("HSVToRGB", "", rgb_of, doc="Red, green and blue of hue, saturation and value.")
adjust_hue_op = _define(
    "AdjustHue",
    ", delta: float32",
    _turned,
    np.float32(0.3),
    doc="Images with ``delta`` added to the hue, from 0 to 1.",
)
adjust_saturation_op = _define(
    "AdjustSaturation",
    ", scale: float32",
    _saturated,
    np.float32(1.5),
    doc="Images with the saturation times ``scale``.",
)
