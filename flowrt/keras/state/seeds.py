"""Seeds of random operations."""

from __future__ import annotations

from typing import Any

import numpy as np


def op_seed(seed: Any) -> Any:
    """``seed``, or one drawn from NumPy's generator, as Keras draws it for each of its random operations: so
    `numpy.random.seed` fixes them, and what is drawn after them, such as the order of batches, is Keras's.
    """
    return int(np.random.randint(10_000_000)) if seed is None else seed
