"""Element types: TensorFlow's names and numbers over NumPy's (and ml_dtypes') dtypes.

Rule of this file: a `DType` is interned, so identity is equality. The numbers are those of TensorFlow's
``types.proto``, used in GraphDef files.
"""

from __future__ import annotations

import re
from typing import Any, Literal, TypeAlias, final

import ml_dtypes
import numpy as np

from flowrt.errors import DTypeError, nearest

__all__ = [
    "as_dtype", "bfloat16", "complex128", "complex64", "DType", "float16", "float32", "float64", "int16",
    "int32", "int64", "int8", "resource", "string", "uint16", "uint32", "uint64", "uint8", "variant",
]  # fmt: skip


@final
class DType:
    """One element type.

    ``name`` is TensorFlow's, ``number`` its wire number, ``np`` the NumPy dtype of run-time arrays
    (``object`` for `string`, with ``bytes`` as elements, and for `resource` and `variant`, never arrays).
    """

    __slots__ = ("is_bool", "is_complex", "is_floating", "is_integer", "is_numeric", "name", "np", "number")

    def __init__(self, name: str, number: int, numpy_type: Any) -> None:
        self.name, self.number, self.np = name, number, np.dtype(numpy_type)
        is_narrow = self.np.itemsize == 1 and self.np.kind in "fV"  # storage: see `NARROW`
        kind = "f" if name == "bfloat16" else "" if is_narrow else self.np.kind
        self.is_floating, self.is_complex, self.is_bool = kind == "f", kind == "c", kind == "b"
        self.is_integer = kind in ("i", "u")
        self.is_numeric = self.is_integer or self.is_floating or self.is_complex

    @property
    def as_numpy_dtype(self) -> Any:
        """The NumPy scalar type, as in TensorFlow: ``float32.as_numpy_dtype is np.float32``."""
        return self.np.type

    @property
    def as_datatype_enum(self) -> int:
        return self.number

    @property
    def base_dtype(self) -> DType:
        """The dtype itself: there are no reference dtypes in flowrt."""
        return self

    @property
    def real_dtype(self) -> DType:
        """float32 for complex64, float64 for complex128, otherwise itself."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def is_unsigned(self) -> bool:
        return bool(self.np.kind == "u")

    @property
    def size(self) -> int:
        """Bytes an element; of a pointer for string, resource and variant."""
        return int(self.np.itemsize)

    @property
    def min(self) -> Any:
        return self._limits().min

    @property
    def max(self) -> Any:
        return self._limits().max

    def _limits(self) -> Any:
        if self.is_integer:
            return np.iinfo(self.np)
        if self.is_floating:
            return ml_dtypes.finfo(self.np)  # type: ignore[no-untyped-call]
        raise DTypeError(f"dtype {self.name} has no limits: expected an integer or floating type")

    def is_compatible_with(self, other: Any) -> bool:
        return self is as_dtype(other)

    def __repr__(self) -> str:
        return f"flowrt.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return as_dtype, (self.name,)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType) or other is None:
            return False
        try:
            return self is as_dtype(other)
        except DTypeError:
            return False

    __hash__ = object.__hash__  # interned; a Python-level hash would take 0.1 us for each look-up by dtype


float32 = DType("float32", 1, np.float32)
float64 = DType("float64", 2, np.float64)
int32 = DType("int32", 3, np.int32)
uint8 = DType("uint8", 4, np.uint8)
int16 = DType("int16", 5, np.int16)
int8 = DType("int8", 6, np.int8)
string = DType("string", 7, np.object_)
complex64 = DType("complex64", 8, np.complex64)
int64 = DType("int64", 9, np.int64)
bool_ = DType("bool", 10, np.bool_)
bfloat16 = DType("bfloat16", 14, ml_dtypes.bfloat16)
uint16 = DType("uint16", 17, np.uint16)
complex128 = DType("complex128", 18, np.complex128)
float16 = DType("float16", 19, np.float16)
resource = DType("resource", 20, np.object_)
variant = DType("variant", 21, np.object_)
uint32 = DType("uint32", 22, np.uint32)
uint64 = DType("uint64", 23, np.uint64)

# Storage, without arithmetic: see `NARROW`. TensorFlow has no number for the last.
float8_e5m2 = DType("float8_e5m2", 24, ml_dtypes.float8_e5m2)
float8_e4m3fn = DType("float8_e4m3fn", 25, ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = DType("float8_e4m3fnuz", 26, ml_dtypes.float8_e4m3fnuz)
float8_e4m3b11fnuz = DType("float8_e4m3b11fnuz", 27, ml_dtypes.float8_e4m3b11fnuz)
float8_e5m2fnuz = DType("float8_e5m2fnuz", 28, ml_dtypes.float8_e5m2fnuz)
int4 = DType("int4", 29, ml_dtypes.int4)
uint4 = DType("uint4", 30, ml_dtypes.uint4)
int2 = DType("int2", 31, ml_dtypes.int2)
uint2 = DType("uint2", 32, ml_dtypes.uint2)
float4_e2m1fn = DType("float4_e2m1fn", 33, ml_dtypes.float4_e2m1fn)
float8_e8m0fnu = DType("float8_e8m0fnu", 1000, ml_dtypes.float8_e8m0fnu)

ALL = (
    float32, float64, int32, uint8, int16, int8, string, complex64, int64, bool_, bfloat16, uint16,
    complex128, float16, resource, variant, uint32, uint64,
)  # fmt: skip
FLOATING = frozenset((float16, bfloat16, float32, float64))
COMPLEX = frozenset((complex64, complex128))
INTEGER = frozenset((int8, int16, int32, int64, uint8, uint16, uint32, uint64))
REAL = FLOATING | INTEGER
INEXACT = FLOATING | COMPLEX
NUMERIC = REAL | COMPLEX
INDEX = frozenset((int32, int64))
LAPACK = frozenset((float32, float64, complex64, complex128))
"""The dtypes of matrices that can be factored."""
ANY = frozenset(ALL)
NARROW = frozenset((
    float8_e5m2, float8_e4m3fn, float8_e4m3fnuz, float8_e4m3b11fnuz, float8_e5m2fnuz, float8_e8m0fnu, int4,
    uint4, int2, uint2, float4_e2m1fn,
))  # fmt: skip
"""Dtypes to store numbers in, a byte each: they can be moved and converted, but not computed with."""
STORED = ANY | NARROW

_NUMBERED = (*ALL, *sorted(NARROW, key=lambda dtype: dtype.number))
BY_NUMBER = {d.number: d for d in _NUMBERED}
_BY_NAME = {d.name: d for d in _NUMBERED} | {"half": float16, "float": float32, "double": float64}
_BY_NUMPY = {d.np: d for d in _NUMBERED if d.np != np.dtype(object)}
_BY_TYPE: dict[type, DType] = {
    float: float32,
    int: int32,
    bool: bool_,
    str: string,
    bytes: string,
    object: string,
}

DTypeName: TypeAlias = Literal[
    "bfloat16", "bool", "complex128", "complex64", "double", "float", "float16", "float32", "float64", "half",
    "int16", "int32", "int64", "int8", "resource", "string", "uint16", "uint32", "uint64", "uint8", "variant",
]  # fmt: skip
DTypeLike: TypeAlias = (
    DType
    | DTypeName
    | np.dtype[Any]
    | type[np.generic]
    | type[complex]
    | type[float]
    | type[int]
    | type[bool]
    | type[str]
    | type[bytes]
)
"""A dtype as users write it: see `as_dtype`."""


def domain(text: str) -> frozenset[DType]:
    """The dtypes that ``text`` names from left to right: ``"REAL - bfloat16 | bool"`` is what `REAL` has
    but for bfloat16, and bool. Raises `DTypeError`.
    """
    found: frozenset[DType] = frozenset()
    for sign, name in re.findall(r"([|-]?) *(\w+)", text):
        named = globals()[name] if name.isupper() and name in globals() else {as_dtype(name)}
        found = found - named if sign == "-" else found | named
    return found


def as_dtype(value: Any) -> DType:
    """The `DType` of a DType, a name, a TensorFlow number, a NumPy dtype or type, or
    ``float``/``int``/``bool``/``str``.

    Python's ``float`` and ``int`` mean float32 and int32, as in TensorFlow. Raises `DTypeError`.
    """
    if type(value) is DType:
        return value
    if isinstance(value, str) and value in _BY_NAME:
        return _BY_NAME[value]
    if isinstance(value, int) and not isinstance(value, bool) and value in BY_NUMBER:
        return BY_NUMBER[value]
    if isinstance(value, np.dtype) and value in _BY_NUMPY:
        return _BY_NUMPY[value]
    if isinstance(value, type) and value in _BY_TYPE:
        return _BY_TYPE[value]
    try:
        numpy_dtype = None if value is None else np.dtype(value)  # NumPy takes None for float64
    except TypeError:
        numpy_dtype = None
    if numpy_dtype is not None:
        if numpy_dtype.kind in "SUO":
            return string
        if numpy_dtype.newbyteorder("=") in _BY_NUMPY:
            return _BY_NUMPY[numpy_dtype.newbyteorder("=")]
    names = [d.name for d in ALL]
    raise DTypeError(f"dtype: expected one of {', '.join(names)}; got {value!r}.{nearest(str(value), names)}")
