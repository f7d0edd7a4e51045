"""Summaries: values reported to TensorBoard, as strings that hold encoded Summary messages.

They are host ops without side effects: nothing is written until one is fetched and passed to a `FileWriter`.
A summary's tag is its operation's name, so tags nest as name scopes do. The messages' classes are imported at
the first run, because importing protobuf takes 30 ms.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from flowrt import dtypes, protos
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.messages.tensor_proto import encode_tensor
from flowrt.graph.op_def import Attr, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array, words
from flowrt.graph.shapes import Shape, compatible, format_shape
from flowrt.graph.typing import TensorLike

SUMMARIES = "summaries"
"""The collection that new summaries join."""

Array = np.ndarray[Any, Any]


def _scalar_shape(s: ShapeContext) -> list[Shape]:
    return [()]


def _encoded(summary: Any) -> Array:
    return string_array([summary.SerializeToString()], ())


def _tag(tag: Any) -> str:
    return str(host_array(tag).item().decode())


def _name(value: bytes) -> Array:
    """A string scalar, for samples."""
    return string_array([value], ())


# --- scalars


def _same_shapes(s: ShapeContext) -> list[Shape]:
    if not compatible(*s.shapes):
        tags, values = map(format_shape, s.shapes)
        raise InvalidArgumentError(f"expected tags and values of one shape; got {tags} and {values}")
    return [()]


def _scalar_kernel(xp: Any, tags: Any, values: Any) -> Array:
    tags, values = host_array(tags), host_array(values)
    if tags.shape != values.shape:
        shapes = f"{format_shape(tags.shape)} and {format_shape(values.shape)}"
        raise InvalidArgumentError(f"expected tags and values of one shape; got {shapes}")
    summary = protos.event_pb2.Summary()
    for tag, value in zip(tags.ravel().tolist(), values.ravel().tolist(), strict=True):
        summary.value.add(tag=tag.decode(), simple_value=value)
    return _encoded(summary)


scalar_summary = define_op(
    "ScalarSummary",
    "tags: string, values: T in REAL -> summary: string",
    shape=_same_shapes,
    kernel=_scalar_kernel,
    samples=lambda rng: [
        sample(_name(b"loss"), np.float32(0.5)),
        sample(words(b"a", b"b"), np.array([1, 2], np.int64)),
    ],
    doc="Numbers under their tags.",
)


def scalar(
    name: str, tensor: TensorLike, collections: Sequence[str] | None = None, family: str | None = None
) -> Tensor:
    """A summary of one number.

    Args:
        name: The tag, in the current name scope; characters that names may not have become ``_``.
        tensor: A real scalar.
        collections: Names of the collections that it joins: by default the one of `merge_all`.
        family: A prefix of the tag, which groups the summary with others.

    Returns:
        A string scalar, an encoded Summary for `summary.FileWriter`.

    Example:
        >>> loss = tf.constant(0.5)
        >>> tf.summary.scalar('loss', loss).op.name
        'loss'
        >>> with tf.summary.FileWriter('logs') as writer:
        ...     writer.add_summary(session.run(tf.summary.merge_all()), global_step=1)
    """
    with tagged(name, family) as (scope, tag):
        return collected(scalar_summary(tag, tensor, name=scope), collections)


# --- histograms


@cache
def bucket_limits() -> Array:
    """The upper ends of TensorFlow's buckets: 1e-12 and up in steps of 10 %, their negatives, 0, and the
    largest.
    """
    positive, limit = [], 1e-12
    while limit < 1e20:
        positive.append(limit)
        limit *= 1.1
    positive.append(np.finfo(np.float64).max)
    return np.array([*(-v for v in reversed(positive)), 0.0, *positive])


def fill_histogram(message: Any, values: Array) -> None:
    """Write the histogram of finite float64 ``values`` into a HistogramProto.

    Empty buckets in a row become one.
    """
    limits = bucket_limits()
    counts = np.bincount(np.searchsorted(limits, values, side="right"), minlength=len(limits))[: len(limits)]
    full = counts > 0
    # a bucket is kept if it is full, or empty before a full one, or the last
    kept = full | (np.append(full[1:], True) if len(full) else full)
    message.min, message.max = values.min(initial=limits[-1]), values.max(initial=limits[0])
    message.num, message.sum, message.sum_squares = values.size, values.sum(), np.square(values).sum()
    message.bucket_limit.extend(limits[kept].tolist())
    message.bucket.extend(counts[kept].tolist())


def _histogram_kernel(xp: Any, tag: Any, values: Any) -> Array:
    values = host_array(values).astype(np.float64).ravel()
    if not np.isfinite(values).all():
        found = "NaN" if np.isnan(values).any() else "infinity"
        raise InvalidArgumentError(f"histogram {_tag(tag)!r}: expected finite values; got {found}")
    summary = protos.event_pb2.Summary()
    fill_histogram(summary.value.add(tag=_tag(tag)).histo, values)
    return _encoded(summary)


histogram_summary = define_op(
    "HistogramSummary",
    "tag: string, values: T in REAL -> summary: string",
    shape=_scalar_shape,
    kernel=_histogram_kernel,
    samples=lambda rng: [
        sample(_name(b"h"), rng.standard_normal((3, 4)), differentiable=False),
        sample(_name(b"h"), np.array([], np.int32)),
    ],
    doc="The distribution of values.",
)


def histogram(
    name: str, values: Any, collections: Sequence[str] | None = None, family: str | None = None
) -> Tensor:
    """A summary of how values are distributed.

    Args:
        name: The tag: see `scalar`.
        values: Real numbers of any shape.
        collections: Names of the collections that it joins: by default the one of `merge_all`.
        family: A prefix of the tag.

    Returns:
        A string scalar, an encoded Summary.

    Raises:
        InvalidArgumentError: When run, for NaN and infinities.

    Example:
        >>> weights = tf.random_normal([100])
        >>> tf.summary.histogram('weights', weights).op.name
        'weights'
    """
    with tagged(name, family) as (scope, tag):
        return collected(histogram_summary(tag, values, name=scope), collections)


# --- text


def _tensor_kernel(xp: Any, tag: Any, tensor: Any, serialized_summary_metadata: Any) -> Array:
    summary = protos.event_pb2.Summary()
    value = summary.value.add(tag=_tag(tag))
    value.metadata.ParseFromString(host_array(serialized_summary_metadata).item())
    encode_tensor(value.tensor, host_array(tensor))
    return _encoded(summary)


tensor_summary = define_op(
    "TensorSummaryV2",
    "tag: string, tensor: T in ANY, serialized_summary_metadata: string -> summary: string",
    shape=_scalar_shape,
    kernel=_tensor_kernel,
    samples=lambda rng: [sample(_name(b"t"), np.arange(3), _name(b""))],
    doc="A tensor under its tag, and which of TensorBoard's plugins shows it.",
)

_TEXT_METADATA = b"\x0a\x06\x0a\x04text"  # SummaryMetadata(plugin_data=PluginData(plugin_name="text"))


def text(name: str, tensor: TensorLike, collections: Sequence[str] | None = None) -> Tensor:
    """A summary of strings, a scalar or a table; TensorBoard shows them as Markdown.

    Arguments as for `scalar`.
    """
    with tagged(name, None) as (scope, tag):
        strings = convert_to_tensor(tensor)
        if strings.dtype is not dtypes.string:
            raise DTypeError(f"summary.text {tag!r}: expected strings; got {strings.dtype.name}")
        return collected(tensor_summary(tag, strings, _TEXT_METADATA, name=scope), collections)


# --- images


def _image_kernel(xp: Any, tag: Any, tensor: Any, max_images: int, bad_color: Array) -> Array:
    images = host_array(tensor)
    if images.ndim != 4 or images.shape[3] not in _PNG_COLOR:
        raise InvalidArgumentError(f"expected {_IMAGE_SHAPE}; got {format_shape(images.shape)}")
    summary, name = protos.event_pb2.Summary(), _tag(tag)
    for i, image in enumerate(images[:max_images]):
        pixels = image if image.dtype == np.uint8 else _as_bytes(image.astype(np.float32), bad_color)
        value = summary.value.add(tag=f"{name}/image/{i}" if max_images > 1 else f"{name}/image")
        height, width, channels = pixels.shape
        value.image.height, value.image.width, value.image.colorspace = height, width, channels
        value.image.encoded_image_string = encode_png(pixels)
    return _encoded(summary)


_IMAGE_SHAPE = "images of shape [batch, height, width, 1, 3 or 4]"
_PNG_COLOR = {1: 0, 3: 2, 4: 6}  # channels: PNG's number for grey, RGB, RGBA


def _as_bytes(image: Array, bad_color: Array) -> Array:
    """TensorFlow's scaling: the largest value becomes 255; if some are negative, 0 becomes 128."""
    finite = np.isfinite(image).all(axis=2)
    good = image[finite]
    low, high = good.min(initial=0.0), good.max(initial=0.0)
    offset, room, largest = (128.0, 127.0, max(-low, high)) if low < 0 else (0.0, 255.0, high)
    scale = room / largest if largest >= 1e-6 else 0.0
    pixels = np.empty(image.shape, np.uint8)
    pixels[finite] = (good * np.float32(scale) + np.float32(offset)).astype(np.uint8)
    pixels[~finite] = bad_color[: image.shape[2]]
    return pixels


def encode_png(pixels: Array) -> bytes:
    """A PNG file of uint8 ``pixels`` [height, width, 1, 3 or 4]."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_COLOR[channels], 0, 0, 0)
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each begins with 0: not filtered
    rows[:, 1:] = pixels.reshape(height, -1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _check_images(s: ShapeContext) -> list[Shape]:
    shape = s.shapes[1]
    if shape is not None and (len(shape) != 4 or shape[3] not in (None, *_PNG_COLOR)):
        raise InvalidArgumentError(f"expected {_IMAGE_SHAPE}; got {format_shape(shape)}")
    return [()]


image_summary = define_op(
    "ImageSummary",
    "tag: string, tensor: T in uint8 | float16 | float32 | float64 -> summary: string",
    attrs={"max_images": Attr("int", 3), "bad_color": Attr("tensor", np.array([255, 0, 0, 255], np.uint8))},
    shape=_check_images,
    kernel=_image_kernel,
    samples=lambda rng: [
        sample(_name(b"i"), rng.integers(0, 256, (2, 3, 4, 3)).astype(np.uint8)),
        sample(_name(b"i"), rng.standard_normal((1, 2, 2, 1)).astype(np.float32), differentiable=False),
    ],
    doc="Images as PNG files.",
)


def image(
    name: str,
    tensor: TensorLike,
    max_outputs: int = 3,
    collections: Sequence[str] | None = None,
    family: str | None = None,
) -> Tensor:
    """A summary of images.

    Args:
        name: The tag: see `scalar`.
        tensor: Images ``[batch, height, width, 1, 3 or 4]``. uint8 values are used unchanged. Floats are
            scaled, each image separately: its largest value becomes 255, and if some are negative, 0 becomes
            128 first. Pixels with NaN or infinity are red.
        max_outputs: The number of images that are shown, the first of the batch.
        collections: Names of the collections that it joins: by default the one of `merge_all`.
        family: A prefix of the tag.

    Returns:
        A string scalar, an encoded Summary.

    Example:
        >>> digits = tf.zeros([10, 28, 28, 1])
        >>> tf.summary.image('digits', digits, max_outputs=2).dtype
        flowrt.string
    """
    with tagged(name, family) as (scope, tag):
        return collected(image_summary(tag, tensor, max_images=max_outputs, name=scope), collections)


# --- merging


def _merge_kernel(xp: Any, inputs: Sequence[Any]) -> Array:
    merged, seen = protos.event_pb2.Summary(), set[str]()
    for encoded in inputs:
        for part in host_array(encoded).ravel().tolist():
            for value in protos.event_pb2.Summary.FromString(part).value:
                if value.tag in seen:
                    raise InvalidArgumentError(f"expected different tags; got {value.tag!r} twice")
                seen.add(value.tag)
                merged.value.append(value)
    return _encoded(merged)


merge_summary = define_op(
    "MergeSummary",
    "inputs: N * string -> summary: string",
    shape=_scalar_shape,
    kernel=_merge_kernel,
    samples=lambda rng: [sample((_name(b"\x0a\x03\x0a\x01a"), _name(b"\x0a\x03\x0a\x01b")))],
    doc="Several summaries as one.",
)


def merge(inputs: Sequence[Any], collections: Sequence[str] | None = None, name: str | None = None) -> Tensor:
    """Several summaries in one.

    Args:
        inputs: Summaries, as `scalar` and the like make them.
        collections: Names of the collections that it joins; by default none.

    Returns:
        A string scalar, an encoded Summary.

    Raises:
        InvalidArgumentError: When run, if two have one tag.

    Example:
        >>> summaries = [tf.summary.scalar('a', 1.0), tf.summary.scalar('b', 2.0)]
        >>> message = tf.Summary.FromString(session.run(tf.summary.merge(summaries)))
        >>> [(value.tag, value.simple_value) for value in message.value]
        [('a', 1.0), ('b', 2.0)]
    """
    with get_default_graph().name_scope(_clean(name or "Merge")):
        merged: Tensor = merge_summary(list(inputs))
        get_default_graph().add_to_collections(collections or (), merged)
        return merged


def merge_all(key: str = SUMMARIES, scope: str | None = None, name: str | None = None) -> Any:
    """All summaries of a collection merged.

    Args:
        key: The collection, that of all summaries by default.
        scope: A regular expression: only summaries with names that begin with it.

    Returns:
        A string scalar; None if there are no summaries.

    Example:
        >>> loss = tf.summary.scalar('loss', 0.5)
        >>> merged = tf.summary.merge_all()
        >>> tf.Summary.FromString(session.run(merged)).value[0].tag
        'loss'
    """
    summaries = get_default_graph().get_collection(key, scope)
    return merge(summaries, name=name) if summaries else None


# --- tags


@contextmanager
def tagged(name: str, family: str | None) -> Iterator[tuple[str, str]]:
    """The scope of a new summary, which is also its operation's name, and its tag."""
    prefix = _clean(family) if family else None
    with get_default_graph().name_scope(f"{prefix}/{_clean(name)}" if prefix else _clean(name)) as scope:
        tag = scope.rstrip("/")
        yield scope, f"{prefix}/{tag}" if prefix else tag  # twice, as in TensorFlow: a scope may come first


def _clean(name: str) -> str:
    return re.sub(r"[^-/\w.]", "_", name, flags=re.ASCII).lstrip("/")


def collected(summary: Tensor, collections: Sequence[str] | None) -> Tensor:
    get_default_graph().add_to_collections((SUMMARIES,) if collections is None else collections, summary)
    return summary
