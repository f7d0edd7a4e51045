"""Ops on strings: splitting, joining, parsing. They run on the host; a string is ``bytes`` in an object
array.

Rules of this file: results are filled in element by element, because NumPy's own conversion of ``bytes``
drops trailing zero bytes.
"""

from __future__ import annotations

import base64
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, define_op, sample
from flowrt.graph.ops.array.reductions import reduced_shape
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise.comparison import broadcast_shape
from flowrt.graph.typing import NumericLike, TensorLike

__all__ = [
    "decode_base64", "decode_raw", "encode_base64", "reduce_join", "regex_replace", "string_join",
    "string_strip", "string_to_number", "substr",
]  # fmt: skip


def string_array(values: Iterable[bytes], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """The strings, row by row, as an array of ``shape``."""
    made = np.empty(shape, object)
    flat = made.reshape(-1)
    for i, value in enumerate(values):
        flat[i] = value
    return made


def host_array(x: Any) -> np.ndarray[Any, Any]:
    """An input as an array: a string may arrive as plain ``bytes``."""
    return (
        x if isinstance(x, np.ndarray) else string_array([x], ()) if isinstance(x, bytes) else np.asarray(x)
    )


def each_string(function: Callable[..., bytes], *inputs: Any) -> np.ndarray[Any, Any]:
    """``function`` of the elements of the inputs, which broadcast."""
    arrays = np.broadcast_arrays(*(host_array(x) for x in inputs))
    return string_array(map(function, *(a.ravel().tolist() for a in arrays)), arrays[0].shape)


def words(*rows: Any) -> np.ndarray[Any, Any]:
    """Strings for samples: a list is a row."""
    shape = np.shape(rows)
    return string_array([w for row in rows for w in (row if isinstance(row, list) else [row])], shape)


# --- string to string


def _define_case(name: str, method: str, doc: str) -> OpDef[Tensor]:
    change = operator.methodcaller(method)

    def function(text: bytes, encoding: str) -> Any:
        return change(text.decode(encoding)).encode(encoding) if encoding else change(text)

    return define_op(
        name,
        "input: string -> string",
        kernel=lambda xp, input, encoding: each_string(lambda text: function(text, encoding), input),
        attrs="encoding: string = ''",
        shape=unchanged,
        samples=lambda rng: (
            sample(words([b"aB", b""])),
            sample(words("h\u00e9".encode()), encoding="utf-8"),
        ),
        batch=leading,
        doc=doc,
    )


string_lower = _define_case(
    "StringLower",
    "lower",
    "Strings in lower case: their ASCII letters, or all letters with ``encoding='utf-8'``.",
)
string_upper = _define_case(
    "StringUpper",
    "upper",
    "Strings in upper case: their ASCII letters, or all letters with ``encoding='utf-8'``.",
)


string_strip = define_op(
    "StringStrip",
    "input: string -> string",
    kernel=lambda xp, input: each_string(bytes.strip, input),
    shape=unchanged,
    samples=lambda rng: (sample(words([b"  a b\n", b""])), sample(words(b" x"))),
    batch=leading,
    doc="Strings without the white space at their ends.",
)


# --- base64, with - and _, as in addresses of the web (RFC 4648, section 5)

_BASE64 = re.compile(rb"([-_A-Za-z0-9]{4})*([-_A-Za-z0-9]{2}(==)?|[-_A-Za-z0-9]{3}=?)?")


def _decode_base64(text: bytes) -> bytes:
    if not _BASE64.fullmatch(text):
        raise InvalidArgumentError(f"expected base64 with - and _; got {text[:40]!r}, of {len(text)} bytes")
    return base64.urlsafe_b64decode(text + b"=" * (-len(text) % 4))


def _encode_base64(text: bytes, pad: bool) -> bytes:
    encoded = base64.urlsafe_b64encode(text)
    return encoded if pad else encoded.rstrip(b"=")


decode_base64 = define_op(
    "DecodeBase64",
    "input: string -> string",
    kernel=lambda xp, input: each_string(_decode_base64, input),
    shape=unchanged,
    samples=lambda rng: (sample(words([b"AP8", b""])), sample(words(b"YQ=="))),
    batch=leading,
    doc="""The bytes of texts in base64 with ``-`` and ``_``, with or without padding.

    A step raises `InvalidArgumentError` for another text.

    >>> flowrt.decode_base64(["aGk"]).eval()
    array([b'hi'], dtype=object)
    """,
)

encode_base64 = define_op(
    "EncodeBase64",
    "input: string -> string",
    kernel=lambda xp, input, pad: each_string(lambda text: _encode_base64(text, pad), input),
    attrs="pad: bool = False",
    shape=unchanged,
    samples=lambda rng: (sample(words([b"\0\xff", b""])), sample(words(b"a"), pad=True)),
    batch=leading,
    doc="Bytes in base64 with ``-`` and ``_``; with ``pad``, to a multiple of four characters.",
)


# --- lengths and parts


def _string_length(xp: Any, input: Any, unit: str, out: Any = None) -> Any:
    texts = host_array(input)
    count = len if unit == "BYTE" else lambda text: len(text.decode())
    lengths = np.array([count(text) for text in texts.ravel()], np.int32)
    return delivered(np, lengths.reshape(texts.shape), np.int32, out)


string_length_op = define_op(
    "StringLength",
    "input: string -> int32",
    kernel=_string_length,
    attrs="unit: string = 'BYTE'",
    shape=unchanged,
    samples=lambda rng: (sample(words([b"ab", b""])), sample(words("h\u00e9".encode()), unit="UTF8_CHAR")),
    batch=leading,
    doc="The lengths of strings in bytes, or in characters with unit 'UTF8_CHAR'.",
)


@elementwise_of_composites
def string_length(input: TensorLike, name: str | None = None, unit: str = "BYTE") -> Tensor:
    """The lengths of strings in bytes, or in characters with ``unit="UTF8_CHAR"``."""
    return string_length_op(input, unit=unit, name=name)


def _substr(text: bytes, pos: int, length: int) -> bytes:
    if not -len(text) <= pos <= len(text):
        raise InvalidArgumentError(f"expected a position within {text!r}; got {pos}")
    start = pos + len(text) if pos < 0 else pos
    return text[start : start + length]


substr: OpDef[Tensor] = define_op(
    "Substr",
    "input: string, pos: T in INDEX, len: T -> string",
    kernel=lambda xp, input, pos, length: each_string(_substr, input, pos, length),
    shape=broadcast_shape,
    samples=lambda rng: (
        sample(words([b"hello", b"world"]), np.array(1, np.int32), np.array(3, np.int32)),
        sample(words(b"hello"), np.array([-3, 5]), np.array([2, 9])),
    ),
    doc="""``len`` bytes of each string from byte ``pos`` on, counted from the end if negative. Raises
    `InvalidArgumentError`, when run, outside of a string.
    """,
)


def _regex_replace(xp: Any, input: Any, pattern: str, rewrite: str, replace_global: bool) -> Any:
    expression, text = re.compile(pattern.encode()), rewrite.encode().replace(b"\\0", b"\\g<0>")
    return each_string(lambda s: expression.sub(text, s, count=0 if replace_global else 1), input)


regex_replace: OpDef[Tensor] = define_op(
    "StaticRegexReplace",
    "input: string -> string",
    kernel=_regex_replace,
    attrs="pattern: string, rewrite: string, replace_global: bool = True",
    shape=unchanged,
    samples=lambda rng: (sample(words([b"hello", b"w"]), pattern="l+", rewrite=r"<\0>"),),
    batch=leading,
    doc="Strings with matches of ``pattern`` (all, or the first) replaced by ``rewrite`` (\\1: a group).",
)


def _regex_full_match(xp: Any, input: Any, pattern: str, out: Any = None) -> Any:
    expression, texts = re.compile(pattern.encode()), host_array(input)
    found = [expression.fullmatch(text) is not None for text in texts.reshape(-1).tolist()]
    return delivered(np, np.array(found, bool).reshape(texts.shape), np.bool_, out)


static_regex_full_match = define_op(
    "StaticRegexFullMatch",
    "input: string -> output: bool",
    kernel=_regex_full_match,
    attrs="pattern: string",
    shape=unchanged,
    samples=lambda rng: (
        sample(words([b"s3://a", b"a"]), pattern="^s3://.*"),
        sample(words(b""), pattern=""),
    ),
    batch=leading,
    doc="True where ``pattern`` matches the whole of a string.",
)


# --- joining


def _string_join(xp: Any, inputs: Any, separator: str) -> Any:
    between = separator.encode()
    return each_string(lambda *parts: between.join(parts), *inputs)


string_join_op = define_op(
    "StringJoin",
    "inputs: N * string -> string",
    kernel=_string_join,
    attrs="separator: string = ''",
    shape=broadcast_shape,
    samples=lambda rng: (
        sample((words([b"a", b"b"]), words(b"-"), words([b"c", b"d\0"])), separator="_"),
        sample((words([b"a"]),)),
    ),
    doc="The strings of the inputs joined element by element; scalars are repeated.",
)


@elementwise_of_composites
def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """The strings of ``inputs`` joined element by element with ``separator``; scalars are repeated.

    Example:
        >>> tf.string_join(['a', 'b'], separator='-').eval()
        b'a-b'
    """
    return string_join_op(list(inputs), separator=separator, name=name)


def _reduce_join(xp: Any, inputs: Any, reduction_indices: Any, keep_dims: bool, separator: str) -> Any:
    texts = host_array(inputs)
    axes = reduction_indices if isinstance(reduction_indices, tuple) else (reduction_indices,)
    if any(not -texts.ndim <= a < texts.ndim for a in axes) or len(
        {a % max(texts.ndim, 1) for a in axes}
    ) < len(axes):
        raise InvalidArgumentError(f"expected different axes of a rank-{texts.ndim} tensor; got {list(axes)}")
    order = [a % texts.ndim for a in axes]
    kept = [i for i in range(texts.ndim) if i not in order]
    moved = texts.transpose(kept + order[::-1])
    rows = moved.reshape(int(np.prod(moved.shape[: len(kept)])), -1)
    shape = tuple(1 if i in order else d for i, d in enumerate(texts.shape) if keep_dims or i not in order)
    return string_array((separator.encode().join(row) for row in rows), shape)


reduce_join_op = define_op(
    "ReduceJoin",
    "inputs: string, reduction_indices: host int32 -> string",
    kernel=_reduce_join,
    attrs="keep_dims: bool = False, separator: string = ''",
    shape=reduced_shape,
    samples=lambda rng: (
        sample(words([b"a", b"b"], [b"c", b"d"]), np.array([0], np.int32), separator="+"),
        sample(words([b"a", b"b"], [b"c", b"d"]), np.array([1, 0], np.int32), keep_dims=True),
        sample(words([b"a", b"b"]), np.array(-1, np.int32)),
    ),
    doc="Strings joined along axes, the first of them innermost.",
)


def reduce_join(
    inputs: TensorLike,
    axis: NumericLike | None = None,
    keep_dims: bool | None = None,
    separator: str = "",
    name: str | None = None,
    reduction_indices: Any = None,
    keepdims: bool | None = None,
) -> Tensor:
    """Strings joined along ``axis``, an int or several, the first innermost; by default all, row by row."""
    tensor = convert_to_tensor(inputs, dtypes.string)
    axis = reduction_indices if axis is None else axis
    if axis is None and tensor.spec.shape is None:
        raise InvalidArgumentError("reduce_join: expected axis, as the rank is unknown; got None")
    axes = list(range(len(tensor.spec.shape or ())))[::-1] if axis is None else axis
    keep = bool(keep_dims if keepdims is None else keepdims)
    return reduce_join_op(tensor, np.array(axes, np.int32), keep_dims=keep, separator=separator, name=name)


# --- strings to numbers


def _string_to_number(xp: Any, string_tensor: Any, out_type: DType, out: Any = None) -> Any:
    texts = host_array(string_tensor)
    made = np.empty(texts.shape, out_type.np)
    flat = made.reshape(-1)
    for i, text in enumerate(texts.ravel()):
        try:
            if b"_" in text:
                raise ValueError  # Python reads 1_000, C does not
            flat[i] = int(text) if out_type.is_integer else float(text)
        except (ValueError, OverflowError):
            raise InvalidArgumentError(
                f"expected strings that are {out_type.name} numbers; got {text!r}"
            ) from None
    return delivered(np, made, out_type.np, out)


string_to_number_op = define_op(
    "StringToNumber",
    "string_tensor: string -> out_type in float32 | float64 | int32 | int64",
    kernel=_string_to_number,
    attrs="out_type: type = float32",
    shape=unchanged,
    samples=lambda rng: (
        sample(words([b"1.5", b" 2 ", b"1e3"])),
        sample(words(b"-12"), out_type=dtypes.int64),
    ),
    batch=leading,
    doc="Strings as the decimal numbers that they are.",
)


@elementwise_of_composites
def string_to_number(
    string_tensor: TensorLike | None = None,
    out_type: DTypeLike = dtypes.float32,
    name: str | None = None,
    input: TensorLike | None = None,
) -> Tensor:
    """Strings as numbers of ``out_type``. Raises `InvalidArgumentError` at run time for one that does not
    parse.
    """
    texts = input if string_tensor is None else string_tensor
    return string_to_number_op(texts, out_type=as_dtype(out_type), name=name)


def _decode_raw(xp: Any, bytes: Any, out_type: DType, little_endian: bool) -> Any:
    texts = host_array(bytes)
    sizes = {len(text) for text in texts.ravel()}
    if len(sizes) > 1 or any(size % out_type.size for size in sizes):
        wanted = f"strings of one length, a multiple of {out_type.size} bytes"
        raise InvalidArgumentError(f"expected {wanted}; got lengths {sorted(sizes)}")
    length = next(iter(sizes), 0) // out_type.size
    stored = out_type.np.newbyteorder("<" if little_endian else ">")
    values = np.frombuffer(b"".join(texts.ravel()), stored).astype(out_type.np)
    return values.reshape((*texts.shape, length))


decode_raw_op = define_op(
    "DecodeRaw",
    "bytes: string -> out_type in REAL - bfloat16 | COMPLEX",
    kernel=_decode_raw,
    attrs="out_type: type, little_endian: bool = True",
    shape=lambda s: [None if s.shapes[0] is None else (*s.shapes[0], None)],
    samples=lambda rng: (
        sample(words([b"\1\0\2\0", b"\3\0\4\0"]), out_type=dtypes.int16),
        sample(words(b"\0\1"), out_type=dtypes.uint16, little_endian=False),
    ),
    batch=leading,
    doc="The bytes of strings as numbers: one dimension more.",
)


def decode_raw(
    input_bytes: TensorLike | None = None,
    out_type: DTypeLike | None = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    """The bytes of strings of equal length as numbers of ``out_type``: ``[..., length / size]``."""
    texts = bytes if input_bytes is None else input_bytes
    return decode_raw_op(texts, out_type=as_dtype(out_type), little_endian=little_endian, name=name)
