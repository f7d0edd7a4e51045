"""Signatures of calls of a Python function, which determine the calls that share a traced graph.

A call's arguments are bound to the parameters, with defaults. Tensors and arrays among them, at any depth,
become arguments of the traced function; everything else is a constant of the trace. So a trace serves all
calls with equal keys (structure, dtypes, equal Python values) and with shapes compatible with those it was
traced for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import flatten, flatten_up_to, leaf_paths, map_structure, pack_as
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, OpError
from flowrt.graph import node
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.shapes import TensorShape, as_shape, relax
from flowrt.graph.source import misuse, user_line


@final
@dataclass(frozen=True)
class TensorSpec:
    """The type of a function's argument.

    Args:
        shape: The shape, with None for unknown dimensions; None for any.
        dtype: The elements' dtype.
        name: The argument's name.

    Example:
        >>> @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        ... def double(x):
        ...     return x * 2
        >>> double(tf.constant([1.0, 2.0])).eval()
        array([2., 4.], dtype=float32)
    """

    shape: Any
    dtype: Any = dtypes.float32
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", TensorShape(self.shape))
        object.__setattr__(self, "dtype", as_dtype(self.dtype))

    @classmethod
    def from_tensor(cls, tensor: Tensor, name: str | None = None) -> TensorSpec:
        return cls(tensor.shape, tensor.dtype, name)

    @property
    def spec(self) -> node.TensorSpec:
        return node.TensorSpec(self.dtype, as_shape(self.shape))


@final
class _Identity:
    """Equal to another one of the same object only; keeps the object, so that no other gets its address."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other._value is self._value

    def __repr__(self) -> str:
        return repr(self._value)


class _PythonValue(NamedTuple):
    """A leaf that is a part of the trace."""

    type: type
    value: Hashable

    def __str__(self) -> str:
        return f"the Python value {self.value!r:.60}"


class _TensorLeaf(NamedTuple):
    """A leaf that is an argument of the trace. ``like``: the TensorArray that it is the list of."""

    dtype: DType
    like: Any = None

    def __str__(self) -> str:
        return f"a tensor of {self.dtype.name}"


@final
@dataclass(frozen=True)
class Arguments:
    """A call: ``values`` by parameter; ``tensors`` are those among their leaves, ``specs`` their types,
    ``leaves`` the role of each leaf in a trace.
    """

    names: tuple[str, ...]
    values: tuple[Any, ...]
    tensors: tuple[Tensor, ...]
    specs: tuple[node.TensorSpec, ...]
    leaves: tuple[_PythonValue | _TensorLeaf, ...]

    @property
    def key(self) -> Hashable:
        """The key shared by calls that share a trace."""
        containers = map_structure(lambda leaf: None, self.values)
        return self.names, repr(containers), self.leaves  # containers are not hashable

    def paths(self) -> list[str]:
        """The path of each leaf: ``x``, ``state['h']``."""
        pairs = zip(self.names, self.values, strict=True)
        return [name + path for name, value in pairs for path in leaf_paths(value)]

    def tensor_names(self) -> list[str]:
        """A name for each tensor, valid for operations."""
        found = zip(self.paths(), self.leaves, strict=True)
        words = [re.sub(r"\W+", "_", path) for path, leaf in found if isinstance(leaf, _TensorLeaf)]
        return [word.strip("_") or "arg" for word in words]

    def with_tensors(self, tensors: Sequence[Tensor]) -> dict[str, Any]:
        """The values by parameter, with other tensors."""
        rest = iter(tensors)
        leaves = [
            with_flow(value, next(rest)) if isinstance(leaf, _TensorLeaf) else value
            for value, leaf in zip(flatten(self.values), self.leaves, strict=True)
        ]
        return dict(zip(self.names, pack_as(self.values, leaves), strict=True))

    def difference(self, before: Arguments) -> str:
        """A description of the change from ``before``."""
        if map_structure(lambda leaf: None, self.values) != map_structure(lambda leaf: None, before.values):
            return "the structure of the arguments is another one"
        specs = zip(self.specs, before.specs, strict=False)
        for path, leaf, old in zip(self.paths(), self.leaves, before.leaves, strict=True):
            if leaf != old:
                return f"argument {path!r} was {old} and is {leaf}"
            if isinstance(leaf, _TensorLeaf):
                new_spec, old_spec = next(specs)
                if new_spec != old_spec:
                    return f"argument {path!r} was {old_spec} and is {new_spec}"
        return "the device scope or the graph around is another one"


def without_source(error: OpError) -> str:
    """The message of ``error``, for another error of the same line."""
    return error.message.removeprefix(f"({error.source}): ")


def with_flow(leaf: Any, tensor: Tensor) -> Any:
    """A leaf like ``leaf`` around ``tensor``; for a TensorArray its list."""
    return leaf._with_flow(tensor) if hasattr(leaf, "_with_flow") else tensor


def joined(leaf: Any, *others: Any) -> Any:
    """``leaf``; a TensorArray without its size, unless all ``others``, which may take its place, have it."""
    return leaf._joined(others) if hasattr(leaf, "_with_flow") else leaf


def is_within(spec: node.TensorSpec, wider: node.TensorSpec) -> bool:
    """Whether every tensor of ``spec`` is one of ``wider``."""
    return spec.dtype is wider.dtype and relax(spec.shape, wider.shape) == wider.shape


@final
class Signature:
    """The parameters of ``function``. ``input_signature``, if given, specifies its tensors: a structure of
    `TensorSpec` for each of the first parameters.
    """

    def __init__(self, function: Callable[..., Any], name: str, input_signature: Any = None) -> None:
        self._parameters = inspect.signature(function)
        self.text = f"{name}{self._parameters}"
        self._specs = None if input_signature is None else self._declared(input_signature)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """The arguments of a call. Raises `DTypeError` and `InvalidArgumentError` if they do not match."""
        found = self._bound(args, kwargs)
        if self._specs is None:
            return _arguments(found)
        specs = self._specs
        fitted = {name: self._fitted(name, value, specs[name]) for name, value in found.items()}
        declared = [leaf.spec for leaf in flatten(tuple(specs.values())) if isinstance(leaf, TensorSpec)]
        return _arguments(fitted, tuple(declared))

    def call(self, function: Callable[..., Any], values: dict[str, Any]) -> Any:
        """``function`` of values by parameter."""
        bound = self._parameters.bind_partial()
        bound.arguments.update(values)
        return function(*bound.args, **bound.kwargs)

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._parameters.bind(*args, **kwargs)
        except TypeError as error:
            raise misuse(f"function {self.text}: expected its arguments; {error}", DTypeError) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _declared(self, input_signature: Any) -> dict[str, Any]:
        """The specs by parameter; a parameter without has its default value."""
        is_list = isinstance(input_signature, (list, tuple))
        wrong = [s for s in flatten(input_signature) if not isinstance(s, TensorSpec)]
        if wrong or not is_list:
            got = wrong[0] if is_list else input_signature
            message = (
                f"function {self.text}: expected input_signature to be a list of TensorSpecs; got {got!r:.80}"
            )
            raise misuse(message, DTypeError)
        return self._bound(tuple(input_signature), {})

    def _fitted(self, name: str, value: Any, spec: Any) -> Any:
        """``value`` as tensors that fit ``spec``."""
        if not any(isinstance(leaf, TensorSpec) for leaf in flatten(spec)):
            if value is spec or value == spec:
                return value
            message = f"expected its default {spec!r:.60}, as the input_signature does not have it"
            raise self._misfit(InvalidArgumentError, name, f"{message}; got {value!r:.60}")
        try:
            parts = flatten_up_to(spec, value)
            tensors = [
                part if isinstance(part, TensorSpec) else convert_to_tensor(part, one.dtype)
                for part, one in zip(parts, flatten(spec), strict=True)
            ]
        except (InvalidArgumentError, DTypeError) as error:
            raise self._misfit(type(error), name, without_source(error)) from None
        for tensor, one in zip(tensors, flatten(spec), strict=True):
            if not is_within(tensor.spec, one.spec):
                raise self._misfit(InvalidArgumentError, name, f"expected {one.spec}; got {tensor.spec}")
        return pack_as(spec, tensors)

    def _misfit(self, cls: Any, name: str, message: str) -> Any:
        return cls(f"function {self.text}: argument {name!r}: {message}", source=user_line())


def _arguments(found: dict[str, Any], declared: tuple[node.TensorSpec, ...] | None = None) -> Arguments:
    names, values = tuple(found), tuple(found.values())
    converted = [_converted(leaf) for leaf in flatten(values)]
    leaves = tuple(_leaf(leaf) for leaf in converted)
    tensors = [_flow(v) for v, leaf in zip(converted, leaves, strict=True) if isinstance(leaf, _TensorLeaf)]
    specs = declared if declared is not None else tuple(tensor.spec for tensor in tensors)
    return Arguments(names, pack_as(values, converted), tuple(tensors), specs, leaves)


def _converted(value: Any) -> Any:
    """Convert arrays to tensors; Python's numbers are unchanged."""
    return convert_to_tensor(value) if isinstance(value, (np.ndarray, np.generic)) else value


def _flow(value: Any) -> Any:
    return value.flow if hasattr(value, "_with_flow") else value


def _leaf(value: Any) -> _PythonValue | _TensorLeaf:
    if isinstance(value, (Tensor, TensorSpec)):
        return _TensorLeaf(value.dtype)
    if hasattr(value, "_with_flow"):
        return _TensorLeaf(value.flow.dtype, value.dtype)
    if isinstance(value, float):
        return _PythonValue(float, value.hex())  # 0.0 == -0.0, and nan != nan
    try:
        hash(value)
    except TypeError:
        return _PythonValue(type(value), _Identity(value))
    return _PythonValue(type(value), value)
