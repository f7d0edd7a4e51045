"""Forms of calls: what the parts of a class have in common is decided for the first part, for all.

    first part     node, operands -> kernel, attributes, which operands its arguments are: the form
    other parts    form, operands (in their own arena, variables and registers) -> call

Calls of Python functions have forms. Compiled loops, transfers and views are bound for each part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias, final

from flowrt.executor.bind.bind_kernel import KernelBinder
from flowrt.executor.bind.verify_calls import check_form
from flowrt.executor.bind.verify_program import is_checking
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.lower.part_class import varies
from flowrt.executor.program.arguments import Later, Operand, as_list, later_of
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.node import Node
from flowrt.graph.op_def import Ufunc

Pick: TypeAlias = "int | tuple[int, ...]"
"""The number of a value, or those of a list."""


class CallForm(NamedTuple):
    """Calls of ``function`` with the arguments ``picks``: by number among the node's operands and, behind
    them, the values that the host ``has_read``. None: all of these, in order.
    """

    function: Any
    picks: tuple[Pick, ...] | None
    has_read: tuple[Any, ...]
    is_plain: bool
    """Whether all arguments are known, results are in buffers, and no state or workspace is needed."""
    is_ufunc: bool

    def on(
        self, kernels: KernelBinder, node: Node, reads: Sequence[Operand], writes: Sequence[Operand]
    ) -> Call:
        """The call of ``node``, which has its operands there."""
        if not self.is_plain:
            values = [read.value if read.slot is None else later_of(read.slot) for read in reads]
            return kernels.call(node, self.function, self._arguments((*values, *self.has_read)), writes)
        arguments: tuple[Any, ...] = (*[read.value for read in reads], *self.has_read)
        if self.picks is not None:
            arguments = self._arguments(arguments)
        out = kernels.out(node, writes)
        if self.is_ufunc:
            return Call(self.function, (*arguments, out))
        return Call(partial(self.function, out=out), arguments)

    def _arguments(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.picks is None:
            return values
        return tuple([
            values[pick] if isinstance(pick, int) else as_list([values[i] for i in pick])
            for pick in self.picks
        ])  # fmt: skip


def form_of(
    kernels: KernelBinder,
    node: Node,
    function: Any,
    arguments: Sequence[Any],
    reads: Sequence[Operand],
    writes: Sequence[Operand],
) -> CallForm | None:
    """The form of the call of ``node``'s kernel, ``function``; None if it depends on more than the class of
    the part.
    """
    if varies(node) or isinstance(function, GroupKernel):
        return None
    picks: list[Pick] = []
    has_read: list[Any] = []
    position = 0
    for argument, bound in zip(node.op.inputs, arguments, strict=True):
        count = argument.length(node.attrs) if argument.is_list else 1
        own = tuple(range(position, position + count))
        position += count
        if isinstance(bound, Later) and not bound.is_plain:
            return None
        if not argument.on_host:
            picks.append(own if argument.is_list else own[0])
        elif argument.is_list:
            return None
        else:
            picks.append(len(reads) + len(has_read))
            has_read.append(bound)
    is_buffer = bool(writes) and writes[0].slot is None
    is_known = not any(isinstance(bound, Later) for bound in arguments)
    is_plain = is_buffer and is_known and not kernels.own_arguments(node)
    is_ufunc = isinstance(node.op.kernel, Ufunc)
    are_all = picks == [*range(len(reads) + len(has_read))]
    return CallForm(function, None if are_all else tuple(picks), tuple(has_read), is_plain, is_ufunc)


@final
class ClassForms:
    """The forms of the calls of a class, by the positions of their nodes: made for the first part."""

    def __init__(self) -> None:
        self.is_shared = False
        """Whether the class has several parts."""
        self._forms: dict[int, CallForm | None] = {}

    def action(
        self,
        position: int,
        kernels: KernelBinder,
        node: Node,
        reads: Sequence[Operand],
        writes: Sequence[Operand],
    ) -> Action:
        """The action of ``node``, which is at ``position`` of each part's order."""
        if position in self._forms:
            form = self._forms[position]
            if form is None:
                return kernels.action(node, reads, writes)
            call = form.on(kernels, node, reads, writes)
            if form.is_plain and is_checking():
                check_form(node, call, kernels.action(node, reads, writes))
            return call
        function, arguments = kernels.kernel(node, reads)
        compiled = kernels.compiled(node, function, arguments, writes)
        self._forms[position] = (
            None if compiled else form_of(kernels, node, function, arguments, reads, writes)
        )
        return compiled or kernels.call(node, function, arguments, writes)
