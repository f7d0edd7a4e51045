"""Tensors of the fixtures, by name. Imports neither flowrt nor TensorFlow: both sides of the tests use it."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

DTYPES = (
    "float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "bool", "bfloat16",
    "uint16", "complex128", "float16", "uint32", "uint64",
)  # fmt: skip
IN_VERSION_1 = ("float32", "float64", "int32", "uint8", "int16", "int8", "complex64", "int64", "bool")
PARTS = {"by_rows": 3, "by_columns": 2}
"""Names of partitioned variables, and the number of parts."""

RATE, WIDTH, STEPS = 0.05, 3, 3
"""Of the network that is trained for some steps, saved, and trained on."""


def tensors() -> dict[str, Any]:
    """An array for each name."""
    found: dict[str, Any] = {}
    for name in DTYPES:
        kind = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
        for shape in ((), (3,), (2, 0, 4), (5, 2)):
            count = int(np.prod(shape))
            values = np.arange(1, count + 1).reshape(shape)
            found[f"{name}/of_{len(shape)}"] = (values % 2 == 0 if name == "bool" else values).astype(kind)
    texts = np.array([b"", b"abc", bytes(range(256)), "zwölf".encode()], object)
    found["texts"] = texts.reshape(2, 2)
    found["by_rows"] = np.arange(70, dtype=np.float32).reshape(35, 2)
    found["by_columns"] = np.arange(300, dtype=np.float64).reshape(2, 150)
    return found


def batch(step: int) -> tuple[Any, Any]:
    """What the network is fed in a step: inputs [4, WIDTH] and targets [4, 1]."""
    x = np.sin(np.arange(4 * WIDTH, dtype=np.float32) + step).reshape(4, WIDTH)
    return x, 1.0 - 2.0 * x.sum(axis=1, keepdims=True)
