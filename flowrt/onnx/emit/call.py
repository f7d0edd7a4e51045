"""`Call`: one operation of flowrt while it is written as ONNX's; `emits` registers its emitter.

An emitter takes a `Call` and the names of its inputs, adds nodes, and returns the name of each output, or one
name. It need not care for dtypes that ONNX's operation lacks (`Call.add` casts to one that it has), nor
for the dtype of its results, which are cast to the one that flowrt gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from flowrt.graph.node import Node, TensorSpec
from flowrt.onnx.writer import CannotExportError, Writer

if TYPE_CHECKING:
    from flowrt.onnx.exporter import Exporter

Emitter = Callable[..., "str | Sequence[str]"]
E = TypeVar("E", bound=Emitter)

EMITTERS: dict[str, Emitter] = {}


def emits(*names: str) -> Callable[[E], E]:
    """A decorator: the function writes the ops ``names``."""

    def register(emitter: E) -> E:
        EMITTERS.update(dict.fromkeys(names, emitter))
        return emitter

    return register


class Call:
    """``specs`` are the inputs' dtypes and shapes, ``known`` their values where they are constants."""

    def __init__(
        self,
        node: Node,
        exporter: Exporter,
        writer: Writer,
        names: Sequence[str],
        specs: Sequence[TensorSpec],
        known: Sequence[Any],
    ) -> None:
        self.node, self.exporter, self.writer = node, exporter, writer
        self.names, self.specs, self.known = names, specs, known

    # --- what is known

    @property
    def op(self) -> str:
        return self.node.op.name

    @property
    def attrs(self) -> Any:
        return self.node.attrs

    def refuse(self, message: str) -> NoReturn:
        """Raise what ends up as a line of the error of the whole export."""
        raise CannotExportError(message)

    def dtype(self, index: int = 0) -> np.dtype[Any]:
        return self.specs[index].dtype.np

    def rank(self, index: int = 0) -> int:
        shape = self.specs[index].shape
        return self.refuse(f"expected input {index} of known rank") if shape is None else len(shape)

    def dims(self, index: int = 0) -> tuple[int | None, ...]:
        """The shape, with None for what is not known. Refuses an unknown rank."""
        self.rank(index)
        return self.specs[index].shape or ()

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape. Refuses one that is not static."""
        return self._static(self.specs[index].shape, f"input {index}")

    def result_shape(self, index: int = 0) -> tuple[int, ...]:
        return self._static(self.node.outputs[index].shape, f"result {index}")

    def _static(self, shape: Any, what: str) -> tuple[int, ...]:
        if shape is None or None in shape:
            found = "unknown rank" if shape is None else f"shape {list(shape)}"
            self.refuse(f"expected {what} of a shape that is known; got {found}: give the inputs sizes")
        return tuple(shape)

    def integers(self, index: int, what: str) -> list[int]:
        """The value of a host input. Refuses one that is known only at run time."""
        value = self.known[index]
        if value is None:
            self.refuse(f"expected {what} known before the graph runs")
        return [int(each) for each in np.asarray(value).reshape(-1)]

    def value(self, index: int) -> Any:
        """The value of an input as an array, if it is a constant or a variable's; else None."""
        return self.writer.value_of(self.names[index])

    # --- writing

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        """A node of one output; its name."""
        return self.writer.add(op, inputs, 1, self.node.name, **attrs)[0]

    def several(self, op: str, count: int, *inputs: str, **attrs: Any) -> list[str]:
        """A node of ``count`` outputs; their names."""
        return self.writer.add(op, inputs, count, self.node.name, **attrs)

    def number(self, value: Any, dtype: Any = None) -> str:
        """A scalar, of input 0's dtype by default."""
        return self.constant(np.asarray(value).astype(self.dtype() if dtype is None else dtype))

    def constant(self, value: Any) -> str:
        return self.writer.constant(np.asarray(value))

    def ints(self, values: Any) -> str:
        """A vector of int64."""
        return self.constant(np.array(values, np.int64).reshape(-1))

    def cast(self, name: str, dtype: Any) -> str:
        return self.writer.cast(name, np.dtype(dtype))

    def host_ints(self, index: int) -> str:
        """A host input as a vector of int64, known or not."""
        if self.known[index] is not None:
            return self.ints(self.integers(index, "a value"))
        wide = self.cast(self.names[index], np.int64)
        return wide if self.rank(index) == 1 else self.reshape(wide, [-1])

    def transpose(self, name: str, perm: Sequence[int]) -> str:
        perm = [axis % len(perm) for axis in perm]
        return name if perm == list(range(len(perm))) else self.add("Transpose", name, perm=perm)

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        return self.add("Reshape", name, self.ints(shape), **({"allowzero": 1} if 0 in shape else {}))

    def squeeze(self, name: str, axes: Sequence[int]) -> str:
        return self.add("Squeeze", name, self.ints(axes)) if axes else name

    def unsqueeze(self, name: str, axes: Sequence[int]) -> str:
        return self.add("Unsqueeze", name, self.ints(axes)) if axes else name

    def slice(self, name: str, starts: Any, ends: Any, axes: Any, steps: Any = None) -> str:
        vectors = [self.ints(each) for each in (starts, ends, axes)]
        return self.add("Slice", name, *vectors, *([] if steps is None else [self.ints(steps)]))

    def reduce(self, op: str, name: str, axes: Sequence[int], keep: bool = False) -> str:
        return self.add(op, name, self.ints(axes), keepdims=int(keep)) if axes else name

    def size_of(self, name: str, axis: int) -> str:
        """The size of a dimension when the graph runs: a vector of one int64."""
        return self.add("Shape", name, start=axis, end=axis + 1)
