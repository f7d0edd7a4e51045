"""``flowrt.keras.utils``: labels as one-hot rows, unit rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.graph.source import misuse

Array = np.ndarray[Any, Any]


def to_categorical(y: Any, num_classes: int | None = None, dtype: Any = "float32") -> Array:
    """Integer labels as rows with a 1 at the label: ``[n]`` or ``[n, 1]`` as ``[n, num_classes]``.

    Raises `InvalidArgumentError` for labels of ``num_classes`` or more.
    """
    labels = np.array(y, dtype="int")
    shape = labels.shape[:-1] if labels.ndim > 1 and labels.shape[-1] == 1 else labels.shape
    labels = labels.ravel()
    classes = num_classes or int(labels.max()) + 1
    if len(labels) and labels.max() >= classes:
        raise misuse(f"to_categorical: expected labels below num_classes, {classes}; got {labels.max()}")
    rows = np.zeros((len(labels), classes), dtype)
    rows[np.arange(len(labels)), labels] = 1
    return rows.reshape((*shape, classes))


def normalize(x: Any, axis: int = -1, order: int = 2) -> Array:
    """``x`` with norms of 1 along ``axis``; zeros stay."""
    norms = np.atleast_1d(np.linalg.norm(x, order, axis))
    norms[norms == 0] = 1
    return np.asarray(x / np.expand_dims(norms, axis))
