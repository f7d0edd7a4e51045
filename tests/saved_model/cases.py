"""What the fixtures are fed. Imports neither flowrt nor TensorFlow: both sides of the tests use it."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 3
OPTIMIZERS: dict[str, dict[str, Any]] = {"AdamOptimizer": {}, "MomentumOptimizer": {"momentum": 0.9}}
"""With arguments; those of the fixtures."""

RUNS: list[tuple[float, list[str]]] = [
    (2.0, ["first:0", "second:0", "third:0", "all:0"]),
    (0.5, ["chosen:0"]),
    (1.5, ["chosen:0"]),
    (0.0, ["total:0", "v:0", "v/read:0"]),
    (0.5, ["n:0", "ready:0"]),
]
"""A value of x, and what is fetched, step by step."""


def batch(step: int) -> tuple[Any, Any]:
    """Inputs [4, 3] and targets [4, 1] of a step."""
    x = np.sin(np.arange(12, dtype=np.float32) + step).reshape(4, 3)
    return x, 1.0 - 2.0 * x.sum(axis=1, keepdims=True)
