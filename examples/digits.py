"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, four fifths for training and one for testing."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np


def _file() -> Path:
    """scikit-learn's file, without an import of scikit-learn: that takes each process more than a second."""
    try:
        found = find_spec("sklearn")
    except ValueError:  # a module without a spec stands in its place
        found = None
    if found is None or found.origin is None:
        raise SystemExit("The digits need scikit-learn (it is not installed): pip install 'flowrt[examples]'")
    return Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"


FILE = _file()
"""For each image 64 numbers from 0 to 16, row by row, and its label."""


class Digits(NamedTuple):
    """``images`` float32 [n, 8, 8, 1] from 0 to 1, ``labels`` int64 [n]; the same for the test set."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Digits:
    """The data, shuffled with a fixed seed, with every fifth image held out."""
    data = np.random.default_rng(7).permutation(np.loadtxt(FILE, delimiter=","))
    images = (data[:, :-1].reshape(-1, 8, 8, 1) / 16).astype(np.float32)
    labels = data[:, -1].astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 0
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])
