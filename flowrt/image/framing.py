"""Parts of images, margins around them, flips and turns."""

from __future__ import annotations

from typing import Any

from flowrt.control_flow.branches import cond
from flowrt.dtypes import float64, int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.slicing import slice
from flowrt.graph.ops.array.tile_and_reverse import reverse
from flowrt.graph.ops.base.identities import cast, identity, static_value
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape, squeeze, transpose
from flowrt.graph.ops.elementwise.arithmetic import maximum, minimum
from flowrt.graph.ops.elementwise.comparison import less, where
from flowrt.graph.ops.elementwise.division import floor_div
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "central_crop", "crop_to_bounding_box", "flip_left_right", "flip_up_down", "pad_to_bounding_box",
    "random_flip_left_right", "random_flip_up_down", "resize_image_with_crop_or_pad",
    "resize_with_crop_or_pad", "rot90", "transpose_image",
]  # fmt: skip


def with_batch(function: str, image: Any) -> tuple[Tensor, bool]:
    """The images with a batch dimension, and whether they had one. Raises `InvalidArgumentError` for a tensor
    of another rank than 3 and 4, or an unknown one.
    """
    x = convert_to_tensor(image)
    if x.shape.ndims not in (3, 4):
        raise misuse(
            f"{function}: expected [height, width, channels], or several images; got shape {x.shape}",
            InvalidArgumentError,
        )
    return (x, True) if x.shape.ndims == 4 else (expand_dims(x, 0), False)


def sizes_of(x: Tensor) -> tuple[Any, Any]:
    """Height and width of a batch of images: integers where they are known, otherwise scalars."""
    known = x.shape.as_list()
    dynamic = shape(x)
    height, width = (dynamic[i] if known[i] is None else known[i] for i in (1, 2))
    return height, width


def crop_to_bounding_box(
    image: NumericLike,
    offset_height: Any,
    offset_width: Any,
    target_height: NumericLike,
    target_width: NumericLike,
) -> Tensor:
    """The part of the image that begins at row ``offset_height`` and column ``offset_width``.

    Raises `InvalidArgumentError` for a part that is not within the image: while building where the sizes are
    known, otherwise when run.
    """
    with name_scope(None, "crop_to_bounding_box", [image]):
        x, is_batch = with_batch("crop_to_bounding_box", image)
        begin = stack([0, cast(offset_height, int32), cast(offset_width, int32), 0])
        size = stack([-1, cast(target_height, int32), cast(target_width, int32), -1])
        part = slice(x, begin, size)
        return part if is_batch else squeeze(part, [0])


def pad_to_bounding_box(
    image: NumericLike,
    offset_height: Any,
    offset_width: Any,
    target_height: NumericLike,
    target_width: NumericLike,
) -> Tensor:
    """The image within zeros: it begins at row ``offset_height`` and column ``offset_width`` of the target.

    Raises `InvalidArgumentError` for an image that does not fit into the target, as `crop_to_bounding_box`.
    """
    with name_scope(None, "pad_to_bounding_box", [image]):
        x, is_batch = with_batch("pad_to_bounding_box", image)
        height, width = sizes_of(x)
        rows = [offset_height, target_height - offset_height - height]
        columns = [offset_width, target_width - offset_width - width]
        known = [n for n in rows + columns if isinstance(n, int)]
        if min(known, default=0) < 0:
            raise misuse(
                f"pad_to_bounding_box: expected an image of at most {target_height} by {target_width} at "
                f"{offset_height}, {offset_width}; got {height} by {width}",
                InvalidArgumentError,
            )
        margins = [[0, 0], rows, columns, [0, 0]]
        padded = pad(x, margins if len(known) == 4 else stack([stack(pair) for pair in margins]))
        return padded if is_batch else squeeze(padded, [0])


def resize_image_with_crop_or_pad(
    image: NumericLike, target_height: NumericLike, target_width: NumericLike
) -> Tensor:
    """The middle of the image, with zeros around it where the image is smaller than the target."""
    with name_scope(None, "resize_image_with_crop_or_pad", [image]):
        x, is_batch = with_batch("resize_image_with_crop_or_pad", image)
        sides, targets = sizes_of(x), (target_height, target_width)
        known = all(isinstance(n, int) for n in (*sides, *targets))
        most, least, half = (max, min, int.__floordiv__) if known else (maximum, minimum, floor_div)
        missing = [target - side for target, side in zip(targets, sides, strict=True)]
        inner = [least(target, side) for target, side in zip(targets, sides, strict=True)]
        top, left = (most(half(-n, 2), 0) for n in missing)
        cropped = crop_to_bounding_box(x, top, left, inner[0], inner[1])
        top, left = (most(half(n, 2), 0) for n in missing)
        padded = pad_to_bounding_box(cropped, top, left, target_height, target_width)
        return padded if is_batch else squeeze(padded, [0])


resize_with_crop_or_pad = resize_image_with_crop_or_pad


def central_crop(image: NumericLike, central_fraction: float) -> Tensor:
    """The middle of the image, with ``central_fraction``, above 0 and at most 1, of its height and width."""
    if not 0 < central_fraction <= 1:
        raise misuse(
            f"central_crop: expected a fraction above 0 and at most 1; got {central_fraction}",
            InvalidArgumentError,
        )
    with name_scope(None, "central_crop", [image]):
        x, is_batch = with_batch("central_crop", image)
        if central_fraction == 1:
            return convert_to_tensor(image)
        begins = [_margin(side, central_fraction) for side in sizes_of(x)]
        sizes = [side - 2 * begin for side, begin in zip(sizes_of(x), begins, strict=True)]
        part = crop_to_bounding_box(x, *begins, *sizes)
        return part if is_batch else squeeze(part, [0])


def _margin(side: Any, fraction: float) -> Any:
    if isinstance(side, int):
        return int((side - side * fraction) / 2)
    return cast((cast(side, float64) - cast(side, float64) * fraction) / 2, int32)


def flip_left_right(image: NumericLike) -> Tensor:
    """The image with its columns in reverse order."""
    return _reversed("flip_left_right", image, -2)


def flip_up_down(image: NumericLike) -> Tensor:
    """The image with its rows in reverse order."""
    return _reversed("flip_up_down", image, -3)


def _reversed(function: str, image: Any, axis: int) -> Tensor:
    with name_scope(None, function, [image]):
        x = convert_to_tensor(image)
        return reverse(x, [len(x.shape) + axis if x.shape.ndims is not None else axis])


def random_flip_left_right(image: NumericLike, seed: int | None = None) -> Tensor:
    """The image, or `flip_left_right` of it, with equal chances, drawn in each step for each image.

    Example:
        >>> tf.image.random_flip_left_right(tf.ones([4, 4, 3])).shape.as_list()
        [4, 4, 3]
    """
    return _flipped_at_random("random_flip_left_right", image, 2, seed)


def random_flip_up_down(image: NumericLike, seed: int | None = None) -> Tensor:
    """The image, or `flip_up_down` of it, with equal chances, drawn in each step for each image."""
    return _flipped_at_random("random_flip_up_down", image, 1, seed)


def _flipped_at_random(function: str, image: Any, axis: int, seed: int | None) -> Tensor:
    with name_scope(None, function, [image]):
        x, is_batch = with_batch(function, image)
        if is_batch:
            kept = less(0.5, random_uniform(shape(x)[:1], 0, 1, seed=seed))
            return where(kept, x, reverse(x, [axis]))
        single = convert_to_tensor(image)
        flipped = less(random_uniform([], 0, 1, seed=seed), 0.5)
        return cond(flipped, lambda: reverse(single, [axis - 1]), lambda: identity(single))


def rot90(image: NumericLike, k: NumericLike = 1, name: str | None = None) -> Tensor:
    """The image turned ``k`` times by 90 degrees to the left. Raises `InvalidArgumentError` for a ``k`` that
    is not known while the graph is built.
    """
    times = static_value(convert_to_tensor(k, int32))
    if times is None:
        raise misuse(f"rot90: expected a known k; got {k!r}", InvalidArgumentError)
    with name_scope(name, "rot90", [image]):
        x, is_batch = with_batch("rot90", image)
        turned = {
            0: lambda: x,
            1: lambda: transpose(reverse(x, [2]), [0, 2, 1, 3]),
            2: lambda: reverse(x, [1, 2]),
            3: lambda: reverse(transpose(x, [0, 2, 1, 3]), [2]),
        }[times % 4]()
        return turned if is_batch else squeeze(turned, [0])


def transpose_image(image: NumericLike, name: str | None = None) -> Tensor:
    """The image with rows and columns exchanged."""
    with name_scope(name, "transpose_image", [image]):
        x, is_batch = with_batch("transpose_image", image)
        turned = transpose(x, [0, 2, 1, 3])
        return turned if is_batch else squeeze(turned, [0])
