"""``flowrt.config.experimental``: settings of the process, under TensorFlow's names where they exist."""

from __future__ import annotations

from flowrt.config.physical_devices import list_physical_devices, set_memory_growth
from flowrt.device.matmul_precision import FLOAT32_PRODUCTS, MatmulPrecision
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "enable_tensor_float_32_execution",
    "get_float32_matmul_precision",
    "list_physical_devices",
    "set_float32_matmul_precision",
    "set_memory_growth",
    "tensor_float_32_execution_enabled",
]


def set_float32_matmul_precision(precision: str) -> None:
    """Set the precision of float32 and complex64 matrix products on GPUs. The names are PyTorch's.

    ``highest`` computes in float32. ``high`` may round the factors to TensorFloat-32, 10 bits of mantissa,
    ``medium`` to bfloat16, 7 bits; sums are accumulated in float32. Requires a GPU of compute capability 8.0.
    Applies to everything computed by such products: convolutions and `einsum`, those of 16-bit types too.

    Call it before the first run: a step captured as a CUDA graph is not changed. The default is ``highest``,
    as in PyTorch: a step has the same results on a GPU as on the CPU. Without a GPU it has no effect.

    Raises `InvalidArgumentError` for any other value; the setting is then unchanged.
    """
    if precision not in [step.value for step in MatmulPrecision]:
        raise InvalidArgumentError(
            f"set_float32_matmul_precision: expected highest, high or medium; got {precision!r}"
        )
    FLOAT32_PRODUCTS.choose(MatmulPrecision(precision))


def get_float32_matmul_precision() -> str:
    """``highest``, ``high`` or ``medium``; if none was set, the value of ``CUPY_TF32``."""
    return FLOAT32_PRODUCTS.precision.value


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """TensorFlow's name for the precision ``high`` (True) and ``highest`` (False) of
    `set_float32_matmul_precision`. Off by default, unlike in TensorFlow.

    Raises `DTypeError` for anything but True and False.
    """
    if not isinstance(enabled, bool):
        raise DTypeError(f"enable_tensor_float_32_execution: expected True or False; got {enabled!r}")
    FLOAT32_PRODUCTS.choose(MatmulPrecision.HIGH if enabled else MatmulPrecision.HIGHEST)


def tensor_float_32_execution_enabled() -> bool:
    """Whether GPUs may round the factors of products to TensorFloat-32, or further."""
    return FLOAT32_PRODUCTS.precision is not MatmulPrecision.HIGHEST


__getattr__ = missing_from("config.experimental")
