"""Names that scripts take from ``data.experimental``: what ``Dataset.apply`` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.data.dataset import Dataset
from flowrt.data.node import HOST
from flowrt.data.pipeline import AUTOTUNE, OnDevice, Prefetch
from flowrt.data.structure import flatten
from flowrt.device.spec import format_device, parse_device
from flowrt.dtypes import string
from flowrt.errors import DTypeError, InvalidArgumentError

__all__ = ["AUTOTUNE", "copy_to_device", "prefetch_to_device"]


def prefetch_to_device(device: str, buffer_size: int | None = None) -> Callable[[Dataset], Dataset]:
    """Elements computed ahead by a thread, ``buffer_size`` of them at most, and given out on ``device``.

    The last transformation of a dataset: those behind it have their elements on the host again. The iterator
    is made where the dataset is known, not by `Iterator.from_structure`. Raises `DTypeError` for strings,
    which only the host has.
    """
    ahead = AUTOTUNE if buffer_size is None else buffer_size
    return lambda dataset: Dataset(Prefetch(_on(device, dataset, "prefetch_to_device"), ahead))


def copy_to_device(target_device: str, source_device: str = HOST) -> Callable[[Dataset], Dataset]:
    """Elements given out on ``target_device``. At most a `Dataset.prefetch` may follow.

    Raises `InvalidArgumentError` unless ``source_device`` is a CPU, and `DTypeError` for strings.
    """
    if parse_device(source_device).device_type != "CPU":
        raise InvalidArgumentError(
            f"copy_to_device: expected elements from a CPU, where datasets compute; got {source_device!r}"
        )
    return lambda dataset: Dataset(_on(target_device, dataset, "copy_to_device"))


def _on(device: str, dataset: Any, what: str) -> OnDevice:
    spec = parse_device(device)
    if spec.device_type != "CPU" and any(leaf.dtype is string for leaf in flatten(dataset.node.spec)):
        raise DTypeError(f"{what}: expected components that {device} can hold; got strings")
    return OnDevice(dataset.node, format_device(spec))
