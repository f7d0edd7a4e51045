"""Numbers and whole tensors as text.

Rules of this file: `AsString` formats like C's printf; output for humans (`format_number`) uses the fewest
digits that round-trip.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.text.strings import each_string, host_array, string_array, words
from flowrt.graph.shapes import Shape
from flowrt.graph.typing import TensorLike

# --- numbers


def _printf(
    dtype: DType, precision: int, scientific: bool, shortest: bool, width: int, fill: str
) -> Callable[[Any], str]:
    """A function that formats a number as C's printf does it."""
    if dtype.is_bool:
        return lambda value: "true" if value else "false"
    letter = "d" if dtype.is_integer else "e" if scientific else "g" if shortest else "f"
    digits = f".{precision}" if precision >= 0 and letter != "d" else ""
    form = f"%{fill}{width if width >= 0 else ''}{digits}{letter}"
    if dtype.is_complex:
        return lambda value: f"({form % value.real},{form % value.imag})"
    return lambda value: form % value


def _as_string(
    xp: Any, input: Any, T: DType, precision: int, scientific: bool, shortest: bool, width: int, fill: str
) -> Any:
    text = _printf(T, precision, scientific, shortest, width, fill)
    return each_string(lambda value: text(value).encode(), input)


def _as_string_shape(s: ShapeContext) -> Sequence[Shape]:
    if len(s.attrs["fill"]) > 1:
        raise InvalidArgumentError(f"fill: expected one character or none; got {s.attrs['fill']!r}")
    return unchanged(s)


as_string: OpDef[Tensor] = define_op(
    "AsString",
    "input: T in NUMERIC | bool -> string",
    kernel=_as_string,
    attrs=(
        "precision: int = -1, scientific: bool = False, shortest: bool = False, width: int = -1, "
        "fill: string = ''"
    ),
    shape=_as_string_shape,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 2)), precision=2),
        sample(np.array([5, -7]), width=4, fill="0"),
        sample(np.array(True)),
        sample(np.array([1 + 2j]), shortest=True),
        sample(np.zeros((0, 2), np.float16), scientific=True),
    ),
    batch=leading,
    doc="""Numbers as decimal strings, true and false as words.

    ``precision`` digits after the point (6 if negative), at least ``width`` characters, padded with ``fill``
    (blank, "0", or "-" for padding on the right). Raises `InvalidArgumentError` for a longer ``fill``.

    Example:
        >>> tf.as_string([1.5, 2.0], precision=1).eval()
        array([b'1.5', b'2.0'], dtype=object)
    """,
)


# --- tensors as text


def format_number(value: Any) -> str:
    """A number with as few digits as read back to the same one: 6 or 9 (15 or 17 for float64)."""
    if isinstance(value, (bool, np.bool_)):
        return str(int(value))
    if isinstance(value, (complex, np.complexfloating)):
        return f"({format_number(value.real)},{format_number(value.imag)})"
    if isinstance(value, (float, np.float64)):
        short = f"{value:.15g}"
        return short if float(short) == value or value != value else f"{value:.17g}"
    if isinstance(value, np.generic) and value.dtype.kind != "i" and value.dtype.kind != "u":
        exact = np.float32(value)
        short = f"{exact:.6g}"
        return short if np.float32(short) == exact or exact != exact else f"{exact:.9g}"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def summarize_value(array: Any, limit: int) -> str:
    """The first ``limit`` elements (all if negative): ``[0 1 2][3...]...``; the outermost brackets are the
    caller's.
    """
    values = host_array(array)
    limit = values.size if limit < 0 else limit
    flat = iter(values.ravel()[:limit])
    left = [limit]
    return _summarize(values.shape, flat, left, outermost=True) + ("..." if values.size > limit else "")


def _summarize(
    shape: tuple[int, ...], flat: Iterator[Any], left: list[int], *, outermost: bool = False
) -> str:
    if not shape:
        return format_number(next(flat))
    if len(shape) == 1:
        taken = min(shape[0], left[0])
        left[0] -= taken
        text = " ".join(format_number(next(flat)) for _ in range(taken))
        return text + ("..." if taken < shape[0] and not outermost else "")
    parts = ""
    for _ in range(shape[0]):
        if left[0] > 0:
            parts += f"[{_summarize(shape[1:], flat, left)}]"
    return parts


def format_array(array: Any, edge: int) -> str:
    """All elements in nested brackets, strings quoted; of long dimensions only ``edge`` at each end, unless
    negative.
    """
    values = host_array(array)
    return _format_dimension(values, 0, values.ndim, edge)


def _format_dimension(values: Any, level: int, rank: int, edge: int) -> str:
    if level == rank:
        value = values.item() if values.dtype == object else values[()]
        return f'"{format_number(value)}"' if isinstance(value, bytes) else format_number(value)
    shown = list(range(len(values)))
    if 0 <= 2 * edge < len(values):
        shown = [*shown[:edge], -1, *shown[len(values) - edge :]]
    space = " " if level == rank - 1 else "\n" * (rank - 1 - level) + " " * (level + 1)
    texts = ["..." if i < 0 else _format_dimension(_item(values, i), level + 1, rank, edge) for i in shown]
    return f"[{space.join(texts)}]"


def _item(values: Any, index: int) -> Any:
    """Row ``index`` as an array, of rank 0 too."""
    return values[index : index + 1].reshape(values.shape[1:])


def _string_format(xp: Any, inputs: Any, template: str, placeholder: str, summarize: int) -> Any:
    pieces = template.split(placeholder)
    texts = [format_array(x, summarize) for x in inputs]
    return string_array(["".join(p + t for p, t in zip(pieces, [*texts, ""], strict=True)).encode()], ())


def _string_format_shape(s: ShapeContext) -> Sequence[Shape]:
    places = s.attrs["template"].count(s.attrs["placeholder"])
    if places != len(s.shapes):
        raise InvalidArgumentError(f"expected a template with {len(s.shapes)} placeholders; got {places}")
    return [()]


string_format_op = define_op(
    "StringFormat",
    "inputs: *T in ANY -> string",
    kernel=_string_format,
    attrs="template: string = '%s', placeholder: string = '%s', summarize: int = 3",
    shape=_string_format_shape,
    samples=lambda rng: (
        sample((np.arange(9), words([b"a"]), np.float32(0.1)), template="x {} y {} z {}", placeholder="{}"),
        sample((np.ones((1, 2, 2)),)),
    ),
    doc="A text with tensors in it.",
)


def string_format(
    template: str, inputs: TensorLike, placeholder: str = "{}", summarize: int = 3, name: str | None = None
) -> Tensor:
    """``template`` with the values of ``inputs`` in place of its placeholders (``strings.format``).

    Raises `InvalidArgumentError` when there are more or fewer placeholders than inputs.
    """
    tensors = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
    return string_format_op(
        tensors, template=template, placeholder=placeholder, summarize=summarize, name=name
    )
