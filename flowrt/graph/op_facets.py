"""The components of an op's definition: protocols of its functions, and groups of properties.

`flowrt.graph.op_def.define_op` takes them as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from flowrt.graph.shapes import Shape

if TYPE_CHECKING:
    from flowrt.graph.construction.batching_rules import BatchBuilder, Value
    from flowrt.graph.construction.operation import Operation
    from flowrt.graph.node import Node, Ref
    from flowrt.loops.loop_program import LoopBuilder, LoopValue

# --- functions


class Kernel(Protocol):
    """``kernel(xp, *inputs, out=None, workspace=None, **attrs)``: the computation, over an array module."""

    def __call__(self, xp: Any, /, *inputs: Any, **options: Any) -> Any: ...


class Vjp(Protocol):
    """``vjp(op, *output_gradients)``: one gradient per input, None if there is none."""

    def __call__(self, op: Operation, /, *gradients: Any, **_: Any) -> Sequence[Any]: ...


class Jvp(Protocol):
    """``jvp(op, *input_tangents)``: one tangent per output (or the only one); None if there is none."""

    def __call__(self, op: Operation, /, *tangents: Any, **_: Any) -> Any: ...


class Form(Protocol):
    """``sharded(op)``: tensors equal to the op's outputs, from its inputs; None if there are none for this
    call.
    """

    def __call__(self, op: Operation, /) -> Sequence[Any] | None: ...


class LoopRule(Protocol):
    """``build(b, *inputs, **attrs)`` returns a value, or a tuple with one per output; None if no loop
    supports these dtypes and attrs. An input is a `LoopValue` of ``b``, a tuple of them for a list, or a
    Python value for a host input; ``attrs`` are its keyword-only parameters.
    """

    def __call__(
        self, b: LoopBuilder, /, *inputs: Any, **attrs: Any
    ) -> LoopValue | tuple[LoopValue, ...] | None: ...


class BatchRule(Protocol):
    """Rule that applies an operation to a whole batch: see `flowrt.graph.construction.batching_rules`."""

    def __call__(
        self, b: BatchBuilder, op: Operation, values: Sequence[Value], /
    ) -> Sequence[Value] | None: ...


# --- facts


class Traits(NamedTuple):
    """Algebraic properties of an op that passes rely on."""

    elementwise: bool = False
    """Whether output element i depends on the (broadcast) input elements i only."""
    overwrites: int | None = None
    """The input that the kernel may find at the place of its output, if it is not elementwise: those may find
    any of theirs.
    """
    commutative: bool = False
    reduction: str | None = None
    """The reduction of input 0 along the axes in host input 1: "sum", "mean", "max", "min" or "prod"."""
    joined: Callable[[Mapping[str, Any]], tuple[int | None, ...]] | None = None
    """Function from attrs to the axis where each input may be split (None: a parameter); sums over parts."""
    total: bool = False
    """Whether it never fails, whatever the values of its inputs, if their shapes are compatible."""
    linear_in: tuple[int, ...] = ()
    """The inputs in each of which it is linear while the others are fixed, as a product is in both."""
    narrows: bool | None = None
    """True if it may be computed in a narrow dtype between products that are, since it only moves elements;
    False if it needs the range or the precision of the script's dtype; None: as its other facts say. See
    `flowrt.graph.passes.precision.precision_class`.
    """
    up_to_phase: bool = False
    """Whether vectors among its outputs have a free sign or phase, which each library chooses differently."""


NO_TRAITS = Traits()


class ListUse(Enum):
    """Kinds of access of an op to a list."""

    EMPTY = "makes one without elements"
    RESERVED = "makes one of elements that are not set"
    PUSHED = "puts an element behind the last"
    POPPED = "takes the last element"
    READ = "reads an element"
    SET = "sets an element"
    ADDED = "adds to elements"
    MERGED = "writes elements from several places"


class ListAccess(NamedTuple):
    """An op's access to the list that is its first input, or to the one that it creates."""

    use: ListUse
    element: int | None = None
    """Index of the input that is written; for a pop or a read, index of the output."""
    written: Callable[[Sequence[Shape]], Shape] | None = None
    """The shape of the elements that it writes, from the inputs' shapes; its output is that list."""

    @property
    def begins(self) -> bool:
        """Whether it creates a list without any element set."""
        return self.use in (ListUse.EMPTY, ListUse.RESERVED)

    def element_of(self, node: Node) -> Ref:
        """The element that ``node`` writes, pops or reads."""
        assert self.element is not None
        is_output = self.use in (ListUse.POPPED, ListUse.READ)
        return (node.name, self.element) if is_output else node.inputs[self.element]


class LoopPattern(Enum):
    """The elements of an op's inputs from which one element of its outputs is computed."""

    ELEMENTWISE = "elementwise"
    """The elements at the same index; the inputs broadcast as in NumPy."""
    ALONG_ROWS = "along rows"
    """The elements of the same row, along the last axis of input 0, which the rule reduces
    (``b.row_sum(x)``); an input or output with one dimension less has one value per row.
    """
    RESHAPE = "reshape"
    """The element of input 0 with the same linear index: the order is kept, the shape changes."""
    GATHER = "gather"
    """The element in the same column of a row of input 0, a `flowrt.loops.loop_program.Matrix`; input
    1 holds the row indices, host input 2 the axis.
    """


class Loop(NamedTuple):
    """Code that computes an element of the op's outputs in a compiled loop, possibly fused with others."""

    build: LoopRule
    """A resource input stands for the variable: its current element, or its matrix. A writing op returns the
    new elements of the resources in order.
    """
    pattern: LoopPattern = LoopPattern.ELEMENTWISE


def instruction(op: str) -> Loop:
    """The `Loop` of an op that is a single loop instruction on its inputs."""
    return Loop(lambda b, *inputs: b.emit(op, *inputs))


def on_floats(build: LoopRule) -> Loop:
    """The `Loop` of an op that only supports floats in loops: integers may raise (a negative exponent)."""
    return Loop(lambda b, *inputs: build(b, *inputs) if inputs[0].dtype.startswith("float") else None)
