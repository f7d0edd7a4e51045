"""scikit-learn's digits: 1,797 grey images of 8 x 8 pixels, four fifths for training and one for testing."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise SystemExit(f"The digits need scikit-learn ({error}): pip install 'flowrt[examples]'") from error


class Digits(NamedTuple):
    """``images`` float32 [n, 8, 8, 1] from 0 to 1, ``labels`` int64 [n]; the same for the test set."""

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load() -> Digits:
    """The data, shuffled with a fixed seed, with every fifth image held out."""
    data = load_digits()
    order = np.random.default_rng(7).permutation(len(data.target))
    images = (data.images[order, :, :, None] / 16).astype(np.float32)
    labels = data.target[order].astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 0
    return Digits(images[~held_out], labels[~held_out], images[held_out], labels[held_out])
