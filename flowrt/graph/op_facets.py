"""What the parts of an op's definition are: the kinds of functions that it consists of, and groups of facts.

`flowrt.graph.op_def.define_op` takes them.
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

# --- functions


class Kernel(Protocol):
    """``kernel(xp, *inputs, out=None, workspace=None, **attrs)``: the computation, over an array module."""

    def __call__(self, xp: Any, /, *inputs: Any, **options: Any) -> Any: ...


class Vjp(Protocol):
    """``vjp(op, *output_gradients)``: one gradient an input, None where there is none."""

    def __call__(self, op: Operation, /, *gradients: Any, **_: Any) -> Sequence[Any]: ...


class Jvp(Protocol):
    """``jvp(op, *input_tangents)``: one tangent an output, or the only one; None where there is none."""

    def __call__(self, op: Operation, /, *tangents: Any, **_: Any) -> Any: ...


class LoopRule(Protocol):
    """``build(b, *inputs, **attrs)`` returns a value, or a tuple with one an output; None where no loop does
    it for these dtypes and attrs. ``b`` is a `flowrt.device.loops.loop_program.LoopBuilder` and an input its
    `Value` (a
    tuple of them for a list, a Python value for a host input); ``attrs`` are those that it has as
    keyword-only parameters.
    """

    def __call__(self, b: Any, /, *inputs: Any, **attrs: Any) -> Any: ...


class BatchRule(Protocol):
    """What does to a batch what an operation does to one element: see
    `flowrt.graph.construction.batching_rules`."""

    def __call__(
        self, b: BatchBuilder, op: Operation, values: Sequence[Value], /
    ) -> Sequence[Value] | None: ...


# --- facts


class Traits(NamedTuple):
    """What passes may make of an op's results."""

    elementwise: bool = False
    """Whether output element i depends on the (broadcast) input elements i only."""
    commutative: bool = False
    reduction: str | None = None
    """What it does to input 0 along the axes in host input 1: "sum", "mean", "max", "min" or "prod"."""
    joined: Callable[[Mapping[str, Any]], tuple[int | None, ...]] | None = None
    """From attrs, the axis along which each input may be cut (None: it says how); the op sums over parts."""
    total: bool = False
    """Whether it fails for no values of its inputs, if their shapes fit."""


NO_TRAITS = Traits()


class ListUse(Enum):
    """What an op does with a list."""

    EMPTY = "makes one without elements"
    RESERVED = "makes one of elements that are not set"
    PUSHED = "puts an element behind the last"
    POPPED = "takes the last element"
    READ = "reads an element"
    SET = "sets an element"
    ADDED = "adds to elements"
    MERGED = "writes elements from several places"


class ListAccess(NamedTuple):
    """What an op does with the list that is its first input, or with the one that it makes."""

    use: ListUse
    element: int | None = None
    """The number of the input that is written; if it is popped or read, of the output."""
    written: Callable[[Sequence[Shape]], Shape] | None = None
    """The shape of the elements that it writes, by the inputs' shapes; its output is that list."""

    @property
    def begins(self) -> bool:
        """Whether it makes a list none of whose elements is set."""
        return self.use in (ListUse.EMPTY, ListUse.RESERVED)

    def element_of(self, node: Node) -> Ref:
        """The element that ``node`` writes, pops or reads."""
        assert self.element is not None
        is_output = self.use in (ListUse.POPPED, ListUse.READ)
        return (node.name, self.element) if is_output else node.inputs[self.element]


class LoopPattern(Enum):
    """Which elements of an op's inputs an element of its outputs is made of."""

    ELEMENTWISE = "elementwise"
    """Those in its place; the inputs broadcast as in NumPy."""
    ALONG_ROWS = "along rows"
    """Those of its row, which is the last axis of input 0 and along which the rule reduces
    (``b.row_sum(x)``); an input or output with one dimension less has one value a row.
    """
    RESHAPE = "reshape"
    """The one of input 0 with its number: they keep their order, in another shape."""
    GATHER = "gather"
    """The one of its column in a row of input 0, a `flowrt.device.loops.loop_program.Matrix`, that input 1
    numbers; host
    input 2 is the axis.
    """


class Loop(NamedTuple):
    """How one element of the op's outputs is computed in a compiled loop, which may fuse it with others'."""

    build: LoopRule
    """A resource input is the variable: its element now, or its matrix. What an op that writes returns are
    the new elements of the resources in order.
    """
    pattern: LoopPattern = LoopPattern.ELEMENTWISE


def instruction(op: str) -> Loop:
    """The `Loop` of an op that is one instruction of loops on its inputs."""
    return Loop(lambda b, *inputs: b.emit(op, *inputs))


def on_floats(build: LoopRule) -> Loop:
    """The `Loop` of an op that loops compute for floats only: integers may raise (a negative exponent)."""
    return Loop(lambda b, *inputs: build(b, *inputs) if inputs[0].dtype.startswith("float") else None)
