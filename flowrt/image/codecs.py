"""Encoded images, decoded to uint8 and encoded."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.dtypes import as_dtype, int32, uint8, uint16
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.text.image_codecs import (
    decode_bmp_op,
    decode_gif_op,
    decode_image_op,
    decode_jpeg_op,
    decode_png_op,
    encode_jpeg_op,
    encode_png_op,
)
from flowrt.graph.ops.text.strings import substr
from flowrt.image.coloring import convert_image_dtype
from flowrt.image.framing import crop_to_bounding_box
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "adjust_jpeg_quality", "decode_and_crop_jpeg", "decode_bmp", "decode_gif", "decode_image", "decode_jpeg",
    "decode_png", "encode_jpeg", "encode_png", "extract_jpeg_shape", "is_jpeg", "random_jpeg_quality",
]  # fmt: skip


def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The uint8 pixels of a JPEG image, and of the other formats too: [height, width, channels].

    ``channels`` is 1 (grey), 3 (colours), or 0 for the image's own. ``ratio`` 2, 4 or 8 gives an image that
    is as many times smaller, and is read faster. The other options are accepted: libjpeg's defaults hold.

    Raises `InvalidArgumentError`, when run, for contents that are no image or a damaged one, and
    `FailedPreconditionError` without Pillow. Pixels may differ by a few units from those of another libjpeg.
    """
    return decode_jpeg_op(
        contents, channels=channels or 0, ratio=ratio, fancy_upscaling=fancy_upscaling,
        try_recover_truncated=try_recover_truncated, acceptable_fraction=acceptable_fraction,
        dct_method=dct_method, name=name,
    )  # fmt: skip


def decode_and_crop_jpeg(
    contents: Any,
    crop_window: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The part ``crop_window``, [top, left, height, width], of `decode_jpeg`."""
    with name_scope(name, "DecodeAndCropJpeg", [contents]):
        image = decode_jpeg(
            contents, channels, ratio, fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method
        )
        return crop_to_bounding_box(image, *(crop_window[i] for i in range(4)))


def decode_png(contents: Any, channels: int = 0, dtype: Any = uint8, name: str | None = None) -> Tensor:
    """The pixels of a PNG image, uint8 or uint16: [height, width, channels]. ``channels`` is from 1 to 4, or
    0 for the image's own. See `decode_jpeg`.
    """
    return decode_png_op(contents, channels=channels or 0, dtype=as_dtype(dtype), name=name)


def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Tensor:
    """The pixels of a BMP image. See `decode_jpeg`."""
    return decode_bmp_op(contents, channels=channels or 0, name=name)


def decode_gif(contents: Any, name: str | None = None) -> Tensor:
    """The frames of a GIF image: [frames, height, width, 3] uint8. See `decode_jpeg`."""
    return decode_gif_op(contents, name=name)


def decode_image(
    contents: Any,
    channels: int | None = None,
    dtype: Any = uint8,
    name: str | None = None,
    expand_animations: bool = True,
) -> Tensor:
    """The pixels of an image of any format, converted to ``dtype``: [height, width, channels], and for a GIF
    image [frames, height, width, 3], or without ``expand_animations`` its first frame. The shape is not known
    while the graph is built, unless there are no frames. See `decode_jpeg`.
    """
    with name_scope(name, "decode_image", [contents]):
        wanted = as_dtype(dtype)
        read_as = uint16 if wanted.is_floating or wanted is uint16 else uint8  # so that PNG's 16 bits count
        image = decode_image_op(
            contents, channels=channels or 0, expand_animations=expand_animations, dtype=read_as
        )
        return convert_image_dtype(image, wanted)


def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    """A JPEG image of uint8 pixels, [height, width, 1 or 3]. ``format`` is "grayscale" or "rgb", or "" for as
    many channels as there are. ``quality`` is from 0 to 100. ``density_unit`` and ``xmp_metadata`` have
    no effect.
    """
    return encode_jpeg_op(
        image, format=format, quality=quality, progressive=progressive, optimize_size=optimize_size,
        chroma_downsampling=chroma_downsampling, density_unit=density_unit, x_density=x_density,
        y_density=y_density, xmp_metadata=xmp_metadata, name=name,
    )  # fmt: skip


def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """A PNG image of uint8 pixels, [height, width, 1 to 4], or of uint16 ones, [height, width, 1];
    ``compression`` is from 0 to 9, -1 for zlib's default.
    """
    return encode_png_op(image, compression=compression, name=name)


def is_jpeg(contents: Any, name: str | None = None) -> Tensor:
    """A bool scalar: whether the contents begin as a JPEG image does."""
    with name_scope(name, "is_jpeg"):
        return equal(substr(contents, 0, 3), b"\xff\xd8\xff")


def extract_jpeg_shape(contents: Any, output_type: Any = int32, name: str | None = None) -> Tensor:
    """Height, width and channels of a JPEG image."""
    with name_scope(name, "ExtractJpegShape"):
        return cast(shape(decode_jpeg(contents)), output_type)


def adjust_jpeg_quality(
    image: Any, jpeg_quality: int, dct_method: str = "", name: str | None = None
) -> Tensor:
    """The image as JPEG of this quality, from 0 to 100, would store it; ``image`` is [height, width, 1 or
    3].
    """
    with name_scope(name, "adjust_jpeg_quality", [image]):
        small = convert_image_dtype(image, uint8, saturate=True)
        stored = decode_jpeg(encode_jpeg(small, quality=jpeg_quality), dct_method=dct_method)
        return convert_image_dtype(stored, getattr(image, "dtype", uint8), saturate=True)


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Tensor:
    """`adjust_jpeg_quality` of a quality that is drawn once, while the graph is built, as TensorFlow does."""
    quality = np.random.default_rng(seed).integers(min_jpeg_quality, max_jpeg_quality)
    return adjust_jpeg_quality(image, int(quality))
