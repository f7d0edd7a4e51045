"""``flowrt.compat``: names and helpers of other versions.

v1             flowrt itself, for scripts with ``import flowrt.compat.v1 as tf``
tensorflow     flowrt under the name ``tensorflow``, for scripts that stay as they are
before_one     names of before TensorFlow 1.0
"""

import numbers
import os
from typing import Any

import numpy as np

from flowrt.compat import tensorflow, v1
from flowrt.tf1.aliases import dimension_at_index, dimension_value
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "as_bytes", "as_str", "as_str_any", "as_text", "bytes_or_text_types", "complex_types",
    "dimension_at_index", "dimension_value", "forward_compatible", "integral_types", "path_to_str",
    "real_types", "tensorflow", "v1",
]  # fmt: skip

bytes_or_text_types = (bytes, str)
integral_types = (numbers.Integral, np.integer)
real_types = (numbers.Real, np.integer, np.floating)
complex_types = (numbers.Complex, np.number)


def as_bytes(bytes_or_text: Any, encoding: str = "utf-8") -> bytes:
    return bytes_or_text.encode(encoding) if isinstance(bytes_or_text, str) else bytes(bytes_or_text)


def as_text(bytes_or_text: Any, encoding: str = "utf-8") -> str:
    return bytes_or_text.decode(encoding) if isinstance(bytes_or_text, bytes) else str(bytes_or_text)


as_str = as_text


def as_str_any(value: Any, encoding: str = "utf-8") -> str:
    """Convert anything to text; bytes are decoded."""
    return as_text(value, encoding)


def path_to_str(path: Any) -> Any:
    """A path object as text; anything else as it is."""
    return os.fspath(path) if hasattr(path, "__fspath__") else path


def forward_compatible(year: int, month: int, day: int) -> bool:
    """Whether older readers are supported: always True, as there are none."""
    return True


__getattr__ = missing_from("compat")
