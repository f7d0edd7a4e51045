"""How exactly GPUs multiply float32 matrices: `MatmulPrecision`, a setting of the process.

It is kept here, so that it can be made on machines without a GPU; `flowrt.device.cuda.cuda_blas` reads it at
each
product. The steps are PyTorch's and JAX's, under PyTorch's names.
"""

from __future__ import annotations

import os
from enum import Enum
from typing import final


class MatmulPrecision(Enum):
    """What a GPU may round the factors of a float32 product to. Sums are made in float32 with each."""

    HIGHEST = "highest"
    """They stay as they are."""
    HIGH = "high"
    """TensorFloat-32: 10 bits of mantissa, a relative error of up to 2**-11."""
    MEDIUM = "medium"
    """bfloat16: 7 bits of mantissa, a relative error of up to 2**-8."""


@final
class Float32Products:
    """The setting. Any thread may read and change it."""

    def __init__(self) -> None:
        self._chosen: MatmulPrecision | None = None
        """None until somebody asks or says."""

    @property
    def precision(self) -> MatmulPrecision:
        """As `choose` said last; before that ``CUPY_TF32``, as CuPy reads it: float32 without a 1 there."""
        if self._chosen is None:
            allows = os.environ.get("CUPY_TF32", "0") not in ("", "0")
            self._chosen = MatmulPrecision.HIGH if allows else MatmulPrecision.HIGHEST
        return self._chosen

    def choose(self, precision: MatmulPrecision) -> None:
        """Set it for all devices and threads, from their next product on. A step that has been captured goes
        on as it was captured.
        """
        self._chosen = precision


FLOAT32_PRODUCTS = Float32Products()
