"""Ops on words: splitting strings, dropping words, counting sequences of words. They run on the host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.text.strings import host_array, string_array, words
from flowrt.graph.shapes import Shape, format_shape

# --- splitting


def _split_strings(xp: Any, input: Any, delimiter: str, maxsplit: int) -> Any:
    texts = host_array(input)
    rows = [text.split(delimiter.encode() or None, maxsplit) for text in texts.reshape(-1).tolist()]
    counts = np.array([len(row) for row in rows], np.int64)
    longest = int(counts.max(initial=0))
    padded = (part for row in rows for part in (*row, *[b""] * (longest - len(row))))
    return string_array(padded, (*texts.shape, longest)), counts.reshape(texts.shape)


split_strings: OpDef[list[Tensor]] = define_op(
    "SplitStrings",
    "input: string -> substrings: string, counts: int64",
    attrs="delimiter: string = '', maxsplit: int = -1",
    shape=lambda s: [None if s.shapes[0] is None else (*s.shapes[0], None), s.shapes[0]],
    kernel=_split_strings,
    samples=lambda rng: (
        sample(words([b"a b  c", b"d"])),
        sample(words(b"a,b,"), delimiter=","),
        sample(words([b"a b c"]), maxsplit=1),
        sample(words([])),
    ),
    doc="""The parts of each string between ``delimiter`` (white space if it is empty), one dimension more,
    padded with empty strings, and their numbers. At most ``maxsplit`` cuts are made, if it is not negative.
    """,
)


# --- whole strings that are dropped


def _dropped_words(
    xp: Any, input: Any, case: str, is_case_sensitive: bool, dropped: Sequence[str]
) -> np.ndarray[Any, Any]:
    texts = host_array(input)
    if texts.ndim not in (1, 2) or (texts.ndim == 2 and texts.shape[0] != 1):
        raise InvalidArgumentError(f"expected shape [n] or [1, n]; got {format_shape(texts.shape)}")
    change: Any = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}[case]
    alike = str if is_case_sensitive else str.casefold
    unwanted = {alike(word) for word in dropped}
    decoded = [text.decode("utf-8", "replace") for text in texts.reshape(-1).tolist()]
    kept = [change(text).encode() for text in decoded if alike(text) not in unwanted] or [b""]
    return string_array(kept, (*texts.shape[:-1], len(kept)))


def _dropped_words_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.attrs["case"] not in ("LOWER", "UPPER", "NONE"):
        raise InvalidArgumentError(f"case: expected LOWER, UPPER or NONE; got {s.attrs['case']!r}")
    return [None if s.shapes[0] is None else (*s.shapes[0][:-1], None)]


drop_words: OpDef[Tensor] = define_op(
    "DropWords",
    "input: string -> string",
    attrs="case: string = 'NONE', is_case_sensitive: bool = True, dropped: list(string) = ()",
    shape=_dropped_words_shape,
    kernel=_dropped_words,
    samples=lambda rng: (
        sample(words([b"Monday", b"tuesday"]), case="UPPER", dropped=("monday",), is_case_sensitive=False),
        sample(words([b"a", b"b"]), dropped=("a", "b")),
        sample(words([b"a", b"b"]).reshape(1, 2), dropped=("a",)),
    ),
    doc="""Strings ``[n]`` or ``[1, n]`` without those that are in ``dropped``, in the ``case`` LOWER or
    UPPER, or as they are (NONE); one empty string if none is left.
    """,
)


# --- sequences of words


def ngrams_of(
    pool: Sequence[Any], starts: Sequence[int], lengths: tuple[int, int]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """(number, n-gram) of those in ``pool`` with a length within ``lengths``: first all 1-grams, then from
    ``starts[1]`` on the 2-grams, and so on.
    """
    number = 0
    for n, start in enumerate(starts, 1):
        end = starts[n] if n < len(starts) else len(pool)
        for at in range(start, end - n + 1, n):
            if lengths[0] <= n <= lengths[1]:
                yield number, tuple(pool[at : at + n])
            number += 1


def _counts(row: Sequence[Any], columns: Mapping[Any, int], lengths: tuple[int, int], skips: int) -> Any:
    """The column of each n-gram in ``row``: its elements are up to ``skips`` others apart."""
    for n in range(lengths[0], lengths[1] + 1):
        for step in range(1, (skips if n > 1 else 0) + 2):
            for at in range(len(row) - (n - 1) * step):
                column = columns.get(tuple(row[at : at + (n - 1) * step + 1 : step]))
                if column is not None:
                    yield column


def _count_ngrams(
    xp: Any, input: Any, mode: str, min_gram_length: int, max_gram_length: int, max_skip_count: int,
    ngram_counts: Sequence[int], ngram_indexes: Sequence[int], pool_int64s: Sequence[int],
    pool_strings: Sequence[str], weights: Sequence[float], out: Any = None,
) -> Any:  # fmt: skip
    given = host_array(input if xp is np else xp.asnumpy(input))
    pool: Any = [each.encode() for each in pool_strings] or list(pool_int64s)
    lengths = min_gram_length, max_gram_length
    numbered = ngrams_of(pool, ngram_counts, lengths)
    columns = {gram: ngram_indexes[number] for number, gram in numbered}
    rows = given.reshape(-1, given.shape[-1]).tolist() if given.ndim else [[given.item()]]
    found = np.zeros((len(rows), max(ngram_indexes) + 1), np.float32)
    for i, row in enumerate(rows):
        for column in _counts(row, columns, lengths, max_skip_count):
            found[i, column] += 1
    if mode == "IDF":
        found = (found > 0).astype(np.float32)
    if mode != "TF" and weights:
        by_column = np.ones(found.shape[1], np.float32)
        by_column[list(ngram_indexes)] = weights
        found *= by_column
    return delivered(xp, xp.asarray(found if given.ndim == 2 else found[0]), np.float32, out)


def _count_ngrams_shape(s: ShapeContext) -> Sequence[Shape]:
    attrs = s.attrs
    if attrs["mode"] not in ("TF", "IDF", "TFIDF"):
        raise InvalidArgumentError(f"mode: expected TF, IDF or TFIDF; got {attrs['mode']!r}")
    starts, columns, weights = attrs["ngram_counts"], attrs["ngram_indexes"], attrs["weights"]
    size = max(len(attrs["pool_strings"]), len(attrs["pool_int64s"]))
    ends = [*starts[1:], size]
    if list(starts) != sorted(starts) or any(not 0 <= each <= size for each in starts):
        raise InvalidArgumentError(
            f"ngram_counts: expected ascending places in a pool of {size}; got {starts}"
        )
    number = sum((end - start) // n for n, (start, end) in enumerate(zip(starts, ends, strict=True), 1))
    if not columns or min(columns) < 0 or len(columns) < number or len(weights) not in (0, len(columns)):
        raise InvalidArgumentError(
            f"ngram_indexes: expected a column, and a weight or none, for each of {number} n-grams; got "
            f"{len(columns)} columns, {len(weights)} weights"
        )
    shape = s.shapes[0]
    if shape is not None and len(shape) > 2:
        raise InvalidArgumentError(f"input: expected shape [n] or [rows, n]; got {format_shape(shape)}")
    width = max(columns) + 1
    return [None if shape is None else (*shape[:-1], width) if len(shape) == 2 else (width,)]


_POOL: dict[str, Any] = {
    "ngram_counts": (0, 2),
    "ngram_indexes": (0, 1, 2, 3),
    "pool_int64s": (2, 3, 5, 4, 6, 7),
}
_LENGTHS: dict[str, Any] = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": 1}

count_ngrams: OpDef[Tensor] = define_op(
    "CountNgrams",
    "input: T in string | int32 | int64 -> float32",
    attrs="mode: string, min_gram_length: int, max_gram_length: int, max_skip_count: int, "
    "ngram_counts: list(int), ngram_indexes: list(int), pool_int64s: list(int) = (), "
    "pool_strings: list(string) = (), weights: list(float) = ()",
    shape=_count_ngrams_shape,
    kernel=_count_ngrams,
    samples=lambda rng: (
        sample(np.array([2, 5, 4, 9, 3]), mode="TF", **_POOL, **_LENGTHS),
        sample(np.array([[2, 3], [5, 4]], np.int32), mode="TFIDF", weights=(1.0, 2.0, 3.0, 4.0), **_POOL,
               **_LENGTHS),
        sample(words([b"a", b"b"]), mode="IDF", ngram_counts=(0, 2), ngram_indexes=(1, 0),
               pool_strings=("a", "c"), **_LENGTHS),
    ),
    doc="""The number of times that each n-gram of a pool is in the input ``[n]``, or in each row of ``[rows,
    n]``. Its elements may have up to ``max_skip_count`` others between them. ``ngram_counts`` says where in
    the pool the 1-grams begin, the 2-grams, ...; ``ngram_indexes`` has the column of each n-gram. The mode
    IDF gives 1 for one that is there; IDF and TFIDF multiply by ``weights``.
    """,
)  # fmt: skip
