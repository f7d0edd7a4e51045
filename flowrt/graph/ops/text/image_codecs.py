"""Ops between encoded images (JPEG, PNG, BMP, GIF) and arrays ``[height, width, channels]``, by Pillow.

A decoding op takes any of the formats, as TensorFlow's do; the bytes tell which it is. The result has the
image's own channels (1: grey, 2: grey and alpha, 3: colours, 4: colours and alpha) or those asked for.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array
from flowrt.graph.shapes import Shape, format_shape

Array = np.ndarray[Any, Any]
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
_FORMATS = ("JPEG", "PNG", "BMP", "GIF")


def _pillow() -> Any:
    """Pillow's module of images. Raises `FailedPreconditionError` if it is not installed."""
    try:
        from PIL import Image
    except ImportError:
        raise FailedPreconditionError(
            "images are decoded and encoded by Pillow; pip install 'flowrt[images]'"
        ) from None
    return Image


@contextmanager
def _opened(contents: Any) -> Any:
    """The image in ``contents``. Raises `InvalidArgumentError` for bytes that are none, or a damaged one."""
    data, library = host_array(contents).item(), _pillow()
    try:
        with library.open(io.BytesIO(data), formats=_FORMATS) as image:
            yield image
    except (OSError, SyntaxError, ValueError, EOFError, library.DecompressionBombError) as error:
        raise InvalidArgumentError(
            f"contents: expected a JPEG, PNG, BMP or GIF image; got {len(data)} bytes that begin with "
            f"{data[:8]!r}: {error}"
        ) from None


def _own_channels(image: Any) -> int:
    if image.mode == "P":
        return 4 if "transparency" in image.info else 3
    return {"1": 1, "L": 1, "I;16": 1, "I;16B": 1, "I": 1, "LA": 2, "RGBA": 4}.get(image.mode, 3)


def _pixels(image: Any, channels: int, dtype: DType) -> Array:
    """The array of an image, or of its current frame."""
    wanted = channels or _own_channels(image)
    deep = image.mode in ("I;16", "I;16B", "I") and image.format == "PNG"
    if deep and wanted == 1 and dtype is dtypes.uint16:
        return np.asarray(image, np.uint16)[..., np.newaxis]
    if deep:
        image = _pillow().fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if wanted == 1 and image.mode in ("RGB", "RGBA", "P"):
        found = _brightness(np.asarray(image.convert("RGB"), np.int64))
    else:
        found = np.array(image.convert(_MODES[wanted]), np.uint8)
    found = found.reshape(*found.shape[:2], wanted)
    return found.astype(np.uint16) * 257 if dtype is dtypes.uint16 else found


def _brightness(colors: Array) -> Array:
    """Grey of colours, by libpng's rule; a JPEG image has its own."""
    return ((colors @ np.array([9798, 19234, 3736])) >> 15).astype(np.uint8)[..., np.newaxis]


def _frames(image: Any, channels: int, dtype: DType = dtypes.uint8) -> Array:
    frames = []
    for place in range(getattr(image, "n_frames", 1)):
        image.seek(place)
        frames.append(_pixels(image, channels, dtype))
    return np.stack(frames)


def _one(contents: Any, channels: int, dtype: DType = dtypes.uint8, ratio: int = 1) -> Array:
    with _opened(contents) as image:
        if getattr(image, "n_frames", 1) > 1:
            raise InvalidArgumentError("contents: expected one image; got an animation: use decode_gif")
        if image.format == "JPEG":
            image.draft("L" if channels == 1 else None, [-(-size // ratio) for size in image.size])
        return _pixels(image, channels, dtype)


def _check_channels(allowed: Sequence[int]) -> Callable[[ShapeContext], Sequence[Shape]]:
    def shape(s: ShapeContext) -> Sequence[Shape]:
        if s.shapes[0] not in (None, ()):
            raise InvalidArgumentError(f"contents: expected a scalar; got {format_shape(s.shapes[0])}")
        channels = s.attrs.get("channels", 3)
        if channels not in allowed:
            raise InvalidArgumentError(f"channels: expected one of {list(allowed)}; got {channels}")
        return [(None, None, channels or None)]

    return shape


def _encoded(image: Array, **options: Any) -> bytes:
    file = io.BytesIO()
    _pillow().fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(file, **options)
    return file.getvalue()


def _sample_images(rng: np.random.Generator) -> list[Array]:
    ramp = np.arange(4 * 6 * 4, dtype=np.uint8).reshape(4, 6, 4)
    return [ramp[..., :1], ramp[..., :3], ramp]


def _contents(image: Array, kind: str) -> Any:
    return string_array([_encoded(image, format=kind)], ()) if _has_pillow() else None


def _has_pillow() -> bool:
    try:
        return bool(_pillow())
    except FailedPreconditionError:
        return False


def _decoding_samples(kind: str, **attrs: Any) -> Callable[[np.random.Generator], list[Sample]]:
    def samples(rng: np.random.Generator) -> list[Sample]:
        images = [image for image in _sample_images(rng) if kind == "PNG" or image.shape[-1] != 4]
        return [sample(_contents(image, kind), **attrs) for image in images] if _has_pillow() else []

    return samples


_JPEG = (
    "ratio: int = 1, fancy_upscaling: bool = True, try_recover_truncated: bool = False, "
    "acceptable_fraction: float = 1.0, dct_method: string = ''"
)

decode_jpeg_op: OpDef[Tensor] = define_op(
    "DecodeJpeg",
    "contents: string -> image: uint8",
    attrs=f"channels: int = 0, {_JPEG}",
    shape=_check_channels((0, 1, 3)),
    kernel=lambda xp, contents, channels, ratio: _one(contents, channels, ratio=ratio),
    vjp=NONDIFFERENTIABLE,
    samples=_decoding_samples("JPEG"),
    doc="The pixels of a JPEG image, with a ``ratio``-th of its height and width (1, 2, 4 or 8).",
)

decode_png_op: OpDef[Tensor] = define_op(
    "DecodePng",
    "contents: string -> image: dtype in uint8 | uint16",
    attrs="channels: int = 0, dtype: type = uint8",
    shape=_check_channels((0, 1, 2, 3, 4)),
    kernel=lambda xp, contents, channels, dtype: _one(contents, channels, dtype),
    vjp=NONDIFFERENTIABLE,
    samples=_decoding_samples("PNG", dtype=dtypes.uint8),
    doc="The pixels of a PNG image, as uint8 or uint16.",
)

decode_bmp_op: OpDef[Tensor] = define_op(
    "DecodeBmp",
    "contents: string -> image: uint8",
    attrs="channels: int = 0",
    shape=_check_channels((0, 1, 3, 4)),
    kernel=lambda xp, contents, channels: _one(contents, channels),
    vjp=NONDIFFERENTIABLE,
    samples=_decoding_samples("BMP"),
    doc="The pixels of a BMP image.",
)


def _gif(xp: Any, contents: Any) -> Array:
    with _opened(contents) as image:
        return _frames(image, 3)


decode_gif_op: OpDef[Tensor] = define_op(
    "DecodeGif",
    "contents: string -> image: uint8",
    shape=lambda s: [(None, None, None, 3)],
    kernel=_gif,
    vjp=NONDIFFERENTIABLE,
    samples=_decoding_samples("GIF"),
    doc="The frames of a GIF image, ``[frames, height, width, 3]``.",
)


def _any(xp: Any, contents: Any, channels: int, expand_animations: bool, dtype: DType) -> Array:
    with _opened(contents) as image:
        if image.format == "GIF" and expand_animations:
            return _frames(image, channels or 3, dtype)
        return _pixels(image, channels or (3 if image.format == "GIF" else 0), dtype)


def _any_shape(s: ShapeContext) -> Sequence[Shape]:
    (known,) = _check_channels((0, 1, 3, 4))(s)
    return [None if s.attrs["expand_animations"] else known]


decode_image_op: OpDef[Tensor] = define_op(
    "DecodeImage",
    "contents: string -> image: dtype in uint8 | uint16",
    attrs="channels: int = 0, expand_animations: bool = True, dtype: type = uint8",
    shape=_any_shape,
    kernel=_any,
    vjp=NONDIFFERENTIABLE,
    samples=_decoding_samples("PNG"),
    doc="The pixels of an image of any format; the frames of a GIF image have a dimension of their own.",
)


def _image_shape(s: ShapeContext) -> Sequence[Shape]:
    shape = s.shapes[0]
    if shape is not None and (len(shape) != 3 or shape[2] not in (None, 1, 2, 3, 4)):
        raise InvalidArgumentError(f"image: expected [height, width, channels]; got {format_shape(shape)}")
    return [()]


def _jpeg(
    xp: Any, image: Any, format: str, quality: int, progressive: bool, optimize_size: bool,
    chroma_downsampling: bool, x_density: int, y_density: int,
) -> Any:  # fmt: skip
    channels = {"": image.shape[-1], "grayscale": 1, "rgb": 3}.get(format)
    if image.shape[-1] != channels or channels not in (1, 3) or not 0 <= quality <= 100:
        raise InvalidArgumentError(
            f"expected 1 channel or 3 as format {format!r} says, quality from 0 to 100; got shape "
            f"{format_shape(image.shape)}, quality {quality}"
        )
    made = _encoded(
        host_array(image), format="JPEG", quality=max(quality, 1), progressive=progressive,
        optimize=optimize_size, subsampling=2 if chroma_downsampling else 0, dpi=(x_density, y_density),
    )  # fmt: skip
    return string_array([made], ())


encode_jpeg_op: OpDef[Tensor] = define_op(
    "EncodeJpeg",
    "image: uint8 -> contents: string",
    attrs="format: string = '', quality: int = 95, progressive: bool = False, optimize_size: bool = False, "
    "chroma_downsampling: bool = True, density_unit: string = 'in', x_density: int = 300, "
    "y_density: int = 300, xmp_metadata: string = ''",
    shape=_image_shape,
    kernel=_jpeg,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(image) for image in _sample_images(rng)[:2]] if _has_pillow() else [],
    doc="An image ``[height, width, 1 or 3]`` in the format JPEG.",
)


def _png(xp: Any, image: Any, compression: int) -> Any:
    level = 6 if compression == -1 else compression
    array = host_array(image)
    if array.dtype == np.uint16 and array.shape[-1] != 1:
        raise InvalidArgumentError(f"expected 1 channel of uint16; got {array.shape[-1]}")
    return string_array([_encoded(array, format="PNG", compress_level=level)], ())


encode_png_op: OpDef[Tensor] = define_op(
    "EncodePng",
    "image: T in uint8 | uint16 -> contents: string",
    attrs="compression: int = -1",
    shape=_image_shape,
    kernel=_png,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [sample(image) for image in _sample_images(rng)] if _has_pillow() else [],
    doc="An image ``[height, width, 1 to 4]`` in the format PNG.",
)
