"""Images of another size, by TensorFlow's exact rules.

``align_corners`` puts the outer pixels' centres on each other; ``half_pixel_centers`` takes pixels as
squares. Without either, TensorFlow 1's rule, the upper left pixels meet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import float32, int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.math import floor, round
from flowrt.graph.ops.nn.resize import (
    resize_area_op,
    resize_bicubic_op,
    resize_bilinear_op,
    resize_nearest_neighbor_op,
)
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.image.framing import pad_to_bounding_box, sizes_of, with_batch
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "ResizeMethod", "resize", "resize_area", "resize_bicubic", "resize_bilinear", "resize_image_with_pad",
    "resize_images", "resize_nearest_neighbor",
]  # fmt: skip


class ResizeMethod:
    """Methods of `resize_images`."""

    BILINEAR, NEAREST_NEIGHBOR, BICUBIC, AREA = range(4)


def resize_bilinear(
    images: NumericLike,
    size: NumericLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images [batch, height, width, channels] of ``size``, [height, width], in float32: each pixel is a mean
    of the four around its place. The gradient needs sizes that are known while the graph is built.

    Example:
        >>> tf.image.resize_bilinear(tf.ones([1, 2, 2, 3]), [4, 4]).shape.as_list()
        [1, 4, 4, 3]
    """
    return resize_bilinear_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )


def resize_nearest_neighbor(
    images: NumericLike,
    size: NumericLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of ``size`` in their own dtype: each pixel is the nearest one. See `resize_bilinear`."""
    return resize_nearest_neighbor_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )


def resize_bicubic(
    images: NumericLike,
    size: NumericLike,
    align_corners: bool = False,
    name: str | None = None,
    half_pixel_centers: bool = False,
) -> Tensor:
    """Images of ``size`` in float32, by cubic curves through 16 pixels. See `resize_bilinear`."""
    return resize_bicubic_op(
        images, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers, name=name
    )


def resize_area(
    images: NumericLike, size: NumericLike, align_corners: bool = False, name: str | None = None
) -> Tensor:
    """Images of ``size`` in float32: each pixel is the mean of the area that it covers. No gradient flows
    through.
    """
    return resize_area_op(images, size, align_corners=align_corners, name=name)


_BY_METHOD: dict[Any, Callable[..., Tensor]] = {
    ResizeMethod.BILINEAR: resize_bilinear,
    ResizeMethod.NEAREST_NEIGHBOR: resize_nearest_neighbor,
    ResizeMethod.BICUBIC: resize_bicubic,
    ResizeMethod.AREA: resize_area,
}
_BY_METHOD |= {
    name: _BY_METHOD[getattr(ResizeMethod, constant)]
    for name, constant in (
        ("bilinear", "BILINEAR"), ("nearest", "NEAREST_NEIGHBOR"), ("bicubic", "BICUBIC"), ("area", "AREA"),
    )
}  # fmt: skip


def resize_images(
    images: NumericLike,
    size: NumericLike,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
    preserve_aspect_ratio: bool = False,
    name: str | None = None,
) -> Tensor:
    """An image, or a batch of them, in another size.

    Args:
        images: ``[height, width, channels]``, or ``[batch, height, width, channels]``.
        size: Two integers, the new height and width.
        method: A `ResizeMethod`, by default bilinear.
        align_corners: Whether the outer pixels' centres are put on each other.
        preserve_aspect_ratio: Whether the result is only as large as fits into ``size`` undistorted.

    Returns:
        float32, but for the nearest neighbour, and for images that have the size already: these are returned
        unchanged.

    Raises:
        InvalidArgumentError: The method, rank or size is another.

    Example:
        >>> tf.image.resize_images(tf.zeros([8, 20, 30, 3]), [10, 15]).shape.as_list()
        [8, 10, 15, 3]
    """
    if method not in _BY_METHOD:
        raise misuse(f"resize_images: expected a ResizeMethod; got {method!r}", InvalidArgumentError)
    with name_scope(name, "resize", [images]):
        x, is_batch = with_batch("resize_images", images)
        asked = convert_to_tensor(size, int32)
        if asked.shape.as_list() != [2]:
            raise misuse(f"resize_images: expected a height and a width; got {size!r}", InvalidArgumentError)
        height, width = sizes_of(x)
        if preserve_aspect_ratio:
            ratios = [cast(asked[i], float32) / cast(side, float32) for i, side in enumerate((height, width))]
            scale = minimum(*ratios)
            asked = stack([cast(round(scale * cast(side, float32)), int32) for side in (height, width)])
        elif list(static_value(asked) or ()) == x.shape.as_list()[1:3]:
            return x if is_batch else squeeze(x, [0])
        made = _BY_METHOD[method](x, asked, align_corners=align_corners)
        return made if is_batch else squeeze(made, [0])


resize = resize_images


def resize_image_with_pad(
    image: NumericLike,
    target_height: NumericLike,
    target_width: NumericLike,
    method: Any = ResizeMethod.BILINEAR,
    align_corners: bool = False,
) -> Tensor:
    """The image as large as fits into the target without distortion, in the middle of zeros."""
    with name_scope(None, "resize_image_with_pad", [image]):
        x, is_batch = with_batch("resize_image_with_pad", image)
        sides = [cast(side, float32) for side in sizes_of(x)]
        targets = [cast(convert_to_tensor(side, int32), float32) for side in (target_height, target_width)]
        ratio = maximum(sides[1] / targets[1], sides[0] / targets[0])
        inner = [side / ratio for side in sides]
        margins = [
            maximum(0, cast(floor((target - side) / 2), int32))
            for target, side in zip(targets, inner, strict=True)
        ]
        size = stack([cast(floor(side), int32) for side in inner])
        made = resize_images(x, size, method, align_corners)
        padded = pad_to_bounding_box(made, margins[0], margins[1], target_height, target_width)
        return padded if is_batch else squeeze(padded, [0])
