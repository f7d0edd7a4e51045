"""Precision of float32 matrix products on GPUs: `MatmulPrecision`, a setting of the process.

It is stored here, so that it can be set on machines without a GPU; `flowrt.device.cuda.cuda_blas` reads it at
each product. The levels are those of PyTorch and JAX, under PyTorch's names.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import final


class MatmulPrecision(Enum):
    """Format to which a GPU may round the factors of a float32 product. Sums are always in float32."""

    HIGHEST = "highest"
    """No rounding."""
    HIGH = "high"
    """TensorFloat-32: 10 bits of mantissa, a relative error of up to 2**-11."""
    MEDIUM = "medium"
    """bfloat16: 7 bits of mantissa, a relative error of up to 2**-8."""


@final
class Float32Products:
    """The setting. Any thread may read and change it."""

    def __init__(self) -> None:
        self._chosen: MatmulPrecision | None = None
        """None until it is read or set."""

    @property
    def precision(self) -> MatmulPrecision:
        """The last value set by `choose`; before that ``CUPY_TF32``, as in CuPy: float32 unless it is 1."""
        if self._chosen is None:
            allows = os.environ.get("CUPY_TF32", "0") not in ("", "0")
            self._chosen = MatmulPrecision.HIGH if allows else MatmulPrecision.HIGHEST
        return self._chosen

    def choose(self, precision: MatmulPrecision) -> None:
        """Set it for all devices and threads, from their next product on. Captured steps keep the precision
        of their capture.
        """
        self._chosen = precision


FLOAT32_PRODUCTS = Float32Products()
