"""Binding: from one device's subgraph to a `Program` on preassigned buffers.

Everything that a step would otherwise look up is decided here, once, walking the nodes in order. Each tensor
gets a place:

    constant   a constant's array, or the session's resource behind a handle
    buffer     memory of the plan, for a value of static shape whose kernel can write into it; used again
               (last in, first out, so that it is warm) by later values of the same size once its last reader
               has run
    variable   the variable's own memory, read in place
    register   a slot for what is new in every step: large feeds, received tensors, results, values of unknown
    shape

An op whose output aliases its input (reshape, transpose, slice) becomes a view when the program is bound and
costs nothing at run time. Rules that keep this right:

  1. A buffer that another partition may still be reading (it was sent) is not used again within the step.
  2. A variable that is written later in the program, while a reader of the old value is still to come, is
     copied at the read.
  3. A fetched value is fresh memory or a copy: it is the caller's and never changes afterwards.
  4. A kernel may write over an input only if its op is elementwise, the input's buffer has exactly the
     output's shape and dtype, this is its last reader, and no other input is a view of it.
  5. A feed's buffer has not held anything earlier in the program: it is filled before the program starts.
  6. Host arguments (axes, shapes) are read now only if they are constants.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.errors import InternalError, OpError
from flowrt.executor.arguments import Later, Operand, arguments_of, late_call
from flowrt.executor.cost import may_block, node_cost
from flowrt.executor.lifetimes import Lifetimes
from flowrt.executor.program import MAX_STRETCH, PAUSE, Instruction, Line, Program, Segment
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, Ufunc
from flowrt.graph.shapes import is_static
from flowrt.rendezvous import create_key

INCARNATION = 0
"""The devices of one process live as long as it does: in keys, theirs is the first life."""

MAX_COPIED_FEED = 65536
"""Bytes: a smaller feed is copied into a buffer, so that its readers are bound; a larger one is read where it
is.
"""

MAX_PINNED_SEND = 65536
"""Bytes: a smaller tensor is sent out of a pinned buffer, a larger one is new memory that its last reader
frees.
"""

MAX_KEPT_REGISTER = 65536
"""Bytes: a register's value of at most this size may stay until the step ends; a larger one goes after its
last reader.
"""

MAX_STRETCH_COST = 1e7
"""Estimated work between two pauses: some milliseconds, after which a step notices that it was cancelled."""


@final
class Binder:
    """Binds one subgraph. ``device`` gives memory and the array module, ``resource(node)`` the session's
    object behind a stateful node, ``send(key, value)`` and ``take(key, default)`` are the step's rendezvous.
    """

    def __init__(
        self,
        subgraph: Subgraph,
        device: Any,
        resource: Callable[[Node], Any],
        send: Callable[[str, Any], None],
        take: Callable[[str, Any], Any],
    ) -> None:
        self._subgraph, self._device, self._xp = subgraph, device, device.xp
        self._resource, self._send, self._take = resource, send, take
        self._registers: list[Any] = []
        self._instructions: list[Instruction] = []
        self._nodes: list[Node] = []
        self._segments: list[Segment] = []
        self._places: dict[Ref, Operand] = {}
        self._free: dict[tuple[Any, Any], list[Any]] = {}
        self._buffers: dict[Ref, tuple[tuple[Any, Any], Any]] = {}
        self._large_slots: dict[Ref, list[int]] = {}
        self._names: dict[int, str] = {}
        self._lines: list[Line] = []
        self._feeds: dict[str, Callable[[Any], None]] = {}
        self._lifetimes = Lifetimes(subgraph)
        self._fetch_counts = Counter(subgraph.fetches)
        self._fetched = {self._lifetimes.root(ref) for ref in subgraph.fetches}
        self._cost = 0.0
        """Of the stretch so far."""

    def bind(self) -> Program:
        """The program. Raises what a kernel raises when it cannot be bound."""
        for position, node in enumerate(self._subgraph):
            try:
                self._bind_node(node, position)
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:
                raise located(node, error) from error
            self._cost += node_cost(self._subgraph, node)
            if self._instructions and (
                len(self._instructions) >= MAX_STRETCH or self._cost >= MAX_STRETCH_COST or may_block(node)
            ):
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
            array = node.attrs["value"]
            self._place(node, 0, Operand(array, None, _text(array), constant=True))
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
            and dtype.np.kind != "O"
            and not fetched
            and _nbytes(node.outputs[0]) <= MAX_COPIED_FEED
        ):
            array = self._fresh_buffer((node.name, 0), node.outputs[0])
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
        return create_key(ends["send_device"], INCARNATION, ends["recv_device"], ends["tensor_name"], 0, 0)

    def _bind_kernel(self, node: Node, position: int) -> None:
        operands = [self._places[ref] for ref in node.inputs]
        if node.op.alias and self._bind_view(node, operands, position):
            return
        if node.op.effect is Effect.READ and node.op.alias and self._lifetimes.is_overwritten(node, position):
            self._bind_copied_read(node, operands)
            return
        outputs = [(node.name, i) for i in range(len(node.outputs))]
        fetched = any(self._is_fetched(ref) for ref in outputs)
        static = all(is_static(spec[1]) and spec[0].np.kind != "O" for spec in node.outputs)
        in_buffers = node.op.takes_out and outputs and static and not fetched
        if in_buffers and self._lifetimes.is_sent(outputs):
            in_buffers = all(_nbytes(spec) <= MAX_PINNED_SEND for spec in node.outputs)
        if in_buffers:
            self._bind_into_buffers(node, operands, outputs, position)
        else:
            self._bind_into_registers(node, operands)

    def _bind_view(self, node: Node, operands: list[Operand], position: int) -> bool:
        """Make the output a view now, if that is possible."""
        source = operands[0]
        if node.op.effect not in (Effect.PURE, Effect.READ) or source.slot is not None:
            return False
        if node.outputs[0].dtype is dtypes.resource:  # a handle passed on
            self._place(node, 0, source)
            return True
        if node.op.effect is Effect.READ:
            array = source.value.array
            if array is None or not source.value.is_pinned or self._lifetimes.is_overwritten(node, position):
                return False
        else:
            function, arguments = self._kernel(node, operands)
            if any(isinstance(a, Later) for a in arguments):
                return False
            with np.errstate(all="ignore"):
                array = function(*arguments)
            if not (isinstance(array, np.ndarray) and np.may_share_memory(array, source.value)):
                return False
        same = array is source.value or node.op.effect is Effect.READ
        text = source.text if same else f"{node.op.name}({source.text})"
        exact = source.writable and array is source.value
        self._place(node, 0, Operand(array, None, text, exact))
        return True

    def _bind_copied_read(self, node: Node, operands: list[Operand]) -> None:
        """Rule 2."""
        read, arguments = self._kernel(node, operands)
        spec, ref, copy = node.outputs[0], (node.name, 0), self._xp.array
        lock = operands[0].value.lock
        if self._is_fetched(ref) or spec.dtype.np.kind == "O" or not is_static(spec.shape):
            store = functools.partial(self._registers.__setitem__, self._new_register(node, 0))
            self._emit_call(
                node,
                lambda *a: _locked(lock, lambda: copy(read(*a))),
                arguments,
                operands,
                store,
                returns=True,
            )
            return
        array = self._new_buffer(ref, spec)
        self._place(node, 0, Operand(array, None, self._buffer_name(array), True))
        copyto = self._xp.copyto
        self._emit_call(
            node, lambda *a: _locked(lock, lambda: copyto(array, read(*a))), arguments, operands, _ignore
        )

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
        self._emit_call(node, bound, arguments, operands, _ignore)

    def _bind_into_registers(self, node: Node, operands: list[Operand]) -> None:
        function, arguments = self._kernel(node, operands)
        registers = self._registers
        slots = [self._new_register(node, i) for i in range(len(node.outputs))]
        if not slots:
            self._emit_call(node, function, arguments, operands, _ignore)
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

        An argument that is not known yet stands as a `Later`.
        """
        op = node.op
        arguments = arguments_of(node, operands)
        if isinstance(op.kernel, Ufunc):
            return op.kernel.bind(self._xp), arguments
        attrs = {key: node.attrs[key] for key in op.kernel_attrs}
        if op.state is not None:
            attrs["state"] = self._resource(node)
        return functools.partial(op.kernel, self._xp, **attrs), arguments

    def _emit_call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        operands: Sequence[Operand],
        store: Callable[[Any], None],
        returns: bool = False,
    ) -> None:
        """Emit the instruction ``store(function(*arguments))``, reading registers where
        arguments come later.
        """
        result = ", ".join(self._places[node.name, i].text for i in range(len(node.outputs)))
        if not any(isinstance(a, Later) for a in arguments):
            if returns:
                self._emit(node, lambda: store(function(*arguments)), (), operands, result)
            else:
                self._emit(node, function, arguments, operands, result)
            return
        call = late_call(self._registers, function, arguments)
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
        self._instructions, self._nodes, self._cost = [], [], 0.0

    # --- places

    def _place(self, node: Node, index: int, operand: Operand) -> None:
        self._places[node.name, index] = operand

    def _new_register(self, node: Node, index: int) -> int:
        slot, spec = len(self._registers), node.outputs[index]
        self._registers.append(None)
        if not is_static(spec.shape) or _nbytes(spec) > MAX_KEPT_REGISTER:
            self._large_slots.setdefault(self._lifetimes.root((node.name, index)), []).append(slot)
        self._place(node, index, Operand(None, slot, f"r{slot}"))
        return slot

    def _new_buffer(self, ref: Ref, spec: TensorSpec) -> Any:
        spare = self._free.get((spec.shape, spec.dtype))
        if not spare:
            return self._fresh_buffer(ref, spec)
        array = spare.pop()
        self._buffers[ref] = ((spec.shape, spec.dtype), array)
        return array

    def _fresh_buffer(self, ref: Ref, spec: TensorSpec) -> Any:
        """Memory that nothing earlier in the program has written: a feed is put there before the program
        starts.
        """
        array = self._device.empty(spec.shape, spec.dtype.np)
        self._buffers[ref] = ((spec.shape, spec.dtype), array)
        return array

    def _buffer_name(self, array: Any) -> str:
        """``b0``, ``b1``, … in the order of allocation: what the program's text calls a buffer."""
        return self._names.setdefault(id(array), f"b{len(self._names)}")

    def _is_fetched(self, ref: Ref) -> bool:
        return self._lifetimes.root(ref) in self._fetched

    def _release_inputs(self, node: Node, operands: Sequence[Operand], position: int) -> None:
        """Give back, before the output is placed, the buffers that rule 4 lets the kernel write over."""
        roots = [self._lifetimes.root(ref) for ref in node.inputs]
        rearranged = {root for root, operand in zip(roots, operands, strict=True) if not operand.writable}
        for ref, root in zip(node.inputs, roots, strict=True):
            if root not in rearranged and self._lifetimes.ends_at(ref, position):
                self._give_back(root)

    def _release(self, node: Node, position: int) -> None:
        """After the node: give back what it was the last to read."""
        outputs = [(node.name, i) for i in range(len(node.outputs))]
        for root in dict.fromkeys([self._lifetimes.root(ref) for ref in [*node.inputs, *outputs]]):
            if self._lifetimes.ends_at(root, position):
                self._give_back(root)
            if root in self._large_slots and self._lifetimes.is_read_last_at(root, position):
                for slot in self._large_slots.pop(root):
                    self._instructions.append((self._registers.__setitem__, (slot, None)))
                    self._nodes.append(node)

    def _give_back(self, root: Ref) -> None:
        kept = self._buffers.pop(root, None)
        if kept is not None:
            self._free.setdefault(kept[0], []).append(kept[1])

    def _fetch(self, ref: Ref) -> Callable[[], Any]:
        operand = self._places[ref]
        registers, slot = self._registers, operand.slot
        if slot is None:
            source = self._subgraph.nodes[self._lifetimes.root(ref)[0]]
            if source.op.effect is Effect.READ and source.op.alias:
                lock = self._places[source.inputs[0]].value.lock  # another step may be updating the variable
                return lambda: _locked(lock, _copy, operand.value)
            return functools.partial(_copy, operand.value)
        is_new = self._subgraph.nodes[ref[0]].op.effect in (Effect.PURE, Effect.RANDOM)
        if is_new and self._lifetimes.root(ref) == ref and self._fetch_counts[ref] == 1:
            return lambda: _own(registers[slot])
        return lambda: _copy(registers[slot])


def _nbytes(spec: TensorSpec) -> int:
    count = spec.dtype.size
    for dim in spec.shape or ():
        if dim is None:
            raise InternalError(f"expected a static shape; got {spec}")
        count *= dim
    return count


def _locked(lock: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    with lock:
        return function(*arguments)


def _ignore(_: Any) -> None:
    """What becomes of a result that is in its buffer already."""


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
