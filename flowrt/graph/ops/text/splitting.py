"""Strings split into parts, as the places and values of a sparse matrix: row i has the parts of string i; and
parts joined to n-grams, as the values and limits of ragged rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
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


# --- n-grams


def _ngrams_shape(s: ShapeContext) -> Sequence[Shape]:
    for argument, shape in zip(("data", "data_splits"), s.shapes, strict=True):
        if shape is not None and len(shape) != 1:
            raise InvalidArgumentError(f"{argument}: expected a vector; got shape {format_shape(shape)}")
    if any(width < 1 for width in s.attrs["ngram_widths"]):
        raise InvalidArgumentError(f"ngram_widths: expected positive ones; got {s.attrs['ngram_widths']}")
    return [(None,), s.shapes[1]]


def _string_ngrams(
    xp: Any,
    data: Any,
    data_splits: Any,
    separator: str,
    ngram_widths: Sequence[int],
    left_pad: str,
    right_pad: str,
    pad_width: int,
    preserve_short_sequences: bool,
) -> list[Any]:
    tokens, limits = host_array(data).tolist(), host_array(data_splits)
    ends = limits.tolist()
    if ends and (ends[0] != 0 or ends[-1] != len(tokens) or ends != sorted(ends)):
        message = f"expected limits that ascend from 0 to {len(tokens)}; got {ends[:4]} ... {ends[-1]}"
        raise InvalidArgumentError(f"data_splits: {message}")

    def windows(row: list[bytes], width: int) -> list[bytes]:
        pads = width - 1 if pad_width < 0 else min(pad_width, width - 1)
        padded = [left_pad.encode()] * pads + row + [right_pad.encode()] * pads
        between = separator.encode()
        return [between.join(padded[i : i + width]) for i in range(len(padded) - width + 1)]

    found, counts = list[bytes](), [0] if ends else []
    for begin, end in pairwise(ends):
        row = tokens[begin:end]
        ngrams = [ngram for width in ngram_widths for ngram in windows(row, width)]
        if preserve_short_sequences and row and not ngrams:  # all of it, with its padding
            ngrams = windows(row, len(row) + 2 * max(pad_width, 0))
        found += ngrams
        counts.append(len(found))
    return [string_array(found, (len(found),)), np.array(counts, limits.dtype)]


string_ngrams: OpDef[list[Tensor]] = define_op(
    "StringNGrams",
    "data: string, data_splits: Tsplits in INDEX -> ngrams: string, ngrams_splits: Tsplits in INDEX",
    attrs="separator: string, ngram_widths: list(int), left_pad: string, right_pad: string, pad_width: int, "
    "preserve_short_sequences: bool",
    shape=_ngrams_shape,
    kernel=_string_ngrams,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(
            words(b"a", b"b", b"c", b"d"), np.array([0, 3, 3, 4], np.int64), separator=" ",
            ngram_widths=(2, 1), left_pad="<", right_pad=">", pad_width=-1, preserve_short_sequences=False,
        ),
        sample(
            words(b"a", b"b", b"c"), np.array([0, 1, 3], np.int32), separator="",
            ngram_widths=(3,), left_pad="", right_pad="", pad_width=0, preserve_short_sequences=True,
        ),
    ),
    doc="The n-grams of each row of strings: those of each width, one after the other. Rows end at splits.",
)  # fmt: skip
