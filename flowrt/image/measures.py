"""Measures of images, and of how alike two are. The last three dimensions are height, width and channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.reductions import reduce_mean, reduce_prod, reduce_sum
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import pow, squared_difference
from flowrt.graph.ops.elementwise.complex_parts import abs
from flowrt.graph.ops.elementwise.math import log, square
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.nn.conv_functions import depthwise_conv2d
from flowrt.graph.ops.nn.pooling import avg_pool
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.image.coloring import convert_image_dtype
from flowrt.variables.graph_scopes import name_scope

__all__ = ["image_gradients", "psnr", "sobel_edges", "ssim", "ssim_multiscale", "total_variation"]


def total_variation(images: NumericLike, name: str | None = None) -> Tensor:
    """The sum of the absolute differences of neighbouring pixels, of an image, a scalar, or of each of a
    batch, [batch].
    """
    with name_scope(name, "total_variation"):
        x = convert_to_tensor(images)
        if x.shape.ndims not in (3, 4):
            raise misuse(f"total_variation: expected 3 or 4 dimensions; got {x.shape}", InvalidArgumentError)
        down, right = x[..., 1:, :, :] - x[..., :-1, :, :], x[..., 1:, :] - x[..., :-1, :]
        axes = [-3, -2, -1]
        return reduce_sum(abs(down), axes) + reduce_sum(abs(right), axes)


def image_gradients(image: NumericLike) -> tuple[Tensor, Tensor]:
    """The differences of each pixel of a batch to the one below, and to the one on its right; zeros at the
    edges.
    """
    x = convert_to_tensor(image)
    if x.shape.ndims != 4:
        raise misuse(f"image_gradients: expected 4 dimensions; got {x.shape}", InvalidArgumentError)
    down, right = x[:, 1:] - x[:, :-1], x[:, :, 1:] - x[:, :, :-1]
    return concat([down, zeros_like(x[:, :1])], 1), concat([right, zeros_like(x[:, :, :1])], 2)


def psnr(a: NumericLike, b: NumericLike, max_val: NumericLike, name: str | None = None) -> Tensor:
    """The peak signal-to-noise ratio of two images, in decibels: ``10 log10(max_val**2 / mean square)``."""
    with name_scope(name, "PSNR", [a, b]):
        peak = convert_image_dtype(convert_to_tensor(max_val, convert_to_tensor(a).dtype), float32)
        x, y = (convert_image_dtype(image, float32) for image in (a, b))
        error = reduce_mean(squared_difference(x, y), [-3, -2, -1])
        return 20 * log(peak) / math.log(10) - 10 / math.log(10) * log(error)


def sobel_edges(image: NumericLike) -> Tensor:
    """Sobel's edges of a batch: [batch, height, width, channels, 2], those along y and those along x."""
    x = convert_to_tensor(image)
    kernel = np.array([[-1, -2, -1], [0, 0, 0], [1, 2, 1]], x.dtype.np)
    channels = x.shape.as_list()[3]
    if channels is None:
        raise misuse("sobel_edges: expected a known number of channels", InvalidArgumentError)
    filters = np.tile(np.stack([kernel, kernel.T], -1)[:, :, None, :], [1, 1, channels, 1])
    padded = pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]], "REFLECT")
    edges = depthwise_conv2d(padded, filters, [1, 1, 1, 1], "VALID")
    return reshape(edges, concat([shape(x), [2]], 0))


def _gaussian(size: int, sigma: float) -> np.ndarray[Any, Any]:
    """A filter of ``size`` by ``size`` with the sum 1."""
    at = np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)
    row = np.square(at) * np.float32(-0.5 / sigma**2)
    bell = np.exp(row[:, None] + row[None, :])
    return bell / bell.sum()


def _ssim_of_channels(
    x: Tensor, y: Tensor, peak: Tensor, size: int, sigma: float, k1: float, k2: float
) -> tuple[Tensor, Tensor]:
    """The structural similarity of each channel, and its part without luminance: [..., channels]."""
    channels = x.shape.as_list()[-1]
    if channels is None:
        raise misuse("ssim: expected a known number of channels", InvalidArgumentError)
    kernel = np.tile(_gaussian(size, sigma)[:, :, None, None], [1, 1, channels, 1])

    def blurred(image: Tensor) -> Tensor:
        outer = shape(image)[:-3]
        flat = reshape(image, concat([[-1], shape(image)[-3:]], 0))
        made = depthwise_conv2d(flat, kernel, [1, 1, 1, 1], "VALID")
        return reshape(made, concat([outer, shape(made)[1:]], 0))

    c1, c2 = square(k1 * peak), square(k2 * peak)
    mean_x, mean_y = blurred(x), blurred(y)
    product, squares = mean_x * mean_y * 2, square(mean_x) + square(mean_y)
    luminance = (product + c1) / (squares + c1)
    covariance, variance = blurred(x * y) * 2, blurred(square(x) + square(y))
    structure = (covariance - product + c2) / (variance - squares + c2)
    return reduce_mean(luminance * structure, [-3, -2]), reduce_mean(structure, [-3, -2])


def _as_floats(img1: Any, img2: Any, max_val: Any) -> tuple[Tensor, Tensor, Tensor]:
    x, y = convert_to_tensor(img1), convert_to_tensor(img2)
    peak = convert_image_dtype(convert_to_tensor(max_val, x.dtype), float32)
    return convert_image_dtype(x, float32), convert_image_dtype(y, float32), peak


def ssim(
    img1: NumericLike,
    img2: NumericLike,
    max_val: NumericLike,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """The structural similarity of images with pixels up to ``max_val``, from -1 to 1, in a window of
    ``filter_size`` pixels: a number for each of the outer dimensions. It has a gradient.
    """
    with name_scope(None, "SSIM", [img1, img2]):
        x, y, peak = _as_floats(img1, img2, max_val)
        return reduce_mean(_ssim_of_channels(x, y, peak, filter_size, filter_sigma, k1, k2)[0], [-1])


_POWERS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
"""Weights of the scales, from fine to coarse, by Wang, Simoncelli and Bovik (2003)."""


def ssim_multiscale(
    img1: NumericLike,
    img2: NumericLike,
    max_val: NumericLike,
    power_factors: Sequence[float] = _POWERS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Tensor:
    """`ssim` at as many scales as there are ``power_factors``, each half as fine as the one before."""
    with name_scope(None, "MS-SSIM", [img1, img2]):
        x, y, peak = _as_floats(img1, img2, max_val)
        parts = []
        for scale in range(len(power_factors)):
            if scale:
                x, y = _halved(x), _halved(y)
            whole, structure = _ssim_of_channels(x, y, peak, filter_size, filter_sigma, k1, k2)
            parts.append(relu(structure if scale < len(power_factors) - 1 else whole))
        powers = np.array(power_factors, np.float32)
        return reduce_mean(reduce_prod(pow(stack(parts, -1), powers), [-1]), [-1])


def _halved(image: Tensor) -> Tensor:
    """The means of 2 by 2 pixels; an odd last row or column counts twice."""
    flat = reshape(image, concat([[-1], shape(image)[-3:]], 0))
    odd = shape(flat)[1:3] % 2
    margins = stack([[0, 0], stack([0, odd[0]]), stack([0, odd[1]]), [0, 0]])
    made = avg_pool(pad(flat, margins, "SYMMETRIC"), [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
    return reshape(made, concat([shape(image)[:-3], shape(made)[1:]], 0))
