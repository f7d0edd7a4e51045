"""Dtypes of images, and their brightness, contrast and colours. All changes but those of
`convert_image_dtype` are computed in floats from 0 to 1; the result has the image's dtype, and integers
saturate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.dtypes import DTypeLike, as_dtype, float16, float32
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_prod
from flowrt.graph.ops.array.tile_and_reverse import tile
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.elementwise.arithmetic import maximum, multiply, pow, saturate_cast
from flowrt.graph.ops.elementwise.division import floor_div
from flowrt.graph.ops.elementwise.math import rsqrt, sqrt, square
from flowrt.graph.ops.linalg.matmul import tensordot
from flowrt.graph.ops.nn.colors import adjust_hue_op, adjust_saturation_op, hsv_to_rgb_op, rgb_to_hsv_op
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue", "adjust_saturation",
    "convert_image_dtype", "grayscale_to_rgb", "hsv_to_rgb", "per_image_standardization",
    "random_brightness", "random_contrast", "random_hue", "random_saturation", "rgb_to_grayscale",
    "rgb_to_hsv", "rgb_to_yiq", "rgb_to_yuv", "yiq_to_rgb", "yuv_to_rgb",
]  # fmt: skip


def convert_image_dtype(
    image: NumericLike, dtype: DTypeLike, saturate: bool = False, name: str | None = None
) -> Tensor:
    """The image in another dtype, scaled: floats are from 0 to 1, integers from 0 to their largest value.
    With ``saturate``, values that the dtype cannot hold become the nearest that it can.

    Raises `DTypeError` for a dtype that is neither.
    """
    x, wanted = convert_to_tensor(image), as_dtype(dtype)
    if x.dtype is wanted:
        return identity(x, name=name)
    for each in (x.dtype, wanted):
        if not (each.is_floating or each.is_integer):
            raise misuse(f"convert_image_dtype: expected integers or floats; got {each.name}", DTypeError)
    to = saturate_cast if saturate else cast
    with name_scope(name, "convert_image", [x]):
        if x.dtype.is_floating and wanted.is_floating:
            return cast(x, wanted)
        if x.dtype.is_floating:
            return to(x * np.array(wanted.max + 0.5, x.dtype.np), wanted)
        if wanted.is_floating:
            return cast(x, wanted) * np.array(1 / x.dtype.max, wanted.np)
        if x.dtype.max > wanted.max:
            return to(floor_div(x, np.array((x.dtype.max + 1) // (wanted.max + 1), x.dtype.np)), wanted)
        return multiply(to(x, wanted), np.array((wanted.max + 1) // (x.dtype.max + 1), wanted.np))


def _in_floats(name: str | None, default: str, image: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``change`` of the image in floats, in the image's dtype."""
    with name_scope(name, default, [image]):
        x = convert_to_tensor(image)
        floats = x if x.dtype in (float16, float32) else convert_image_dtype(x, float32)
        return convert_image_dtype(change(floats), x.dtype, saturate=True)


def adjust_brightness(image: NumericLike, delta: NumericLike) -> Tensor:
    """The image with ``delta``, of a range from 0 to 1, added to all pixels."""
    return _in_floats(None, "adjust_brightness", image, lambda x: x + cast(delta, x.dtype))


def adjust_contrast(images: NumericLike, contrast_factor: Any) -> Tensor:
    """The image with each pixel's difference to the mean of its channel times ``contrast_factor``."""

    def change(x: Tensor) -> Tensor:
        wide = cast(x, float32)
        mean = reduce_mean(wide, [-3, -2], keepdims=True)
        return cast((wide - mean) * cast(contrast_factor, float32) + mean, x.dtype)

    return _in_floats(None, "adjust_contrast", images, change)


def adjust_gamma(image: NumericLike, gamma: Any = 1, gain: Any = 1) -> Tensor:
    """Pixels ``gain * pixel**gamma``. Raises `InvalidArgumentError` for a negative ``gamma``."""
    if isinstance(gamma, (int, float)) and gamma < 0:
        raise misuse(f"adjust_gamma: expected a gamma of at least 0; got {gamma}", InvalidArgumentError)
    return _in_floats(
        None, "adjust_gamma", image, lambda x: cast(gain, x.dtype) * pow(x, cast(gamma, x.dtype))
    )


def adjust_hue(image: NumericLike, delta: NumericLike, name: str | None = None) -> Tensor:
    """The image with ``delta``, from -1 to 1, added to its hue: a turn of the colours' circle is 1."""
    return _in_floats(name, "adjust_hue", image, lambda x: adjust_hue_op(x, cast(delta, float32)))


def adjust_saturation(image: NumericLike, saturation_factor: Any, name: str | None = None) -> Tensor:
    """The image with its saturation times ``saturation_factor``."""
    return _in_floats(
        name, "adjust_saturation", image, lambda x: adjust_saturation_op(x, cast(saturation_factor, float32))
    )


def _drawn(function: str, lower: float, upper: float, seed: int | None, least: float = 0.0) -> Tensor:
    if upper <= lower or lower < least:
        raise misuse(
            f"{function}: expected {least:g} <= lower < upper; got {lower} and {upper}", InvalidArgumentError
        )
    return random_uniform([], lower, upper, seed=seed)


def random_brightness(image: NumericLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_brightness` by a number from ``-max_delta`` to ``max_delta``, drawn in each step."""
    return adjust_brightness(image, _drawn("random_brightness", -max_delta, max_delta, seed, -np.inf))


def random_contrast(image: NumericLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_contrast` by a factor from ``lower`` to ``upper``, drawn in each step."""
    return adjust_contrast(image, _drawn("random_contrast", lower, upper, seed))


def random_hue(image: NumericLike, max_delta: float, seed: int | None = None) -> Tensor:
    """`adjust_hue` by a number from ``-max_delta`` to ``max_delta``, at most 0.5, drawn in each step."""
    if max_delta > 0.5:
        raise misuse(f"random_hue: expected a max_delta from 0 to 0.5; got {max_delta}", InvalidArgumentError)
    return adjust_hue(image, _drawn("random_hue", -max_delta, max_delta, seed, -0.5))


def random_saturation(image: NumericLike, lower: float, upper: float, seed: int | None = None) -> Tensor:
    """`adjust_saturation` by a factor from ``lower`` to ``upper``, drawn in each step."""
    return adjust_saturation(image, _drawn("random_saturation", lower, upper, seed))


def per_image_standardization(image: NumericLike) -> Tensor:
    """Each image in float32 with mean 0 and deviation 1, or nearly, where an image hardly varies."""
    with name_scope(None, "per_image_standardization", [image]):
        x = cast(image, float32)
        axes = [-3, -2, -1]
        count = cast(reduce_prod(shape(x)[-3:]), float32)
        mean = reduce_mean(x, axes, keepdims=True)
        deviation = sqrt(reduce_mean(square(x - mean), axes, keepdims=True))
        return (x - mean) / maximum(deviation, rsqrt(count))


def rgb_to_grayscale(images: NumericLike, name: str | None = None) -> Tensor:
    """The brightness of colours: the last dimension 3 becomes 1, in the images' dtype."""
    with name_scope(name, "rgb_to_grayscale", [images]):
        x = convert_to_tensor(images)
        grey = tensordot(
            convert_image_dtype(x, float32), np.array([0.2989, 0.587, 0.114], np.float32), [[-1], [-1]]
        )
        return convert_image_dtype(expand_dims(grey, -1), x.dtype)


def grayscale_to_rgb(images: NumericLike, name: str | None = None) -> Tensor:
    """Grey in three channels: the last dimension 1 becomes 3."""
    with name_scope(name, "grayscale_to_rgb", [images]):
        x = convert_to_tensor(images)
        return tile(x, [1] * (len(x.shape) - 1) + [3])


def rgb_to_hsv(images: NumericLike, name: str | None = None) -> Tensor:
    """Hue, saturation and value, each from 0 to 1, of red, green and blue."""
    return rgb_to_hsv_op(images, name=name)


def hsv_to_rgb(images: NumericLike, name: str | None = None) -> Tensor:
    """Red, green and blue of hue, saturation and value."""
    return hsv_to_rgb_op(images, name=name)


_YIQ = [[0.299, 0.59590059, 0.2115], [0.587, -0.27455667, -0.52273617], [0.114, -0.32134392, 0.31119955]]
_FROM_YIQ = [[1, 1, 1], [0.95598634, -0.27201283, -1.10674021], [0.6208248, -0.64720424, 1.70423049]]
_YUV = [[0.299, -0.14714119, 0.61497538], [0.587, -0.28886916, -0.51496512], [0.114, 0.43601035, -0.10001026]]
_FROM_YUV = [[1, 1, 1], [0, -0.394642334, 2.03206185], [1.13988303, -0.58062185, 0]]


def _mixed(images: Any, matrix: Any) -> Tensor:
    x = convert_to_tensor(images)
    return tensordot(x, np.array(matrix, x.dtype.np), [[-1], [0]])


def rgb_to_yiq(images: NumericLike) -> Tensor:
    """The colours of American television, of red, green and blue."""
    return _mixed(images, _YIQ)


def yiq_to_rgb(images: NumericLike) -> Tensor:
    """The inverse of `rgb_to_yiq`."""
    return _mixed(images, _FROM_YIQ)


def rgb_to_yuv(images: NumericLike) -> Tensor:
    """The colours of European television, of red, green and blue."""
    return _mixed(images, _YUV)


def yuv_to_rgb(images: NumericLike) -> Tensor:
    """The inverse of `rgb_to_yuv`."""
    return _mixed(images, _FROM_YUV)
