"""scikit-learn's 1,797 digits in MNIST's form: a stand-in for scripts where MNIST's files are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.errors import FailedPreconditionError

Array = np.ndarray[Any, Any]
_TEST = 297
_BRIGHTEST = 16  # of scikit-learn's digits


def digits() -> tuple[Array, Array, Array, Array]:
    """Images and labels for training (1,500), images and labels for tests (297): uint8 images of 28 by 28,
    uint8 labels.

    Raises `FailedPreconditionError` if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise FailedPreconditionError(
            "FLOWRT_MNIST=digits: expected scikit-learn; pip install 'flowrt[examples]'"
        ) from None
    small, labels = load_digits(return_X_y=True)
    pixels = (small.reshape(-1, 8, 8) * (255 / _BRIGHTEST)).astype(np.uint8)
    images = np.pad(
        pixels.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2))
    )  # 8 by 8 -> 24 by 24 -> 28 by 28
    labels = labels.astype(np.uint8)
    return images[_TEST:], labels[_TEST:], images[:_TEST], labels[:_TEST]
