"""`pretend`: an array module that behaves as CuPy does where CuPy is stricter than NumPy, over NumPy.

What it holds kernels to, with `cupy_names.txt` for names, parameters and ufunc loops:

  1. Arrays of the device meet only each other and scalars. A NumPy array of any rank is refused
     (`TypeError`), also as an index, which CuPy would copy at every call; ``asarray`` and ``array`` take one,
     ``asnumpy`` and ``get`` give one.
  2. Only CuPy's names and parameters exist; a ufunc has CuPy's loops, and with them its result dtypes.
  3. ``out`` has exactly the result's shape, and its dtype up to ``same_kind``.
  4. What needs a value on the host (``int(x)``, ``if x``, a result whose shape depends on values) makes the
     host wait for the device: its name goes into `waits`.
  5. Where CuPy 14.2 is wrong, an error: ``min`` takes ``out`` for the dtype; ``maximum.at`` and
     ``minimum.at`` of floats drop NaN and round float64 to float32. ``linalg.solve`` does not broadcast.
  6. There are no arrays of objects, strings or bfloat16 (which CuPy has, without ``where`` and sorting).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = frozenset("?bBhHiIlLqQefdFD")
SCALARS = (bool, int, float, complex, np.generic)

waits: list[str] = []
"""For what the host waited for the device, in order; a test clears it."""

_WAITING = {"argwhere", "bincount", "flatnonzero", "nonzero", "unique", "get", "item", "tolist", "asnumpy"}
_ATOMIC = {  # the dtypes of CuPy's ufunc.at, by rule 5
    "add": "ilqILQefd",
    "subtract": "iI",
    "maximum": "ilqILQ",
    "minimum": "ilqILQ",
}


class PretendArray:
    """An array of the pretend device."""

    __slots__ = ("host",)
    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        if host.dtype.char not in DTYPES:
            raise TypeError(f"pretend: expected a dtype that CuPy has; got {host.dtype}")
        self.host = host

    # --- meeting NumPy

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError("pretend: implicit conversion to a NumPy array is not allowed; use get()")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        function = getattr(pretend, ufunc.__name__)
        options = {key: value[0] if key == "out" else value for key, value in options.items()}
        return (function if method == "__call__" else getattr(function, method))(*inputs, **options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        module = ".".join(function.__module__.split(".")[1:])
        path = f"{module}.{function.__name__}" if module else function.__name__
        return getattr(pretend, path)(*args, **kwargs)

    # --- values on the host

    def __bool__(self) -> bool:
        return bool(_fetched("bool", self))

    def __int__(self) -> int:
        return int(_fetched("int", self))

    def __float__(self) -> float:
        return float(_fetched("float", self))

    def __complex__(self) -> complex:
        return complex(_fetched("complex", self))

    def __repr__(self) -> str:
        return f"pretend({self.host!r})"

    def get(self) -> np.ndarray[Any, Any]:
        return _fetched("get", self).copy()

    # --- elements

    def __len__(self) -> int:
        return len(self.host)

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> PretendArray:
        places = _index(index)
        if any(isinstance(p, np.ndarray) and p.dtype == bool for p in places):
            waits.append("mask")
        return _on_device(self.host[places if Ellipsis in map(_plain, places) else (*places, ...)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.host[_index(index)] = _operand(value)

    # --- attributes and methods, by CuPy's names

    @property
    def shape(self) -> tuple[int, ...]:
        return self.host.shape

    @property
    def real(self) -> Any:
        return _on_device(self.host.real)

    @real.setter
    def real(self, value: Any) -> None:
        self.host.real = _operand(value)

    @property
    def imag(self) -> Any:
        return _on_device(self.host.imag)

    @imag.setter
    def imag(self, value: Any) -> None:
        self.host.imag = _operand(value)

    def __getattr__(self, name: str) -> Any:
        parameters = _functions.get(f"ndarray.{name}")
        if parameters is not None:
            return functools.partial(_call, name, ("self", *parameters), getattr(np.ndarray, name), self)
        if f"ndarray.{name}" not in _names:
            raise AttributeError(f"pretend: CuPy has no ndarray.{name}")
        return _on_device(getattr(self.host, name))


def _plain(place: Any) -> Any:
    return None if isinstance(place, np.ndarray) else place


def _fetched(what: str, array: PretendArray) -> np.ndarray[Any, Any]:
    waits.append(what)
    return array.host


def _index(index: Any) -> tuple[Any, ...]:
    """An index in NumPy's terms. Raises `TypeError` for arrays and lists of the host."""
    places = index if isinstance(index, tuple) else (index,)
    if any(isinstance(p, (np.ndarray, list)) for p in places):
        raise TypeError("pretend: expected indices of the device; got some of the host")
    return tuple(p.host if isinstance(p, PretendArray) else p for p in places)


def _operand(value: Any) -> Any:
    """The NumPy array behind ``value``, or the scalar that it is."""
    if isinstance(value, PretendArray):
        return value.host
    if isinstance(value, SCALARS) and np.asarray(value).dtype.char in DTYPES:
        return value
    raise TypeError(f"pretend: expected an array of the device or a scalar; got {type(value)} {value!r}")


def _on_host(value: Any) -> Any:
    """An argument in NumPy's terms. Raises `TypeError` for arrays of the host, also within a list."""
    if isinstance(value, PretendArray):
        return value.host
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_host, value))
    if isinstance(value, np.ndarray):
        raise TypeError(f"pretend: expected an array of the device; got one of the host, {value!r}")
    return value


def _on_device(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return PretendArray(np.asarray(value))
    if isinstance(value, (list, tuple)) and any(isinstance(v, (np.ndarray, np.generic)) for v in value):
        return list(map(_on_device, value)) if isinstance(value, list) else tuple(map(_on_device, value))
    return value


def _into(out: Any, result: np.ndarray[Any, Any], casting: str = "same_kind") -> PretendArray:
    """``out`` with ``result`` in it, by rule 3."""
    if not isinstance(out, PretendArray):
        raise TypeError(f"pretend: expected an out of the device; got {type(out)}")
    if out.shape != result.shape:
        raise ValueError(f"pretend: expected an out of shape {result.shape}; got {out.shape}")
    np.copyto(out.host, result, casting=casting)  # type: ignore[arg-type]
    return out


def _call(name: str, parameters: tuple[str, ...], function: Any, *args: Any, **options: Any) -> Any:
    """A function or method of CuPy's on arrays of the device."""
    unknown = options.keys() - set(parameters)
    if unknown and not any(p.startswith("**") for p in parameters):
        raise TypeError(f"pretend: {name}: CuPy has {', '.join(parameters)}; got {', '.join(unknown)}")
    if any(p == "dtype" and isinstance(a, PretendArray) for p, a in zip(parameters, args, strict=False)):
        raise TypeError(f"pretend: {name}: CuPy has {', '.join(parameters)}; got an array for the dtype")
    if name in _WAITING:
        waits.append(name)
    out = options.pop("out", None)
    if name in ("min", "amin") and out is not None:
        raise TypeError("pretend: CuPy's min takes an out for the dtype")
    if name == "solve" and args[0].shape[:-2] != args[1].shape[:-2]:
        raise ValueError("pretend: CuPy's solve takes as many matrices as right sides")
    hosts = [_on_host(a) for a in args]
    result = function(*hosts, **{key: _on_host(value) for key, value in options.items()})
    return _on_device(result) if out is None else _into(out, np.asarray(result))


class PretendUfunc:
    """A ufunc with CuPy's loops: pairs of input and output dtypes, the first that fits is taken."""

    def __init__(self, name: str, loops: Iterable[str]) -> None:
        self.name = name
        self._loops = [loop.split("->") for loop in loops if DTYPES.issuperset(loop.replace("->", ""))]

    def __call__(self, *args: Any, out: Any = None, dtype: Any = None) -> Any:
        nin = len(self._loops[0][0])
        inputs, (out, *_) = [_operand(a) for a in args[:nin]], (*args[nin:], out)
        result = self.result(*inputs, dtype=dtype)
        return PretendArray(result) if out is None else _into(out, result)

    def result(self, *inputs: Any, dtype: Any = None) -> np.ndarray[Any, Any]:
        given = np.result_type(*(x.dtype if isinstance(x, (np.ndarray, np.generic)) else x for x in inputs))
        for taken, made in self._loops:
            if np.dtype(made) == dtype if dtype is not None else np.can_cast(given, taken[0], "safe"):
                operands = [np.asarray(x).astype(t) for x, t in zip(inputs, taken, strict=True)]
                return np.asarray(getattr(np, self.name)(*operands)).astype(made)
        raise TypeError(f"pretend: CuPy's {self.name} has no loop for {given}")

    def at(self, array: Any, indices: Any, values: Any) -> None:
        if array.dtype.char not in _ATOMIC.get(self.name, ""):
            raise TypeError(f"pretend: CuPy has no {self.name}.at for {array.dtype}")
        getattr(np, self.name).at(array.host, _on_host(indices), _operand(values))


class PretendModule:
    """`pretend`, or a module inside it under ``prefix``."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        path = self._prefix + name
        if path in _SPECIAL:
            return _SPECIAL[path]
        if path in _ufuncs:
            return _ufuncs[path]
        if any(known.startswith(f"{path}.") for known in _names):
            return PretendModule(f"{path}.")
        if path not in _names:
            raise AttributeError(f"pretend: CuPy has no {path}")
        value = functools.reduce(getattr, path.split("."), np)
        return functools.partial(_call, name, _functions[path], value) if path in _functions else value


def _array(value: Any, dtype: Any = None, copy: bool | None = True, order: Any = "K") -> PretendArray:
    """``array``, and with ``copy=None`` ``asarray``: the way from the host to the device, which copies."""
    if isinstance(value, PretendArray):
        return PretendArray(np.array(value.host, dtype, copy=copy, order=order))
    return PretendArray(np.array(value, dtype, order=order))


def _copyto(dst: Any, src: Any, casting: str = "same_kind", where: Any = None) -> None:
    np.copyto(dst.host, _operand(src), casting=casting, where=True if where is None else where.host)  # type: ignore[arg-type]


def _where(condition: PretendArray, x: Any = None, y: Any = None) -> Any:
    """By its loops on x and y; the condition has to be an array."""
    if x is None:
        waits.append("where")
        return _on_device(np.where(condition.host))
    return PretendArray(np.where(condition.host.astype(bool), _operand(x), _operand(y)))


def _broadcasting(name: str) -> Callable[..., Any]:
    """``full`` and its like, whose value may be an array of the device."""
    return lambda shape, value, dtype=None: PretendArray(getattr(np, name)(shape, _operand(value), dtype))


_names: set[str] = set()
_functions: dict[str, tuple[str, ...]] = {}
_ufuncs: dict[str, PretendUfunc] = {}
_SPECIAL: dict[str, Any] = {
    "array": _array,
    "asarray": functools.partial(_array, copy=None),
    "asnumpy": PretendArray.get,
    "copyto": _copyto,
    "full": _broadcasting("full"),
    "ndarray": PretendArray,
    "where": _where,
}


def _read(line: str) -> None:
    name, _, loops = line.partition(": ")
    name, _, parameters = name.partition("(")
    _names.add(name)
    if loops:
        _ufuncs[name] = PretendUfunc(name, loops.split())
    elif line.endswith(")"):
        _functions[name] = tuple(parameters[:-1].split(", "))


for _line in Path(__file__).with_name("cupy_names.txt").read_text().splitlines():
    if not _line.startswith("#"):
        _read(_line)

pretend: Any = PretendModule()


_ARITHMETIC = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
    "matmul": "matmul", "lshift": "left_shift", "rshift": "right_shift",
}  # fmt: skip
_OTHERS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal",
    "ne": "not_equal", "neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert",
}  # fmt: skip


def _operators() -> None:
    """``+`` and the others are the ufuncs."""
    for short, name in _ARITHMETIC.items():
        function = getattr(pretend, name)
        setattr(PretendArray, f"__{short}__", lambda x, y, function=function: function(x, y))
        setattr(PretendArray, f"__r{short}__", lambda x, y, function=function: function(y, x))
        if short != "matmul":  # CuPy has no @=
            setattr(PretendArray, f"__i{short}__", lambda x, y, function=function: function(x, y, x))
    for short, name in _OTHERS.items():
        function = getattr(pretend, name)
        setattr(PretendArray, f"__{short}__", lambda *operands, function=function: function(*operands))


_operators()
