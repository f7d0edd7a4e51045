"""``flowrt.keras.preprocessing.sequence``."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence as ListLike
from typing import Any

import numpy as np

from flowrt.graph.source import misuse
from flowrt.keras.sequences import Sequence

Array = np.ndarray[Any, Any]


def pad_sequences(
    sequences: ListLike[Any],
    maxlen: int | None = None,
    dtype: Any = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: Any = 0.0,
) -> Array:
    """``[n, maxlen, ...]`` of ``value``, with each sequence at its end ("pre": the padding is in front) or
    its beginning ("post").

    ``maxlen`` None is the longest length; of longer sequences the first elements ("pre") or the last are left
    out.
    """
    for name, given in (("padding", padding), ("truncating", truncating)):
        if given not in ("pre", "post"):
            raise misuse(f"pad_sequences: expected {name} pre or post; got {given!r}")
    lengths = [len(each) for each in sequences]
    width = (max(lengths) if lengths else 0) if maxlen is None else maxlen
    rest = next((np.asarray(each).shape[1:] for each in sequences if len(each)), ())
    found = np.full((len(sequences), width, *rest), value, dtype)
    for row, each in zip(found, sequences, strict=True):
        if len(each) and width:
            kept = np.asarray(each[-width:] if truncating == "pre" else each[:width], dtype)
            if padding == "post":
                row[: len(kept)] = kept
            else:
                row[-len(kept) :] = kept
    return found


def make_sampling_table(size: int, sampling_factor: float = 1e-5) -> Array:
    """``[size]``: how likely a word of each rank is kept, as in word2vec, by Zipf's law of frequencies."""
    rank = np.arange(size)
    rank[0] = 1
    inverse_frequency = rank * (np.log(rank) + 0.577) + 0.5 - 1.0 / (12.0 * rank)
    return np.minimum(1.0, np.sqrt(sampling_factor * inverse_frequency))


def skipgrams(
    sequence: ListLike[int], vocabulary_size: int, window_size: int = 4, negative_samples: float = 1.0,
    shuffle: bool = True, categorical: bool = False, sampling_table: Any = None, seed: int | None = None,
) -> tuple[list[list[int]], list[Any]]:  # fmt: skip
    """Pairs of a word and one at most ``window_size`` from it, label 1, and ``negative_samples`` times as
    many of a word and any other, label 0 (Mikolov et al. 2013). Word 0 is none.

    ``sampling_table`` is how likely each word is kept, see `make_sampling_table`; ``categorical`` makes
    labels ``[0, 1]`` and ``[1, 0]``. The numbers are those of Python's generator, in TensorFlow's order; the
    shuffle seeds it.
    """
    near, far = ([0, 1], [1, 0]) if categorical else (1, 0)
    couples: list[list[int]] = []
    for i, word in enumerate(sequence):
        if not word or (sampling_table is not None and sampling_table[word] < random.random()):
            continue
        window = range(max(0, i - window_size), min(len(sequence), i + window_size + 1))
        couples += [[word, sequence[j]] for j in window if j != i and sequence[j]]
    labels: list[Any] = [near] * len(couples)
    if negative_samples > 0:
        words = [word for word, _ in couples]
        random.shuffle(words)
        count = int(len(labels) * negative_samples)
        couples += [[words[i % len(words)], random.randint(1, vocabulary_size - 1)] for i in range(count)]
        labels += [far] * count
    if shuffle:
        seed = random.randint(0, 10_000_000) if seed is None else seed
        for each in (couples, labels):
            random.seed(seed)
            random.shuffle(each)
    return couples, labels


class TimeseriesGenerator(Sequence):
    """Batches of windows of ``length`` steps of ``data``, and the target after each."""

    def __init__(
        self, data: Any, targets: Any, length: int, sampling_rate: int = 1, stride: int = 1,
        start_index: int = 0, end_index: int | None = None, shuffle: bool = False, reverse: bool = False,
        batch_size: int = 128,
    ) -> None:  # fmt: skip
        if len(data) != len(targets):
            raise misuse(f"TimeseriesGenerator: expected {len(data)} targets; got {len(targets)}")
        self.data, self.targets, self.length, self.sampling_rate = data, targets, length, sampling_rate
        self.stride, self.shuffle, self.reverse, self.batch_size = stride, shuffle, reverse, batch_size
        self.start_index = start_index + length
        self.end_index = len(data) - 1 if end_index is None else end_index
        if self.start_index > self.end_index:
            raise misuse(
                f"TimeseriesGenerator: expected data for a window of {length}; there are {len(data)} steps"
            )

    def __len__(self) -> int:
        return math.ceil((self.end_index - self.start_index + 1) / (self.batch_size * self.stride))

    def __getitem__(self, index: int) -> tuple[Array, Array]:
        if self.shuffle:
            rows = np.random.randint(self.start_index, self.end_index + 1, self.batch_size)
        else:
            first = self.start_index + self.batch_size * self.stride * index
            rows = np.arange(
                first, min(first + self.batch_size * self.stride, self.end_index + 1), self.stride
            )
        windows = np.array([self.data[row - self.length : row : self.sampling_rate] for row in rows])
        return (windows[:, ::-1] if self.reverse else windows), np.array([self.targets[row] for row in rows])
