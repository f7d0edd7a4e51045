"""Python and NumPy values as arrays, under TensorFlow's rules for dtypes and conversions."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.shapes import Dimension, TensorShape

NUMBERS = (float, int)
"""Types of plain numbers: most values that are not tensors."""


def as_array(value: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """``value`` as a NumPy array under TensorFlow's rules (see `convert_to_tensor`); strings become ``bytes``
    objects.

    Raises `DTypeError` (wrong kind) or `InvalidArgumentError` (ragged or out of range).
    """
    if value is None:
        raise DTypeError("expected a value that converts to a tensor; got None")
    if type(value) in NUMBERS and dtype in dtypes.FLOATING:
        return np.array(value, dtype.np)  # the common case, without the checks below
    if isinstance(value, (Operation, Graph)):
        raise DTypeError(f"expected a value that converts to a tensor; got {value!r}")
    if isinstance(value, DType):
        raise DTypeError(f"expected a value that converts to a tensor; got the dtype {value!r}")
    if isinstance(value, (TensorShape, Dimension)):
        return _shape_array(value, dtype)
    if isinstance(value, (np.ndarray, np.generic)):
        return _from_numpy(value, dtype)
    return _from_python(value, dtype)


def _shape_array(value: TensorShape | Dimension, dtype: DType | None) -> np.ndarray[Any, Any]:
    wanted = (dtype or dtypes.int32).np
    if isinstance(value, Dimension):
        return np.array(int(value), wanted)
    value.assert_is_fully_defined()
    return np.array(value.as_list(), wanted)


def check_unmasked(value: Any) -> None:
    """Raises `InvalidArgumentError` for an array with masked elements: tensors have no masks."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = np.count_nonzero(value.mask)
        raise InvalidArgumentError(
            f"expected an array without masked elements; got {count} of {value.size}. Use filled()"
        )


def _is_in_bytes(array: Any) -> bool:
    """Whether its memory is that of a ``bytes``, which nobody modifies: weights read from a file."""
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, bytes)


def _from_numpy(value: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    check_unmasked(value)
    if value.dtype.kind in "SU" or (value.dtype.kind == "O"):
        return _strings(value, dtype)
    own = as_dtype(value.dtype)
    if dtype is None or own is dtype:
        if value.dtype == own.np and _is_in_bytes(value):
            return value
        return np.array(value, own.np)  # a copy: the caller may modify its array later
    _check_kind(own, dtype, value)
    if own.is_integer and dtype.is_integer:
        _check_range(value, dtype)
    with np.errstate(over="ignore"):  # a float beyond the range is infinite
        return np.asarray(value).astype(dtype.np)


def _check_range(value: np.ndarray[Any, Any], dtype: DType) -> None:
    if not value.size:
        return
    least, greatest = int(value.min()), int(value.max())
    if least < dtype.min or greatest > dtype.max:
        wrong = least if least < dtype.min else greatest
        raise DTypeError(f"expected numbers from {dtype.min} to {dtype.max} of {dtype.name}; got {wrong}")


def _from_python(value: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    try:
        array = np.array(value)
    except ValueError:
        raise InvalidArgumentError(f"expected nested lists of equal lengths; got {_brief(value)}") from None
    except OverflowError:
        raise InvalidArgumentError(f"expected numbers of at most 64 bits; got {_brief(value)}") from None
    if array.dtype.kind == "O" and any(isinstance(v, Dimension) for v in array.ravel()):
        array = array.astype(np.int64)  # ``[-1, x.shape[1]]``
        value = array.tolist()
    if array.dtype.kind in "SU" and isinstance(value, (str, bytes, list, tuple)):
        exact = np.array(value, object)  # strings of NumPy's own end before their last zeros
        if all(isinstance(leaf, (str, bytes)) for leaf in exact.flat):
            array = exact
    if array.dtype.kind in "SUO":
        if array.dtype.kind == "O" and any(isinstance(v, (list, tuple)) for v in array.ravel()):
            raise InvalidArgumentError(f"expected nested lists of equal lengths; got {_brief(value)}")
        return _strings(array, dtype)
    own = as_dtype(array.dtype)
    if dtype is not None:
        if array.size:
            _check_kind(own, dtype, value)
        return _cast_in_range(array, dtype, value)
    if own is dtypes.float64 and not hasattr(value, "__array__"):
        return _cast_in_range(array, dtypes.float32, value)
    if own is dtypes.int64 and not hasattr(value, "__array__") and np.all(array.astype(np.int32) == array):
        return array.astype(np.int32)
    return array


def _cast_in_range(array: np.ndarray[Any, Any], dtype: DType, value: Any) -> np.ndarray[Any, Any]:
    if dtype.is_integer and array.size and not (dtype.min <= array.min() and array.max() <= dtype.max):
        raise InvalidArgumentError(
            f"expected {dtype.name}, from {dtype.min} to {dtype.max}; got {_brief(value)}"
        )
    with np.errstate(all="ignore"):
        return array.astype(dtype.np)


def _check_kind(own: DType, wanted: DType, value: Any) -> None:
    """Refuse conversions that change the kind: float to int, complex to real, numbers to bool or string."""
    order = {"bool": 0, "int": 1, "float": 2, "complex": 3}
    have, want = order.get(_kind(own), 9), order.get(_kind(wanted), 9)
    if 9 in (have, want) or have > want or (have != want and 0 in (have, want)):
        raise DTypeError(f"expected {wanted.name}; got {_brief(value)} of dtype {own.name}")


def _kind(dtype: DType) -> str:
    if dtype.is_bool:
        return "bool"
    if dtype.is_integer:
        return "int"
    return "complex" if dtype.is_complex else "float" if dtype.is_floating else dtype.name


def _strings(array: np.ndarray[Any, Any], dtype: DType | None) -> np.ndarray[Any, Any]:
    if dtype not in (None, dtypes.string):
        assert dtype is not None
        raise DTypeError(f"expected {dtype.name}; got strings or objects: {_brief(array.tolist())}")
    result = np.empty(array.shape, object)
    flat = result.reshape(-1)
    for i, item in enumerate(array.reshape(-1)):
        if not isinstance(item, (str, bytes)):
            expected = "a string" if dtype is dtypes.string else "a value that converts to a tensor"
            raise DTypeError(f"expected {expected}; got {_brief(item)} of type {type(item).__name__}")
        flat[i] = item.encode() if isinstance(item, str) else bytes(item)
    return result


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
