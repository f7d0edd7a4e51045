"""Conversions registered for user classes: `register_tensor_conversion_function`."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.errors import DTypeError
from flowrt.graph.construction.operation import Tensor

Conversion = Callable[..., Any]
_CONVERTED_ALREADY = (numbers.Number, np.ndarray, np.generic, str, bytes, list, tuple, Tensor)
_registered: list[
    tuple[int, tuple[type, ...], Conversion]
] = []  # by priority; of equal ones the earlier first


def register_tensor_conversion_function(
    base_type: type | tuple[type, ...], conversion_func: Conversion, priority: int = 100
) -> None:
    """Register ``conversion_func(value, dtype=None, name=None, as_ref=False)`` for values of ``base_type``.
    It may return ``NotImplemented`` to defer to the next one; they are tried by rising ``priority``.

    Raises `DTypeError` unless ``base_type`` is a class or a tuple of them, and ``conversion_func`` callable;
    and for a class with values that are converted in any case: numbers, NumPy's types, strings, lists,
    tensors.
    """
    types = base_type if isinstance(base_type, tuple) else (base_type,)
    if not types or not all(isinstance(t, type) for t in types):
        raise DTypeError(
            f"register_tensor_conversion_function: expected a class or classes; got {base_type!r}"
        )
    taken = [t for t in types if issubclass(t, _CONVERTED_ALREADY)]
    if taken:
        raise DTypeError(
            "register_tensor_conversion_function: expected a class of your own; got"
            f" {taken[0].__name__}, which flowrt converts"
        )
    if not callable(conversion_func):
        raise DTypeError(f"register_tensor_conversion_function: expected a function; got {conversion_func!r}")
    if not isinstance(priority, int):
        raise DTypeError(
            f"register_tensor_conversion_function: expected an int as priority; got {priority!r}"
        )
    _registered.append((priority, types, conversion_func))
    _registered.sort(key=lambda entry: entry[0])


def is_registered(value: Any) -> bool:
    return any(isinstance(value, types) for _, types, _ in _registered)


def converted(value: Any, dtype: Any, name: str | None) -> Any:
    """Result of the first registered function that converts ``value``; ``NotImplemented`` if none does."""
    for _, types, function in _registered:
        if isinstance(value, types):
            found = function(value, dtype=dtype, name=name, as_ref=False)
            if found is not NotImplemented:
                return found
    return NotImplemented
