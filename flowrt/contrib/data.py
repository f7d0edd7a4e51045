"""``flowrt.contrib.data``: `flowrt.data.experimental`, and transformations that datasets have as methods."""

from collections.abc import Callable
from typing import Any

from flowrt.data.dataset import Dataset, TextLineDataset
from flowrt.data.experimental import (
    AUTOTUNE,
    Counter,
    bucket_by_sequence_length,
    copy_to_device,
    enumerate_dataset,
    group_by_window,
    map_and_batch,
    parallel_interleave,
    prefetch_to_device,
    shuffle_and_repeat,
    unbatch,
)
from flowrt.data.iterator import Iterator
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "AUTOTUNE", "Counter", "Dataset", "Iterator", "TextLineDataset", "batch_and_drop_remainder",
    "bucket_by_sequence_length", "copy_to_device", "enumerate_dataset", "group_by_window", "map_and_batch",
    "padded_batch_and_drop_remainder", "parallel_interleave", "prefetch_to_device", "shuffle_and_repeat",
    "unbatch",
]  # fmt: skip


def batch_and_drop_remainder(batch_size: Any) -> Callable[[Dataset], Dataset]:
    """`Dataset.batch` without a smaller batch at the end."""
    return lambda dataset: dataset.batch(batch_size, drop_remainder=True)


def padded_batch_and_drop_remainder(
    batch_size: Any, padded_shapes: Any, padding_values: Any = None
) -> Callable[[Dataset], Dataset]:
    """`Dataset.padded_batch` without a smaller batch at the end."""
    return lambda dataset: dataset.padded_batch(
        batch_size, padded_shapes, padding_values, drop_remainder=True
    )


__getattr__ = missing_from("contrib.data")
