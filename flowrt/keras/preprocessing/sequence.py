"""``flowrt.keras.preprocessing.sequence``."""

from __future__ import annotations

import math
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
