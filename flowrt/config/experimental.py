"""``flowrt.config.experimental``: settings of the process, under TensorFlow's names where it has one."""

from __future__ import annotations

from flowrt.base.missing_names import missing_from
from flowrt.config.physical_devices import list_physical_devices, set_memory_growth
from flowrt.device.matmul_precision import FLOAT32_PRODUCTS, MatmulPrecision
from flowrt.errors import DTypeError, InvalidArgumentError

__all__ = [
    "enable_tensor_float_32_execution",
    "get_float32_matmul_precision",
    "list_physical_devices",
    "set_float32_matmul_precision",
    "set_memory_growth",
    "tensor_float_32_execution_enabled",
]


def set_float32_matmul_precision(precision: str) -> None:
    """How exactly GPUs multiply matrices of float32 and of complex64, for speed. The names are PyTorch's.

    ``highest`` computes in float32. ``high`` may round the factors to TensorFloat-32, 10 bits of mantissa,
    ``medium`` to bfloat16, 7 bits; sums are made in float32. It takes a GPU of compute capability 8.0. It
    holds for what is computed by such products: convolutions and `einsum`, those of 16-bit types too.

    Call it before the first run: a step that was captured as a CUDA graph stays as it is. ``highest`` until
    then, as in PyTorch: a step gives on a GPU what it gives on the CPU. Without a GPU it has no effect.

    Raises `InvalidArgumentError` for any other value; the setting stays as it was.
    """
    if precision not in [step.value for step in MatmulPrecision]:
        raise InvalidArgumentError(
            f"set_float32_matmul_precision: expected highest, high or medium; got {precision!r}"
        )
    FLOAT32_PRODUCTS.choose(MatmulPrecision(precision))


def get_float32_matmul_precision() -> str:
    """``highest``, ``high`` or ``medium``; as long as none was set, what ``CUPY_TF32`` says."""
    return FLOAT32_PRODUCTS.precision.value


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """TensorFlow's name for the precision ``high`` (True) and ``highest`` (False) of
    `set_float32_matmul_precision`. Off until it is called, where TensorFlow's is on.

    Raises `DTypeError` for anything but True and False.
    """
    if not isinstance(enabled, bool):
        raise DTypeError(f"enable_tensor_float_32_execution: expected True or False; got {enabled!r}")
    FLOAT32_PRODUCTS.choose(MatmulPrecision.HIGH if enabled else MatmulPrecision.HIGHEST)


def tensor_float_32_execution_enabled() -> bool:
    """Whether GPUs may round the factors of products to TensorFloat-32, or further."""
    return FLOAT32_PRODUCTS.precision is not MatmulPrecision.HIGHEST


__getattr__ = missing_from("config.experimental")
