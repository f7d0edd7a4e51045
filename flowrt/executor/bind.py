"""Binding: from one device's subgraph to a `Program` on preassigned buffers.

Everything that a step would otherwise look up is decided here, once, walking the nodes in order. Each tensor gets a place:

    constant   a constant's array, or the session's resource behind a handle
    buffer     memory of the plan, for a value of static shape whose kernel can write into it; used again (last in, first
               out, so that it is warm) by later values of the same size once its last reader has run
    variable   the variable's own memory, read in place
    register   a slot for what is new in every step: large feeds, received tensors, results, values of unknown shape

An op whose output aliases its input (reshape, transpose, slice) becomes a view when the program is bound and costs nothing
at run time. Rules that keep this right:

  1. A buffer that another partition may still be reading (it was sent) is not used again within the step.
  2. A variable that is written later in the program, while a reader of the old value is still to come, is copied at the read.
  3. A fetched value is fresh memory or a copy: it is the caller's and never changes afterwards.
  4. A kernel may write over an input only if its op is elementwise, the input's buffer has exactly the output's shape
     and dtype, and this is its last reader.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.errors import InternalError, OpError
from flowrt.executor.program import MAX_STRETCH, PAUSE, Instruction, Line, Program, Segment
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Argument, Effect, Ufunc
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.shapes import is_static
from flowrt.rendezvous import create_key

MAX_COPIED_FEED = 65536
"""Bytes: a smaller feed is copied into a buffer, so that its readers are bound; a larger one is read where it is."""

MAX_PINNED_SEND = 65536
"""Bytes: a smaller tensor is sent out of a pinned buffer, a larger one is new memory that its last reader frees."""

MAX_KEPT_REGISTER = 65536
"""Bytes: a register's value of at most this size may stay until the step ends; a larger one goes after its last reader."""


class Operand(NamedTuple):
    """Where a tensor is: ``value`` (an array or resource that is known now), or register ``slot``."""

    value: Any
    slot: int | None
    text: str
    writable: bool = False
    """Whether ``value`` is exactly a plan buffer, which rule 4 may hand to an elementwise successor."""


@final
class Binder:
    """Binds one subgraph. ``device`` gives memory and the array module, ``resource(node)`` the session's object behind a
    stateful node, ``send(key, value)`` and ``take(key, default)`` are the step's rendezvous, ``incarnations`` the number
    of each sending device's life, for keys.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        device: Any,
        resource: Callable[[Node], Any],
        send: Callable[[str, Any], None],
        take: Callable[[str, Any], Any],
        incarnation: int,
    ) -> None:
        self._subgraph, self._device, self._xp = subgraph, device, device.xp
        self._resource, self._send, self._take, self._incarnation = resource, send, take, incarnation
        self._registers: list[Any] = []
        self._instructions: list[Instruction] = []
        self._nodes: list[Node] = []
        self._segments: list[Segment] = []
        self._places: dict[Ref, Operand] = {}
        self._free: dict[tuple[Any, Any], list[Any]] = {}
        self._buffers: dict[Ref, tuple[tuple[Any, Any], Any]] = {}
        self._names: dict[int, str] = {}
        self._lines: list[Line] = []
        self._feeds: dict[str, Callable[[Any], None]] = {}
        self._lifetimes = Lifetimes(subgraph)
        self._fetched = {self._lifetimes.root(ref) for ref in subgraph.fetches}

    def bind(self) -> Program:
        """The program. Raises what a kernel raises when it cannot be bound."""
        for position, node in enumerate(self._subgraph):
            try:
                self._bind_node(node, position)
            except OpError as error:
                raise located(node, error) from error.__cause__
            if len(self._instructions) >= MAX_STRETCH:
                self._cut(PAUSE, 0)
        self._cut(None, 0)
        fetches = [self._fetch(ref) for ref in self._subgraph.fetches]
        feeds = [self._feeds[name] for name in self._subgraph.feeds]
        segments, registers = tuple(self._segments), self._registers
        return Program(self._device.name, segments, registers, feeds, fetches, self._take, self._lines)

    # --- nodes

    def _bind_node(self, node: Node, position: int) -> None:
        name = node.op.name
        if name == "Const":
            self._place(node, 0, Operand(node.attrs["value"], None, _text(node.attrs["value"])))
        elif node.op.effect is Effect.HANDLE:
            self._place(node, 0, Operand(self._resource(node), None, f"%{node.name}"))
        elif name == "_Feed":
            self._bind_feed(node, position)
        elif name == "_Recv":
            self._bind_recv(node)
        elif name == "_Send":
            self._bind_send(node)
        elif node.outputs or node.inputs or node.op.effect is not Effect.PURE:
            self._bind_kernel(node, position)
        self._release(node, position)

    def _bind_feed(self, node: Node, position: int) -> None:
        dtype, shape = node.outputs[0]
        fetched = self._is_fetched((node.name, 0))
        if (
            is_static(shape)
            and dtype.np != object
            and not fetched
            and _nbytes(node.outputs[0]) <= MAX_COPIED_FEED
        ):
            array = self._new_buffer((node.name, 0), node.outputs[0])
            self._feeds[node.name] = functools.partial(array.__setitem__, ...)
            self._place(node, 0, Operand(array, None, self._buffer_name(array)))
            return
        slot = self._new_register(node, 0)
        self._feeds[node.name] = functools.partial(self._registers.__setitem__, slot)

    def _bind_recv(self, node: Node) -> None:
        self._cut(self._key(node), self._new_register(node, 0))
        self._lines.append(Line(node, (node.attrs["send_device"],), self._places[node.name, 0].text))

    def _bind_send(self, node: Node) -> None:
        operand, key = self._places[node.inputs[0]], self._key(node)
        if operand.slot is None:
            self._emit(node, self._send, (key, operand.value), (operand,), "")
        else:
            registers, send, slot = self._registers, self._send, operand.slot
            self._emit(node, lambda: send(key, registers[slot]), (), (operand,), "")

    def _key(self, node: Node) -> str:
        ends = node.attrs
        return create_key(
            ends["send_device"], self._incarnation, ends["recv_device"], ends["tensor_name"], 0, 0
        )

    def _bind_kernel(self, node: Node, position: int) -> None:
        operands = [self._places[ref] for ref in node.inputs]
        if node.op.alias and self._bind_view(node, operands, position):
            return
        outputs = [(node.name, i) for i in range(len(node.outputs))]
        fetched = any(self._is_fetched(ref) for ref in outputs)
        static = all(is_static(spec[1]) and spec[0].np != object for spec in node.outputs)
        large_send = self._lifetimes.is_sent(outputs) and any(
            _nbytes(s) > MAX_PINNED_SEND for s in node.outputs
        )
        if node.op.takes_out and outputs and static and not fetched and not large_send:
            self._bind_into_buffers(node, operands, outputs, position)
        else:
            self._bind_into_registers(node, operands)

    def _bind_view(self, node: Node, operands: list[Operand], position: int) -> bool:
        """Make the output a view now, if that is possible."""
        source = operands[0]
        if any(o.slot is not None for o in operands):
            return False
        if node.op.effect is Effect.READ:
            array = source.value.array
            if (
                array is None
                or not is_static(node.outputs[0].shape)
                or self._lifetimes.is_overwritten(node, position)
            ):
                return False
        else:
            array = self._call(node, operands)
            if not (isinstance(array, np.ndarray) and np.may_share_memory(array, source.value)):
                return False
        exact = source.writable and array is source.value
        self._place(node, 0, Operand(array, None, source.text, exact))
        return True

    def _bind_into_buffers(
        self, node: Node, operands: list[Operand], outputs: list[Ref], position: int
    ) -> None:
        if node.op.elementwise:
            self._release_inputs(node, operands, position)
        arrays = [self._new_buffer(ref, spec) for ref, spec in zip(outputs, node.outputs, strict=True)]
        for index, array in enumerate(arrays):
            self._place(node, index, Operand(array, None, self._buffer_name(array), True))
        several = len(arrays) != 1 or node.op.outputs[0].is_list
        out = tuple(arrays) if several else arrays[0]
        function, arguments = self._kernel(node, operands)
        if isinstance(node.op.kernel, Ufunc):
            bound, arguments = function, (*arguments, out)
        else:
            bound = functools.partial(function, out=out)
        self._emit_call(node, bound, arguments, operands, lambda _: None)

    def _bind_into_registers(self, node: Node, operands: list[Operand]) -> None:
        function, arguments = self._kernel(node, operands)
        registers = self._registers
        slots = [self._new_register(node, i) for i in range(len(node.outputs))]
        if not slots:
            self._emit_call(node, function, arguments, operands, lambda _: None)
            return
        if len(slots) == 1 and not node.op.outputs[0].is_list:
            store: Callable[[Any], None] = functools.partial(registers.__setitem__, slots[0])
        else:

            def store(values: Any) -> None:
                for slot, value in zip(slots, values, strict=True):
                    registers[slot] = value

        self._emit_call(node, function, arguments, operands, store, returns=True)

    # --- kernels

    def _kernel(self, node: Node, operands: Sequence[Operand]) -> tuple[Any, tuple[Any, ...]]:
        """The node's kernel with attrs and array module bound, and one argument an input of its signature.

        An argument that is not known yet stands as a `_Later`.
        """
        op = node.op
        arguments: list[Any] = []
        position = 0
        for argument in op.inputs:
            count = _width(argument, node)
            items = [_argument(argument, o) for o in operands[position : position + count]]
            position += count
            arguments.append(_group(items) if argument.is_list else items[0])
        if isinstance(op.kernel, Ufunc):
            return op.kernel.bind(self._xp), tuple(arguments)
        attrs = {key: node.attrs[key] for key in op.kernel_attrs}
        if op.state is not None:
            attrs["state"] = self._resource(node)
        return functools.partial(op.kernel, self._xp, **attrs), tuple(arguments)

    def _call(self, node: Node, operands: Sequence[Operand]) -> Any:
        function, arguments = self._kernel(node, operands)
        with np.errstate(all="ignore"):
            return function(*arguments)

    def _emit_call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        operands: Sequence[Operand],
        store: Callable[[Any], None],
        returns: bool = False,
    ) -> None:
        """Emit the instruction ``store(function(*arguments))``, reading registers where arguments come later."""
        result = ", ".join(self._places[node.name, i].text for i in range(len(node.outputs)))
        if not any(isinstance(a, _Later) for a in arguments):
            if returns:
                self._emit(node, lambda: store(function(*arguments)), (), operands, result)
            else:
                self._emit(node, function, arguments, operands, result)
            return
        call = _late_call(self._registers, function, arguments)
        self._emit(node, (lambda: store(call())) if returns else call, (), operands, result)

    def _emit(
        self, node: Node, function: Any, arguments: tuple[Any, ...], operands: Sequence[Operand], text: str
    ) -> None:
        self._instructions.append((function, arguments))
        self._nodes.append(node)
        self._lines.append(Line(node, tuple(o.text for o in operands), text))

    def _cut(self, key: str | None, slot: int) -> None:
        """End the stretch, and wait for ``key``."""
        self._segments.append(Segment(tuple(self._instructions), tuple(self._nodes), key, slot))
        self._instructions, self._nodes = [], []

    # --- places

    def _place(self, node: Node, index: int, operand: Operand) -> None:
        self._places[node.name, index] = operand

    def _new_register(self, node: Node, index: int) -> int:
        slot = len(self._registers)
        self._registers.append(None)
        self._place(node, index, Operand(None, slot, f"r{slot}"))
        return slot

    def _new_buffer(self, ref: Ref, spec: TensorSpec) -> Any:
        kind = (spec.shape, spec.dtype)
        spare = self._free.get(kind)
        array = spare.pop() if spare else self._device.empty(spec.shape, spec.dtype.np)
        self._buffers[ref] = (kind, array)
        return array

    def _buffer_name(self, array: Any) -> str:
        """``b0``, ``b1``, … in the order of allocation: what the program's text calls a buffer."""
        return self._names.setdefault(id(array), f"b{len(self._names)}")

    def _is_fetched(self, ref: Ref) -> bool:
        return self._lifetimes.root(ref) in self._fetched

    def _release_inputs(self, node: Node, operands: Sequence[Operand], position: int) -> None:
        """Give back, before the output is placed, the buffers that rule 4 lets the kernel write over."""
        for ref, operand in zip(node.inputs, operands, strict=True):
            if operand.writable and self._lifetimes.ends_at(ref, position):
                self._give_back(self._lifetimes.root(ref))

    def _release(self, node: Node, position: int) -> None:
        """After the node: give back what it was the last to read."""
        for ref in dict.fromkeys([*node.inputs, *((node.name, i) for i in range(len(node.outputs)))]):
            if not self._lifetimes.ends_at(ref, position):
                continue
            self._give_back(self._lifetimes.root(ref))
            operand = self._places[ref]
            if operand.slot is not None and not self._is_fetched(ref):
                spec = self._subgraph.spec(ref)
                if not is_static(spec.shape) or _nbytes(spec) > MAX_KEPT_REGISTER:
                    self._instructions.append((self._registers.__setitem__, (operand.slot, None)))
                    self._nodes.append(node)

    def _give_back(self, root: Ref) -> None:
        kept = self._buffers.pop(root, None)
        if kept is not None:
            self._free.setdefault(kept[0], []).append(kept[1])

    def _fetch(self, ref: Ref) -> Callable[[], Any]:
        operand = self._places[ref]
        registers, slot = self._registers, operand.slot
        root = self._places.get(self._lifetimes.root(ref))
        if slot is None:
            return functools.partial(_copy, operand.value)
        if root is operand and self._subgraph.nodes[ref[0]].op.effect in (Effect.PURE, Effect.RANDOM):
            return lambda: _own(registers[slot])
        return lambda: _copy(registers[slot])


class _Later(NamedTuple):
    """An argument that is in a register: ``convert`` makes a host value of it if the kernel wants one."""

    slots: tuple[int | None, ...]
    values: tuple[Any, ...]
    is_list: bool
    on_host: bool

    def read(self, registers: list[Any]) -> Any:
        items = [v if s is None else registers[s] for s, v in zip(self.slots, self.values, strict=True)]
        if self.on_host:
            items = [
                as_host_value(np.asarray(i)) if s is not None else i
                for s, i in zip(self.slots, items, strict=True)
            ]
        return tuple(items) if self.is_list else items[0]


def _argument(argument: Argument, operand: Operand) -> Any:
    if operand.slot is not None:
        return _Later((operand.slot,), (None,), False, argument.on_host)
    return as_host_value(np.asarray(operand.value)) if argument.on_host else operand.value


def _group(items: list[Any]) -> Any:
    if not any(isinstance(i, _Later) for i in items):
        return tuple(items)
    slots = tuple(i.slots[0] if isinstance(i, _Later) else None for i in items)
    values = tuple(None if isinstance(i, _Later) else i for i in items)
    return _Later(slots, values, True, any(isinstance(i, _Later) and i.on_host for i in items))


def _late_call(registers: list[Any], function: Any, arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """A call that reads its register arguments when it is made. Plain registers go through one ``itemgetter``."""
    if any(isinstance(a, _Later) and (a.is_list or a.on_host) for a in arguments):
        return lambda: function(*[a.read(registers) if isinstance(a, _Later) else a for a in arguments])
    if len(arguments) == 1:
        slot = arguments[0].slots[0]
        return lambda: function(registers[slot])
    slots = []
    for argument in arguments:
        if isinstance(argument, _Later):
            slots.append(argument.slots[0])
        else:  # a known argument becomes a register that never changes
            slots.append(len(registers))
            registers.append(argument)
    get = itemgetter(*slots)
    return lambda: function(*get(registers))


@final
class Lifetimes:
    """Who reads each tensor last. Aliases count as their root: the tensor whose memory they share."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._roots: dict[Ref, Ref] = {}
        self._last: dict[Ref, float] = {}
        self._sent: set[Ref] = set()
        self._writes: dict[Ref, list[int]] = {}
        for position, node in enumerate(subgraph):
            op = node.op
            for ref in node.inputs:
                self._last[self.root(ref)] = position
            if op.name == "_Send":
                self._sent.add(self.root(node.inputs[0]))
            if op.effect is Effect.WRITE:
                for ref in node.inputs:
                    self._writes.setdefault(ref, []).append(position)
            if op.alias and op.effect is not Effect.READ and node.inputs:
                self._roots[node.name, 0] = self.root(node.inputs[0])
            for index in range(len(node.outputs)):
                self._last.setdefault(self.root((node.name, index)), position)
        for ref in subgraph.fetches:
            self._last[self.root(ref)] = float("inf")
        for root in self._sent:
            self._last[root] = float("inf")

    def root(self, ref: Ref) -> Ref:
        return self._roots.get(ref, ref)

    def ends_at(self, ref: Ref, position: int) -> bool:
        return self._last[self.root(ref)] == position

    def is_sent(self, refs: Sequence[Ref]) -> bool:
        return any(self.root(ref) in self._sent for ref in refs)

    def is_overwritten(self, read: Node, position: int) -> bool:
        """Whether the variable is written after the read, and the value that was read is used at or after that."""
        last = self._last[self.root((read.name, 0))]
        return any(position < write <= last for write in self._writes.get(read.inputs[0], ()))


def _width(argument: Argument, node: Node) -> int:
    if argument.number_attr:
        return int(node.attrs[argument.number_attr])
    return len(node.attrs[argument.type_attr or ""]) if argument.is_type_list else 1


def _nbytes(spec: TensorSpec) -> int:
    count = spec.dtype.size
    for dim in spec.shape or ():
        if dim is None:
            raise InternalError(f"expected a static shape; got {spec}")
        count *= dim
    return count


def _text(array: Any) -> str:
    return repr(array.item()) if array.size == 1 else f"const{list(array.shape)}"


def _own(value: Any) -> Any:
    """A fetched value as the caller gets it: 0-d arrays become scalars, views of larger arrays copies."""
    if not isinstance(value, np.ndarray):
        return value
    if value.ndim == 0:
        return value[()]
    return value if value.flags.owndata else value.copy()


def _copy(value: Any) -> Any:
    """A fetched value that somebody else still has."""
    return _own(np.array(value)) if isinstance(value, (np.ndarray, np.generic)) else value
