"""``flowrt.config.experimental``: TensorFlow's names for settings of the process."""

from __future__ import annotations

from typing import Any

from flowrt.config.physical_devices import list_physical_devices, set_memory_growth
from flowrt.device.tensor_float_32 import TENSOR_FLOAT_32
from flowrt.errors import DTypeError
from flowrt.missing_names import missing_name

__all__ = [
    "enable_tensor_float_32_execution",
    "list_physical_devices",
    "set_memory_growth",
    "tensor_float_32_execution_enabled",
]


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Let GPUs round the factors of float32 matrix products to 10 bits of mantissa, for speed, or not.

    Call it before the first run: a step that was captured as a CUDA graph stays as it is. Off until then,
    where TensorFlow's is on: a step gives on a GPU what it gives on the CPU. Without a GPU it has no effect.

    Raises `DTypeError` for anything but True and False.
    """
    if not isinstance(enabled, bool):
        raise DTypeError(f"enable_tensor_float_32_execution: expected True or False; got {enabled!r}")
    TENSOR_FLOAT_32.allow(enabled)


def tensor_float_32_execution_enabled() -> bool:
    """Whether GPUs may; without a call of the function above, what ``CUPY_TF32`` says."""
    return TENSOR_FLOAT_32.is_allowed


def __getattr__(name: str) -> Any:
    raise missing_name("config.experimental", name, globals())
