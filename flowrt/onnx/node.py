"""`Node`: one node of a model while it is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.onnx.proto import onnx
from flowrt.onnx.values import NeedsValueError, is_known

if TYPE_CHECKING:
    from flowrt.onnx.importer import Scope


@dataclass(frozen=True)
class Node:
    """``attrs`` has values as Python's and NumPy's, graphs as GraphProtos. ``outputs`` are names, "" for one
    that is not wanted. ``scope`` has the values that a graph in ``attrs`` may name.
    """

    op: str
    domain: str
    version: int
    name: str
    attrs: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: Scope

    def __str__(self) -> str:
        named = f" {self.name!r}" if self.name else f" of {self.outputs[0]!r}" if self.outputs else ""
        return f"{self.domain or 'ONNX'}'s {self.op} (opset {self.version}){named}"

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attrs.get(name, default)

    def graph(self, name: str) -> Any:
        """A graph of an attribute. Raises `InvalidArgumentError` if there is none."""
        found = self.attrs.get(name)
        if not isinstance(found, onnx().GraphProto):
            self.reject(f"expected a graph as {name}; got {type(found).__name__}")
        return found

    def wants(self, index: int) -> bool:
        """Whether something reads this output."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def known(self, value: Any, what: str) -> np.ndarray[Any, Any]:
        """``value`` as an array. Raises `NeedsValueError` if it is known only at run time."""
        if not is_known(value):
            raise NeedsValueError(f"{self}: expected {what} that is known before the model runs", value)
        return np.asarray(value)

    def integers(self, value: Any, what: str) -> list[int]:
        """``value``, of an input or an attribute, as integers. Raises as `known`."""
        return [int(each) for each in self.known(value, what).reshape(-1)]

    def refuse(self, what: str) -> NoReturn:
        """Raise `UnimplementedError`: this is allowed, but not supported."""
        raise UnimplementedError(f"{self}: {what}")

    def reject(self, what: str) -> NoReturn:
        """Raise `InvalidArgumentError`: the model is wrong."""
        raise InvalidArgumentError(f"{self}: {what}")
