"""Stand-ins for values: arrays of which only shape and strides are looked at, as views of them show."""

from __future__ import annotations

import math
import mmap
from typing import Any

import numpy as np

from flowrt.graph.node import TensorSpec, static_shape

_pages: list[mmap.mmap] = []


def stand_in(spec: TensorSpec) -> np.ndarray[Any, Any]:
    """A read-only array of zeros of the static shape of ``spec``, of any size: it has no memory, as its pages
    are never written, and views of it are views.
    """
    shape, dtype = static_shape(spec), spec.dtype.np
    nbytes = max(math.prod(shape) * dtype.itemsize, 1)
    if not _pages or len(_pages[-1]) < nbytes:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        _pages.append(mmap.mmap(-1, max(nbytes, 1 << 30), flags=flags, prot=mmap.PROT_READ))
    return np.ndarray(shape, dtype, buffer=_pages[-1])
