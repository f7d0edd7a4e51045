"""Conversion between NumPy arrays and those of other libraries, zero-copy where possible.

Supported protocols, in this order: DLPack (``__dlpack__``), the CUDA array interface of arrays on a GPU, and
``__array__``. NumPy does not support bfloat16 in DLPack: it is exchanged as uint16 and reinterpreted.
"""

from __future__ import annotations

import ctypes
from typing import Any, final

import ml_dtypes
import numpy as np

from flowrt.errors import DTypeError, OpError, UnimplementedError

CPU_DEVICES = (1, 3, 11, 13)
"""DLPack device types that the host can read: its own memory, CUDA pinned, ROCm pinned, CUDA managed."""

_COPIES_TO_HOST = ("get", "copy_to_host", "cpu")  # CuPy's and PyCUDA's, Numba's, PyTorch's
_UINT, _BFLOAT = 1, 4  # DLDataTypeCode
_CODE_OFFSET = 20  # bytes: of DLManagedTensor.dl_tensor.dtype.code, after data (8), device (8), ndim (4)
_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)


def is_foreign(value: Any) -> bool:
    """Whether ``value`` is an array of another library that `host_array` accepts."""
    if isinstance(value, (np.ndarray, np.generic)):
        return False
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def is_on_host(value: Any) -> bool:
    """Whether the host can read the memory of the foreign array ``value``."""
    return hasattr(value, "__dlpack__") and value.__dlpack_device__()[0] in CPU_DEVICES


def host_array(value: Any) -> np.ndarray[Any, Any]:
    """The foreign array ``value`` on the host: a view if it is already there (read-only if its mutability is
    unknown), otherwise a copy made by one transfer.

    Raises `DTypeError` for an array that records gradients, `UnimplementedError` for one that cannot be
    copied to the host.
    """
    try:
        return np.from_dlpack(value) if is_on_host(value) else _copied_to_host(value)
    except OpError:
        raise
    except (BufferError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        if is_on_host(value) and "bfloat16" in str(getattr(value, "dtype", "")):
            return np.from_dlpack(_AsUint16(value)).view(_BFLOAT16)
        raise _unreadable(value, error) from error


def _copied_to_host(value: Any) -> np.ndarray[Any, Any]:
    """A host copy of an array in GPU memory: by its own method, which old versions have too, or by DLPack."""
    for method in _COPIES_TO_HOST:
        if copy := getattr(value, method, None):
            copied = copy()
            return host_array(copied) if is_foreign(copied) else np.asarray(copied)
    return np.from_dlpack(value, device="cpu", copy=True)


def _unreadable(value: Any, error: Exception) -> OpError:
    if getattr(value, "requires_grad", False):
        return DTypeError(
            f"expected an array without gradients; got one that records them ({error}). Use detach()"
        )
    kind = f"{type(value).__module__}.{type(value).__name__}"
    return UnimplementedError(
        f"expected an array that the host can read or copy; got a {kind} ({error}). Copy it to the host first"
    )


def dlpack_of(array: Any, **how: Any) -> Any:
    """``array.__dlpack__(**how)``, also for NumPy arrays of bfloat16."""
    if isinstance(array, np.ndarray) and array.dtype == _BFLOAT16:
        return _renamed(array.view(np.uint16).__dlpack__(), _UINT, _BFLOAT)
    return array.__dlpack__(**how)


@final
class _AsUint16:
    """A foreign bfloat16 array on the host, presented as uint16 with the same bits."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._value.__dlpack_device__()

    def __dlpack__(self, **_: Any) -> Any:
        return _renamed(self._value.__dlpack__(), _BFLOAT, _UINT)


def _renamed(capsule: Any, code: int, new_code: int) -> Any:
    """The unversioned, unconsumed ``capsule`` with the type code ``code`` replaced."""
    place = ctypes.c_uint8.from_address(_capsule_pointer(capsule, b"dltensor") + _CODE_OFFSET)
    if place.value != code:
        raise DTypeError(f"expected a DLPack tensor of type code {code}; got {place.value}")
    place.value = new_code
    return capsule
