"""``flowrt.keras.datasets``: the data sets in ``~/.keras/datasets``, as Keras keeps them there.

Nothing is downloaded: a missing file is an error that names the place where it is expected.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import NotFoundError
from flowrt.examples.tutorials.mnist.idx_files import read_idx
from flowrt.graph.source import misuse

Array = np.ndarray[Any, Any]
Split = tuple[tuple[Array, Array], tuple[Array, Array]]


def _file(path: str) -> Path:
    """The file at ``path``, below ``~/.keras/datasets`` unless absolute. Raises `NotFoundError`."""
    folder = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / "datasets"
    found = folder / path
    if not found.exists():
        raise misuse(
            f"load_data: expected a file at {found}; there is none, and none is downloaded", NotFoundError
        )
    return found


def load_mnist(path: str = "mnist.npz") -> Split:
    """``((x, y), (x_test, y_test))``: digits ``[n, 28, 28]`` of uint8, and labels."""
    with np.load(_file(path), allow_pickle=False) as file:
        return (file["x_train"], file["y_train"]), (file["x_test"], file["y_test"])


def load_fashion_mnist() -> Split:
    """`load_mnist` of pieces of clothing."""
    parts = [
        (read_idx(_file(f"fashion-mnist/{kind}-{name}-ubyte.gz"), rank))
        for kind in ("train", "t10k")
        for name, rank in (("images-idx3", 3), ("labels-idx1", 1))
    ]
    return (parts[0], parts[1]), (parts[2], parts[3])


def load_boston_housing(path: str = "boston_housing.npz", test_split: float = 0.2, seed: int = 113) -> Split:
    """Features ``[n, 13]`` of districts and their prices, in the order that ``seed`` makes."""
    with np.load(_file(path), allow_pickle=False) as file:
        x, y = file["x"], file["y"]
    order = np.arange(len(x))
    np.random.RandomState(seed).shuffle(order)
    x, y, at = x[order], y[order], int(len(x) * (1 - test_split))
    return (x[:at], y[:at]), (x[at:], y[at:])
