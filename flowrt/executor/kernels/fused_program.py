"""Tracing: from the loop rules of operations to scalar programs, of one rule or of a group of operations.

Each input of a group becomes one operand per way in which members read it, for each element or once per row;
each output becomes an operand that is written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

from flowrt.errors import InternalError
from flowrt.graph.node import Node, Ref, static_shape
from flowrt.graph.op_def import by_argument
from flowrt.graph.op_facets import LoopPattern
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.passes.fusion.group import Group, Level, Support
from flowrt.loops.loop_program import LoopBuilder, LoopProgram, LoopValue, Matrix, Store

Rule: TypeAlias = Callable[..., LoopValue | Sequence[LoopValue] | None]
"""``rule(builder, *values)`` computes elements from others, or none if it has not their dtypes."""

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

STORES = {Level.COLUMN_SUM: Store.SUM_ROWS, Level.TOTAL: Store.SUM_ALL}


class OperandOf(NamedTuple):
    """Meaning of an operand of the program: input or output ``number`` of the group, and its role in the
    domain. Without a number it is the program's status.
    """

    is_input: bool
    number: int | None
    level: Level


class FusedProgram(NamedTuple):
    """The program of a group, and the meaning of its operands, in order."""

    program: LoopProgram
    operands: tuple[OperandOf, ...]


def program_of(
    rule: Rule, reads: Sequence[tuple[str, bool]], written: Sequence[int] = (), store: Store = Store.PUT
) -> LoopProgram | None:
    """The program of ``rule(builder, *values)``, given an element of each operand that it ``reads``: its
    dtype, and whether it is the same all along a row. The results go to the operands ``written``, or to new
    ones behind the others. None if the rule returns None.
    """
    builder = LoopBuilder()
    values = [builder.load(builder.operand(dtype), is_row) for dtype, is_row in reads]
    found = rule(builder, *values)
    if found is None:
        return None
    results = [found] if isinstance(found, LoopValue) else found
    into = written or [builder.operand(value.dtype) for value in results]
    for value, operand in zip(results, into, strict=True):
        builder.put(value, operand, store)
    return builder.build()


MAX_KEPT = 512

_traced: dict[Hashable, FusedProgram | None] = {}


def fused_program(group: Group) -> FusedProgram | None:
    """The program of ``group``, one for all of its kind; None where a member has no rule for its dtypes or
    attrs.
    """
    return remembered(_traced, group.kind, lambda: _Tracer(group).run())


def remembered(known: dict[K, T], key: K, make: Callable[[], T]) -> T:
    """The value of ``key`` in ``known``, or a new one. It keeps up to `MAX_KEPT`: layers of a net have equal
    loops, and so have devices.
    """
    try:
        return known[key]
    except KeyError:
        if len(known) >= MAX_KEPT:
            known.clear()
        found = known[key] = make()
        return found


def by_rule(builder: LoopBuilder, node: Node, arguments: Sequence[Any]) -> tuple[LoopValue, ...] | None:
    """The outputs of ``node`` by its loop rule, given ``arguments`` as the rule takes them; None if it has
    none for these dtypes or attributes.
    """
    op = node.op
    assert op.loop is not None
    try:
        results = op.loop.build(builder, *arguments, **{key: node.attrs[key] for key in op.loop_attrs})
    except InternalError:  # dtypes that the rule cannot combine
        return None
    found = results if results is None or isinstance(results, tuple) else (results,)
    names = [spec.dtype.name for spec in node.outputs] or None
    return found if found is None or names in (None, [value.dtype for value in found]) else None


@final
class _Tracer:
    def __init__(self, group: Group) -> None:
        self._group = group
        self._builder = LoopBuilder()
        self._inputs = {ref: i for i, ref in enumerate(group.inputs)}
        self._reads: dict[tuple[int, Level], int] = {}
        self._values: dict[Ref, LoopValue] = {}

    def run(self) -> FusedProgram | None:
        for member in self._group.members:
            if member.op.reduction is not None:
                results = self._reduced(member)
            else:
                results = by_rule(self._builder, member, self._arguments(member))
            if results is None:
                return None
            for index, value in enumerate(results):
                self._values[member.name, index] = value
        operands = {
            number: OperandOf(True, position, level) for (position, level), number in self._reads.items()
        }
        for position, ref in enumerate(self._group.outputs):
            value, level = self._values[ref], self._group.levels[ref]
            if level is Level.ELEMENT:
                value = self._builder.spread(value)
            is_total = level is Level.TOTAL and value.dtype.startswith("float")
            number = self._builder.operand("float64" if is_total else value.dtype)
            self._builder.put(value, number, STORES.get(level, Store.PUT))
            operands[number] = OperandOf(False, position, level)
        program = self._builder.build()
        if program.status is not None:
            operands[program.status] = OperandOf(False, None, Level.TOTAL)
        return FusedProgram(program, tuple([operands[number] for number in range(len(operands))]))

    def _arguments(self, member: Node) -> list[Any]:
        assert member.op.loop is not None
        if member.op.loop.pattern is LoopPattern.GATHER:
            matrix, numbers, axis = member.inputs
            rows = self._known(numbers) or self._load(numbers, Level.DROPPED)
            return [self._matrix(matrix), rows, self._argument(member, axis, True)]
        arguments: list[Any] = []
        for argument, refs in by_argument(member.op.inputs, member.inputs, member.attrs):
            items = [self._argument(member, ref, argument.on_host) for ref in refs]
            arguments.append(tuple(items) if argument.is_list else items[0])
        return arguments

    def _known(self, ref: Ref) -> LoopValue | None:
        """A constant embedded in the loop, or a member's result; None for an input."""
        if ref in self._group.constants:
            array = self._group.constants[ref]
            return self._builder.const(array.item(), array.dtype.name)
        return self._values.get(ref)

    def _matrix(self, ref: Ref) -> Matrix:
        number = self._operand(ref, Level.MATRIX)
        return Matrix(self._builder, number, static_shape(self._group.inputs[ref])[0])

    def _argument(self, member: Node, ref: Ref, on_host: bool) -> Any:
        if on_host:
            return as_host_value(self._group.constants[ref])
        return self._known(ref) or self._load(ref, self._level_read(member, ref))

    def _level_read(self, member: Node, ref: Ref) -> Level:
        """Role in which the member reads an input of the group."""
        level = self._group.levels[member.name, 0]
        if member.op.loop is not None and member.op.loop.pattern is LoopPattern.ALONG_ROWS:
            shape = self._group.inputs[ref].shape
            return Level.ELEMENT if shape == self._group.domain else Level.DROPPED
        return level if level in (Level.ROW, Level.DROPPED) else Level.ELEMENT

    def _load(self, ref: Ref, level: Level) -> LoopValue:
        return self._builder.load(self._operand(ref, level), level is not Level.ELEMENT)

    def _operand(self, ref: Ref, level: Level) -> int:
        """Operand number of an input of the group read at ``level``."""
        position = self._inputs[ref]
        number = self._reads.get((position, level))
        if number is None:
            number = self._reads[position, level] = self._builder.operand(self._group.inputs[ref].dtype.name)
        return number

    def _reduced(self, member: Node) -> tuple[LoopValue, ...] | None:
        """A reduction's output; the value of a total is its summand."""
        b, kind, ref = self._builder, member.op.reduction, member.inputs[0]
        value = self._known(ref) or self._load(ref, Level.ELEMENT)
        is_float = value.dtype.startswith("float")
        if value.dtype == "bool" or (kind == "mean" and not is_float):
            return None
        level = self._group.levels[member.name, 0]
        if level in STORES:
            is_row = self._group.levels.get(ref) in (Level.ROW, Level.DROPPED)
            is_all = level is Level.TOTAL and not is_row
            count = math.prod(self._group.domain if is_all else self._group.domain[:-1])
            value = value / count if kind == "mean" else value
            return (value if is_row else b.spread(value),)
        if kind == "mean":
            return (b.row_sum(value) / b.cast(b.columns(), value.dtype),)
        return (b.emit(f"row_{kind}", value),)


_supported: dict[Any, Support] = {}


def supports(group: Group) -> Support:
    """Support for a group of one member by the member's rule."""
    (member,) = group.members
    dtypes = [spec.dtype.name for spec in group.inputs.values()]
    attrs = [str(member.attrs[key]) for key in member.op.loop_attrs]
    key = (member.op.name, tuple(dtypes), tuple(attrs), len(group.constants), tuple(group.levels.values()))
    if key not in _supported:
        traced = fused_program(group)
        if traced is None:
            _supported[key] = Support.NONE
        else:
            _supported[key] = Support.FULL if traced.program.status is None else Support.CHECKED
    return _supported[key]
