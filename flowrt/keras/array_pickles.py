"""Pickled arrays, as some of Keras's data sets are: the only module that reads pickles, and runs none of
their code."""

from __future__ import annotations

import codecs
import pickle
from typing import Any, ClassVar

import numpy as np


class ArrayUnpickler(pickle.Unpickler):
    """Reads arrays and what holds them, but runs no code of a file."""

    _KNOWN: ClassVar = {
        "_reconstruct": np.zeros(0).__reduce__()[0], "scalar": np.float64(0).__reduce__()[0],
        "ndarray": np.ndarray, "dtype": np.dtype, "encode": codecs.encode,
    }  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in ("numpy", "_codecs") and name in self._KNOWN:
            return self._KNOWN[name]
        raise pickle.UnpicklingError(f"expected arrays; got {module}.{name}")
