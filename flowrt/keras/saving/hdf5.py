"""HDF5 files as Keras lays them out: a group for each layer, with its weights in their order.

The only module that needs `h5py`; without it there is an `UnimplementedError`.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from flowrt.errors import DataLossError, UnimplementedError
from flowrt.graph.source import misuse

Array = np.ndarray[Any, Any]


@contextmanager
def open_file(path: str, mode: str) -> Iterator[Any]:
    """The file at ``path``. Raises `UnimplementedError` without `h5py`, `OSError` if it cannot be opened,
    `DataLossError` for one to be read that is no HDF5 file.
    """
    try:
        h5py = importlib.import_module("h5py")
    except ImportError:
        raise misuse(
            f"{path}: expected h5py, to read or write HDF5: pip install h5py. Weights need none of it under a"
            " name that does not end with .h5",
            UnimplementedError,
        ) from None
    if mode == "r" and os.path.isfile(path) and not h5py.is_hdf5(path):
        raise misuse(
            f"{path}: expected an HDF5 file; its {os.path.getsize(path)} bytes begin otherwise", DataLossError
        )
    with h5py.File(path, mode) as file:
        yield file


def write_weights(group: Any, layers: Sequence[tuple[str, Sequence[tuple[str, Array]]]]) -> None:
    """Write the weights, by name, of each layer."""
    group.attrs["layer_names"] = [name.encode() for name, _ in layers]
    group.attrs["backend"] = b"tensorflow"
    group.attrs["keras_version"] = b"2.2.4-tf"
    for layer, weights in layers:
        own = group.create_group(layer)
        own.attrs["weight_names"] = [name.encode() for name, _ in weights]
        for name, value in weights:
            own.create_dataset(name, data=value)


def read_weights(group: Any) -> list[tuple[str, list[tuple[str, Array]]]]:
    """Each layer with weights: its name, and those by name, in order."""
    if "layer_names" not in group.attrs and "model_weights" in group:
        group = group["model_weights"]
    found = []
    for layer in map(_text, group.attrs["layer_names"]):
        names = [_text(name) for name in group[layer].attrs["weight_names"]]
        if names:
            found.append((layer, list(zip(names, read_arrays(group[layer]), strict=True))))
    return found


def read_arrays(group: Any) -> list[Array]:
    """The arrays of a group with ``weight_names``, in that order."""
    return [np.asarray(group[_text(name)]) for name in group.attrs["weight_names"]]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
