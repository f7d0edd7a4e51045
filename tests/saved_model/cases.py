"""What the fixtures are fed. Imports neither flowrt nor TensorFlow: both sides of the tests use it."""

from __future__ import annotations

from typing import Any

import numpy as np

STEPS = 3
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "AdamOptimizer": {},
    "MomentumOptimizer": {"momentum": 0.9},
}
"""With arguments; those of the fixtures."""


def batch(step: int) -> tuple[Any, Any]:
    """Inputs [4, 3] and targets [4, 1] of a step."""
    x = np.sin(np.arange(12, dtype=np.float32) + step).reshape(4, 3)
    return x, 1.0 - 2.0 * x.sum(axis=1, keepdims=True)
