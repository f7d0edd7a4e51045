"""Pictures: patches, gradients of resizing as training graphs have them, convolutions with their padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from flowrt.errors import ResourceExhaustedError
from flowrt.functions.arrangements import extract_image_patches
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.gradients import gradients
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.base.filling import zeros, zeros_like
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.nn.conv_functions import conv2d
from flowrt.graph.ops.nn.resize import resize_bicubic_op, resize_bilinear_op, resize_nearest_neighbor_op
from flowrt.image.codecs import decode_jpeg
from flowrt.image.random_boxes import sample_distorted_bounding_box
from flowrt.tf1.composed_ops.composition import composed, known

MAX_PATCH = 1 << 13
"""Numbers of a patch: its square is the size of the filter that is made for it."""


@composed(
    "ExtractImagePatches",
    "images: T -> patches: T",
    "ksizes: list(int), strides: list(int), rates: list(int), padding: string",
)
def patches(
    images: Tensor, ksizes: Sequence[int], strides: Sequence[int], rates: Sequence[int], padding: str
) -> Tensor:
    length = math.prod(ksizes) * (images.shape.as_list()[-1] or 1)
    if length > MAX_PATCH:
        raise ResourceExhaustedError(f"expected patches of at most {MAX_PATCH} numbers; got {length}")
    return extract_image_patches(images, ksizes, strides, rates, padding)


_RESIZED = "align_corners: bool = False, half_pixel_centers: bool = False"


def _gradient_of_resize(name: str, op: OpDef[Tensor]) -> None:
    @composed(name, "grads: float32, original_image: T -> output: T", _RESIZED)
    def gradient(grads: Tensor, original: Tensor, **flags: Any) -> Any:
        """The transpose of the op, of which an image of zeros says enough."""
        image = zeros_like(original)
        resized = op(image, shape(grads)[1:3], **flags)
        return gradients(resized, image, grads)[0]


_gradient_of_resize("ResizeBilinearGrad", resize_bilinear_op)
_gradient_of_resize("ResizeBicubicGrad", resize_bicubic_op)


@composed("ResizeNearestNeighborGrad", "grads: T, size: int32 -> output: T", _RESIZED)
def nearest_gradient(grads: Tensor, size: Tensor, **flags: Any) -> Any:
    batch, *sizes, channels = grads.shape.as_list()
    image = zeros([shape(grads)[0] if batch is None else batch, *known(size, "size"), channels], grads.dtype)
    return gradients(resize_nearest_neighbor_op(image, sizes, **flags), image, grads)[0]


_CONV = "mode: string, strides: list(int), padding: string"


@composed("FusedPadConv2D", "input: T, paddings: int32, filter: T -> output: T", _CONV)
def padded_conv(
    images: Any, paddings: Tensor, filters: Tensor, mode: str, strides: Sequence[int], padding: Any
) -> Tensor:
    return conv2d(pad(images, paddings, mode=mode), filters, strides=list(strides), padding=padding)


@composed(
    "FusedResizeAndPadConv2D",
    "input: T, size: int32, paddings: int32, filter: T -> output: T",
    f"resize_align_corners: bool = False, {_CONV}",
)
def resized_conv(
    images: Tensor, size: Tensor, paddings: Tensor, filters: Tensor, resize_align_corners: bool, **how: Any
) -> Tensor:
    resized = resize_bilinear_op(images, size, align_corners=resize_align_corners)
    return padded_conv(resized, paddings, filters, **how)


@composed(
    "DecodeAndCropJpeg",
    "contents: string, crop_window: int32 -> image: uint8",
    "channels: int = 0, ratio: int = 1, fancy_upscaling: bool = True, "
    "try_recover_truncated: bool = False, acceptable_fraction: float = 1.0, dct_method: string = ''",
)
def part_of_jpeg(contents: Tensor, crop_window: Tensor, channels: int, **how: Any) -> Tensor:
    image = decode_jpeg(contents, channels=channels, **how)
    top, left, height, width = (crop_window[i] for i in range(4))
    return image[top : top + height, left : left + width]


_DISTORTED = (
    "seed: int = 0, seed2: int = 0, aspect_ratio_range: list(float) = (0.75, 1.33), "
    "area_range: list(float) = (0.05, 1.0), max_attempts: int = 100, "
    "use_image_if_no_bounding_boxes: bool = False"
)
_BOX = "begin: T, size: T, bboxes: float32"


@composed(
    "SampleDistortedBoundingBoxV2",
    f"image_size: T, bounding_boxes: float32, min_object_covered: float32 -> {_BOX}",
    _DISTORTED,
)
def distorted_box(image_size: Tensor, boxes: Tensor, covered: Tensor, **how: Any) -> list[Tensor]:
    return list(sample_distorted_bounding_box(image_size, boxes, min_object_covered=covered, **how))


@composed(
    "SampleDistortedBoundingBox",
    f"image_size: T, bounding_boxes: float32 -> {_BOX}",
    f"min_object_covered: float = 0.1, {_DISTORTED}",
)
def distorted_box_v1(image_size: Tensor, boxes: Tensor, **how: Any) -> list[Tensor]:
    return list(sample_distorted_bounding_box(image_size, boxes, **how))
