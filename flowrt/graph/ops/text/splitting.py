"""Strings split into parts, as the places and values of a sparse matrix: row i has the parts of string i."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.text.strings import host_array, string_array, words
from flowrt.graph.shapes import Shape, format_shape

_OUTPUTS = "indices: int64, values: string, shape: int64"


def _shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0] is not None and len(s.shapes[0]) != 1:
        raise InvalidArgumentError(f"input: expected a vector; got shape {format_shape(s.shapes[0])}")
    return [(None, 2), (None,), (2,)]


def _as_sparse(rows: Sequence[Sequence[bytes]]) -> list[Any]:
    places = [(i, j) for i, row in enumerate(rows) for j in range(len(row))]
    parts = [part for row in rows for part in row]
    return [
        np.array(places, np.int64).reshape(-1, 2),
        string_array(parts, (len(parts),)),
        np.array([len(rows), max(map(len, rows), default=0)], np.int64),
    ]


def _split(xp: Any, input: Any, split: Callable[[bytes], list[bytes]]) -> list[Any]:
    return _as_sparse([split(text) for text in host_array(input).tolist()])


def _by_characters(xp: Any, input: Any, delimiter: Any, skip_empty: bool) -> list[Any]:
    """Each byte of the delimiter separates; without any, each byte is a part."""
    marks = host_array(delimiter).item()

    def split(text: bytes) -> list[bytes]:
        if not text:
            return []
        if not marks:
            return [text[i : i + 1] for i in range(len(text))]
        for other in marks[1:]:
            text = text.replace(bytes([other]), marks[:1])
        return [part for part in text.split(marks[:1]) if part or not skip_empty]

    return _split(xp, input, split)


string_split_v1: OpDef[list[Tensor]] = define_op(
    "StringSplit",
    f"input: string, delimiter: string -> {_OUTPUTS}",
    attrs="skip_empty: bool = True",
    shape=_shape,
    kernel=_by_characters,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(words(b"a b", b" c,d "), words(b" ,")[0], skip_empty=False),
        sample(words(b"ab", b""), words(b"")[0]),
    ),
    doc="Strings, split at each of the characters of the delimiter.",
)


def _by_text(xp: Any, input: Any, sep: Any, maxsplit: int) -> list[Any]:
    between = host_array(sep).item() or None  # None: runs of white space
    return _split(xp, input, lambda text: text.split(between, maxsplit))


string_split_v2: OpDef[list[Tensor]] = define_op(
    "StringSplitV2",
    f"input: string, sep: string -> {_OUTPUTS}",
    attrs="maxsplit: int = -1",
    shape=_shape,
    kernel=_by_text,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(words(b"a  b ", b"", b"c"), words(b"")[0]),
        sample(words(b"a<>b<>c", b"<>"), words(b"<>")[0], maxsplit=1),
    ),
    doc="Strings, split at a separator, or at white space if that is empty.",
)
