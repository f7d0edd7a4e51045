"""Compilation of a nest of loops over scalars to one machine-code function that runs its iterations.

A body of scalar arithmetic costs nanoseconds; calling its kernels would cost a hundred times that. Such a
body, of operations with a rule for loops (`OpDef.loop`), becomes scalar programs with its loops and branches
between them, and `flowrt.loops.llvm_iteration` generates the function. Of branches without loops all
sides are computed, and one is selected: they have no effects, and a few operations cost less than a
mispredicted jump.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.executor.kernels.fused_program import by_rule
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import by_argument
from flowrt.graph.op_facets import LoopPattern
from flowrt.loops.llvm_iteration import BasicBlock, Choice, Nest, Repetition, Step, llvm_iteration
from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import DTYPES, LoopBuilder, LoopValue

MAX_NODES = 200
"""Maximum number of operations of a body: the compiler takes a millisecond for each few."""


class IteratedProgram(NamedTuple):
    """The text of the function, and the dtypes of its cells, by their NumPy names: the loop's variables,
    other inputs, the predicate, and inner cells.
    """

    text: str
    cells: tuple[str, ...]


def iterated_program(loop: Node) -> IteratedProgram | None:
    """The program of ``loop``, a _Loop; None if its body is more than arithmetic on scalars."""
    if not is_scalar_loop(loop):
        return None
    nest = _Tracer().run(loop)
    return None if nest is None else IteratedProgram(llvm_iteration(nest), nest.dtypes)


def is_scalar_loop(node: Node) -> bool:
    """Whether ``node`` is a loop over scalars, judged statically, without building its program."""
    if node.op.name != "_Loop":
        return False
    body: Subgraph = node.attrs["body"]
    return bool(body.feeds) and _count(body) <= MAX_NODES and _is_on_scalars(body)


def _count(function: Subgraph) -> int:
    """The operations of a function and of those in it."""
    return len(function) + sum(_count(inner) for node in function for inner in owned_subgraphs(node.attrs))


def _is_on_scalars(function: Subgraph) -> bool:
    return not function.targets and all(map(_is_scalar, function))


def _is_scalar(node: Node) -> bool:
    if node.op.name in ("_Case", "_Loop"):
        if not all(map(_is_on_scalars, owned_subgraphs(node.attrs))):
            return False
    elif node.op.name not in ("_Feed", "Const"):
        loop = node.op.loop
        if loop is None or loop.pattern is not LoopPattern.ELEMENTWISE or not node.op.is_pure:
            return False
        if any(argument.on_host for argument in node.op.inputs):
            return False
    return all(spec.shape == () and spec.dtype.name in DTYPES for spec in node.outputs)


class _Cell(NamedTuple):
    """A value that was computed in an earlier basic block."""

    number: int


class _Constant(NamedTuple):
    value: Any
    dtype: str


Traced: TypeAlias = "LoopValue | _Cell | _Constant"


class _NoRule(Exception):
    """An operation without a rule for its inputs."""


@final
class _Tracer:
    """Traces a nest: ``_steps`` are the completed steps of the current block, and ``_builder`` the scalar
    program that follows them.
    """

    def __init__(self) -> None:
        self._dtypes: list[str] = []
        """Dtypes of the cells."""
        self._steps: list[Step] = []
        self._begin_stretch()

    def run(self, loop: Node) -> Nest | None:
        body: Subgraph = loop.attrs["body"]
        cells = [self._new_cell(body.nodes[name].outputs[0].dtype.name) for name in body.feeds]
        carried, predicate = len(loop.attrs["T"]), self._new_cell("bool")
        try:
            repetition = self._repetition(body, predicate, cells[:carried], cells[carried:])
        except _NoRule:
            return None
        fixed = frozenset(cell.number for cell in cells[carried:])
        results = frozenset(cell.number for cell in cells[:carried])
        return Nest(repetition, tuple(self._dtypes), fixed, results)

    # --- blocks

    def _repetition(
        self, body: Subgraph, predicate: _Cell, variables: Sequence[_Cell], invariant: Sequence[Traced]
    ) -> Repetition:
        steps = self._block(body, [*variables, *invariant], [predicate, *variables])
        return Repetition(predicate.number, steps)

    def _block(
        self, function: Subgraph, arguments: Sequence[Traced], results: Sequence[_Cell]
    ) -> tuple[Step, ...]:
        """The steps of ``function`` as a separate block, which puts its results into cells."""
        outer, self._steps = self._steps, []
        self._put_all(self._fetched(function, arguments), results)
        block, self._steps = tuple(self._steps), outer
        return block

    def _fetched(self, function: Subgraph, arguments: Sequence[Traced]) -> list[Traced]:
        """The results of ``function`` for ``arguments``."""
        values: dict[Ref, Traced] = {
            (name, 0): value for name, value in zip(function.feeds, arguments, strict=True)
        }
        nodes = [node for node in function if node.op.name != "_Feed"]
        for position, node in enumerate(nodes):
            if node.op.name == "_Loop" or (node.op.name == "_Case" and any(map(_repeats, _branches(node)))):
                self._keep(values, {ref for later in nodes[position:] for ref in later.inputs}, function)
                results: Sequence[Traced] = self._controlled(node, [values[ref] for ref in node.inputs])
            else:
                results = self._outputs(node, [values[ref] for ref in node.inputs])
            values.update(((node.name, i), value) for i, value in enumerate(results))
        return [values[ref] for ref in function.fetches]

    def _controlled(self, node: Node, inputs: Sequence[Traced]) -> Sequence[_Cell]:
        """Append a loop, or branches with loops, as a step."""
        results = [self._new_cell(spec.dtype.name) for spec in node.outputs]
        first, arguments = inputs[0], inputs[1:]
        if node.op.name == "_Case":
            number = self._as_cell(first).number
            self._end_stretch()
            blocks = [self._block(branch, arguments, results) for branch in _branches(node)]
            self._steps.append(Choice(number, tuple(blocks)))
            return results
        initial, invariant = arguments[: len(results)], arguments[len(results) :]
        body: Subgraph = node.attrs["body"]
        predicate = self._new_cell("bool")
        self._put_all([first, *initial], [predicate, *results])
        self._steps.append(self._repetition(body, predicate, results, invariant))
        return results

    # --- basic blocks

    def _begin_stretch(self) -> None:
        self._builder = LoopBuilder()
        self._operands: dict[int, int] = {}
        """Operands of the current scalar program, by cell."""
        self._is_put = False

    def _end_stretch(self) -> None:
        if self._is_put:
            program = self._builder.build()
            if program.status is not None:
                raise _NoRule
            self._steps.append(BasicBlock(expand_functions(program), tuple(self._operands)))
        self._begin_stretch()

    def _put_all(self, values: Sequence[Traced], cells: Sequence[_Cell]) -> None:
        """Put ``values`` into ``cells``, in parallel, at the end of the scalar program."""
        for value, cell in zip(values, cells, strict=True):
            if value != cell:
                self._builder.put(self._value(value), self._operand(cell))
                self._is_put = True
        self._end_stretch()

    def _keep(self, values: dict[Ref, Traced], read: set[Ref], function: Subgraph) -> None:
        """End the basic block, with those of ``values`` in cells that are ``read`` afterwards, or fetched."""
        for ref, value in values.items():
            if isinstance(value, LoopValue) and (ref in read or ref in function.fetches):
                values[ref] = self._as_cell(value)
        self._end_stretch()

    def _as_cell(self, value: Traced) -> _Cell:
        if isinstance(value, _Cell):
            return value
        computed = self._value(value)
        cell = self._new_cell(computed.dtype)
        self._builder.put(computed, self._operand(cell))
        self._is_put = True
        return cell

    def _value(self, traced: Traced) -> LoopValue:
        """The value in the current scalar program."""
        if isinstance(traced, LoopValue):
            return traced
        if isinstance(traced, _Constant):
            return self._builder.const(traced.value, traced.dtype)
        return self._builder.load(self._operand(traced), is_row=True)

    def _operand(self, cell: _Cell) -> int:
        if cell.number not in self._operands:
            self._operands[cell.number] = self._builder.operand(self._dtypes[cell.number])
        return self._operands[cell.number]

    def _new_cell(self, dtype: str) -> _Cell:
        self._dtypes.append(dtype)
        return _Cell(len(self._dtypes) - 1)

    # --- operations

    def _outputs(self, node: Node, inputs: Sequence[Traced]) -> Sequence[Traced]:
        if node.op.name == "Const":
            array = node.attrs["value"]
            return (_Constant(array.item(), array.dtype.name),)
        if node.op.name == "_Case":
            return self._chosen(node, inputs)
        values = [self._value(traced) for traced in inputs]
        groups = by_argument(node.op.inputs, values, node.attrs)
        arguments = [tuple(items) if argument.is_list else items[0] for argument, items in groups]
        results = by_rule(self._builder, node, arguments)
        if results is None:
            raise _NoRule
        return results

    def _chosen(self, node: Node, inputs: Sequence[Traced]) -> Sequence[Traced]:
        """The branches' results selected by the index; by default the last."""
        builder, (index, *arguments) = self._builder, inputs
        branches = [[self._value(v) for v in self._fetched(b, arguments)] for b in _branches(node)]
        chosen = branches.pop()
        number = builder.cast(self._value(index), "int32")
        for position, results in enumerate(branches):
            is_this = number.equals(position)
            chosen = [builder.select(is_this, *pair) for pair in zip(results, chosen, strict=True)]
        return chosen


def _branches(node: Node) -> Sequence[Subgraph]:
    return node.attrs["branches"]


def _repeats(function: Subgraph) -> bool:
    """Whether there is a loop in it."""
    return any(
        node.op.name == "_Loop" or any(map(_repeats, owned_subgraphs(node.attrs))) for node in function
    )
