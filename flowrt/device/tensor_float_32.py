"""TensorFloat-32: whether GPUs may round the factors of float32 products to 10 bits of mantissa.

One setting for the process, as it is in CuPy: kept here until a GPU is opened, so that it can be made on
machines without one. It reaches the products of two matrices, of float32 and of complex64. Batched products
go on in float32, since CuPy 14.2 asks cuBLAS for that by name.

There is no such setting for bfloat16. CuPy takes ``COMPUTE_TYPE_BF16``, but no product looks at it: in CuPy
13.6 and 14.2, ``CUBLAS_COMPUTE_32F`` and its TF32 are the only ways that a product of float32 is made.
"""

from __future__ import annotations

import os
from typing import Any, final

import numpy as np


@final
class TensorFloat32:
    """The setting. Any thread may read and change it."""

    def __init__(self) -> None:
        self._is_allowed: bool | None = None
        """None until somebody says."""
        self._linalg: Any = None
        """CuPy's part that has the switch, once a GPU was opened."""

    @property
    def is_allowed(self) -> bool:
        """As `allow` said last; before that ``CUPY_TF32``, as CuPy reads it: not without a 1 there."""
        if self._is_allowed is None:
            return os.environ.get("CUPY_TF32", "0") not in ("", "0")
        return self._is_allowed

    def allow(self, allowed: bool) -> None:
        """Set it for all devices and threads, from their next product on. A step that has been captured goes
        on as it was captured. On devices before compute capability 8.0 CuPy warns and stays with float32.
        """
        self._is_allowed = allowed
        self._apply()

    def attach(self, cupy: Any) -> None:
        """Set the switch of the module ``cupy``, which has a device, now and at each change."""
        self._linalg = cupy._core._routines_linalg
        self._apply()

    def _apply(self) -> None:
        linalg = self._linalg
        if linalg is not None:
            kind = linalg.COMPUTE_TYPE_TF32 if self.is_allowed else linalg.COMPUTE_TYPE_DEFAULT
            linalg.set_compute_type(np.float32, kind)


TENSOR_FLOAT_32 = TensorFloat32()
