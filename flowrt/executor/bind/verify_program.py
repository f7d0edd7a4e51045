"""Verification of bound programs: every read finds the value that the graph says it reads.

The verifier follows the nodes in the order of the schedule, and notes the last write to each byte:

    a kernel     reads its inputs, then writes its outputs
    a view       writes nothing: its value is what its bytes hold now
    an update    writes its variables
    a loop       writes its outputs and the memory of its functions, and reads its inputs until it ends
    a fetch, a tensor that is sent: read when the program ends

Then it follows the instructions of the program: each must find the same writes in the bytes that its nodes
read, though passes have joined, inserted and removed instructions.

It knows the graph, the order, and the addresses of the tensors. It does not know lifetimes, views or the
plan of the arena, which decide the addresses: that is what it verifies. Functions are verified on their own,
and an extended program with what it extends. Values in registers, each of which has memory of its own, and
devices other than the host are not followed.

With ``FLOWRT_CHECK=1`` every program is verified when it is bound.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import merge
from itertools import chain, groupby
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from flowrt.errors import InternalError
from flowrt.executor.analysis.streams import StreamSchedule
from flowrt.executor.bind.memory_contents import Content, Memory, Range, Write
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.program.program import Segment
from flowrt.executor.program.updates import Updates
from flowrt.graph.effects import touches
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect


class Layer(NamedTuple):
    """Nodes that were bound together, in the order in which they run, and where their tensors are.
    ``parameters`` are the tensors of earlier layers that feeds stand for.
    """

    subgraph: Subgraph
    schedule: StreamSchedule
    tensors: BoundTensors
    parameters: Mapping[str, Ref]


CHECK = "FLOWRT_CHECK"


def is_checking() -> bool:
    """Whether ``FLOWRT_CHECK`` asks for verification."""
    return os.environ.get(CHECK, "") not in ("", "0")


@contextmanager
def checking() -> Iterator[None]:
    """Verify every program that is bound meanwhile."""
    before = os.environ.get(CHECK)
    os.environ[CHECK] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[CHECK]
        else:
            os.environ[CHECK] = before


Block: TypeAlias = Sequence[Segment]


def verify_program(layers: Sequence[Layer], fetches: Iterable[Ref], blocks: Sequence[Block]) -> None:
    """Raise `InternalError` if a node of ``layers`` reads another value than it should, or if one
    of ``fetches`` or of the tensors that are sent is not there when the program ends. ``blocks`` are the
    instructions, of each stream.
    """
    accesses, contents = Accesses(), dict[Ref, Content]()
    walks = [_Walk(layer, accesses, contents) for layer in layers]
    for walk in walks:
        walk.run()
    for ref in fetches:
        walk = next(walk for walk in reversed(walks) if ref[0] in walk.layer.subgraph.nodes)
        walk.read(ref, walk.layer.subgraph.nodes[ref[0]], "the fetch of")
    for walk in walks:
        walk.read_sent()
    nodes = chain.from_iterable([layer.schedule.order for layer in layers])
    positions = {node.name: position for position, node in enumerate(nodes)}
    done = _replay(accesses, merge(*map(_steps, blocks), key=lambda step: positions[step[0].name]))
    if len(layers) == 1:  # an extended program may have dropped nodes
        _check_all(accesses, done)


class Read(NamedTuple):
    """A read of a tensor, described by ``text``, which must find ``content``."""

    text: str
    where: Range
    content: Content


@final
class Accesses:
    """Reads and writes of each node, by its name, in memory as it is while they are noted."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.reads = defaultdict[str, list[Read]](list)
        self.writes = defaultdict[str, list[tuple[Range, Write]]](list)


# --- the nodes, as scheduled


@final
class _Walk:
    """Follows the nodes of ``layer``. ``contents``: of each tensor, what its bytes held when it was made."""

    def __init__(self, layer: Layer, accesses: Accesses, contents: dict[Ref, Content]) -> None:
        self.layer = layer
        self._tensors, self._schedule = layer.tensors, layer.schedule
        self._accesses, self._memory, self._contents = accesses, accesses.memory, contents
        self._sent: list[tuple[Ref, Node]] = []

    def run(self) -> None:
        nodes = self.layer.subgraph.nodes
        for name in self.layer.subgraph.feeds:
            self._begin(nodes[name])
        for node in self._schedule.order:
            if (node.name, 0) in self._contents and node.name in self.layer.subgraph.feeds:
                continue
            if node.op.effect is Effect.NESTED:
                self._visit_owner(node)
            else:
                self._visit(node)

    def read_sent(self) -> None:
        for ref, node in self._sent:
            self.read(ref, node, "the receiver of")

    def _begin(self, feed: Node) -> None:
        """A feed, filled before the program begins, or a parameter."""
        ref, where = (feed.name, 0), self._where((feed.name, 0))
        outer = self.layer.parameters.get(feed.name)
        if outer is not None and outer in self._contents:
            self._contents[ref] = self._contents[outer]
        elif where is not None and feed.op.name == "_Feed" and not self.layer.parameters:
            self._contents[ref] = self._memory.adopt(where, f"feed {feed.name!r}")

    def _visit(self, node: Node) -> None:
        for ref in node.inputs:
            self.read(ref, node)
        if node.op.name == "_Send":
            self._sent.append((node.inputs[0], node))
        for handle, is_written in touches(node):
            if is_written:
                self._write_variable(handle, node)
        for index in range(len(node.outputs)):
            self._make((node.name, index), node)

    def _visit_owner(self, node: Node) -> None:
        """A loop or branch: its inputs are there until it ends."""
        for ref in node.inputs:
            self.read(ref, node)
        scratch = self._tensors.scratch(node)
        if scratch is not None:
            self._write(_bounds(scratch), Write(node, f"the functions of {node.name!r}"), node)
        for index in range(len(node.outputs)):
            self._make((node.name, index), node)
        for ref in node.inputs:
            self.read(ref, node)
        for handle, is_written in touches(node):
            if is_written:
                self._write_variable(handle, node)

    # --- reads

    def read(self, ref: Ref, reader: Node, what: str = "") -> None:
        """Raise unless the bytes of ``ref`` hold what they held when it was made."""
        where, expected = self._where(ref), self._contents.get(ref)
        if where is None or expected is None:
            return
        found = self._memory.content(where)
        if not _are_same(found, expected):
            raise located(reader, InternalError(self._message(ref, reader, what, expected, found)))
        for _, _, write in found:
            self._check_order(write, reader)
            write.users.append(reader.name)
        if not what:
            self._accesses.reads[reader.name].append(Read(self._named(ref), where, expected))

    def _message(self, ref: Ref, reader: Node, what: str, expected: Content, found: Content) -> str:
        who = what or f"{reader.op.name} {reader.name!r} reads"
        return f"program: {who} {self._named(ref)}; {_difference(expected, found)}"

    def _named(self, ref: Ref) -> str:
        return f"{ref[0]}:{ref[1]} at {self._tensors[ref].text}"

    def _check_order(self, write: Write, reader: Node) -> None:
        if write.node is not None and not self._is_before(write.node.name, reader.name):
            message = (
                f"program: {reader.op.name} {reader.name!r} does not wait for {_text(write)}, which it reads"
            )
            raise located(reader, InternalError(message))

    def _is_before(self, first: str, second: str) -> bool:
        return first == second or self._schedule.count == 1 or self._schedule.happens_before(first, second)

    # --- writes

    def _make(self, ref: Ref, node: Node) -> None:
        """An output of ``node``: new bytes, or those of another tensor."""
        operand = self._tensors.get(ref)
        where = self._where(ref)
        if operand is None or where is None:
            return
        op = node.op
        if op.name == "Const" or (op.reads_variable and self._is_variable(node, operand.value)):
            self._contents[ref] = self._memory.adopt(where, f"{op.name} {node.name!r}")
            return
        if op.alias and any(_contains(self._where(source), where) for source in node.inputs):
            self._contents[ref] = self._memory.content(where)
            return
        for source in node.inputs if op.effect is not Effect.NESTED else ():
            self._check_overlap(node, operand.value, source)
        self._write(where, Write(node, f"output {ref[1]} of {node.name!r}"), node)
        self._contents[ref] = self._memory.content(where)

    def _is_variable(self, node: Node, array: Any) -> bool:
        variable = self._tensors[node.inputs[0]].value
        return getattr(variable, "array", None) is not None and np.may_share_memory(variable.array, array)

    def _check_overlap(self, node: Node, output: Any, source: Ref) -> None:
        """Raise if the kernel would overwrite an input before it has read it."""
        where = self._where(source)
        if where is None or not _overlap(where, _bounds(output)):
            return
        value = self._tensors[source].value
        if not (node.op.elementwise and _is_same_array(value, output)):
            message = f"program: {node.op.name} {node.name!r} writes over its input {source[0]}:{source[1]}"
            raise located(node, InternalError(message))

    def _write_variable(self, handle: Ref, node: Node) -> None:
        operand = self._tensors.get(handle)
        array = None if operand is None else getattr(operand.value, "array", None)
        if isinstance(array, np.ndarray) and array.size:
            self._write(_bounds(array), Write(node, f"{node.op.name} {node.name!r}"), node)

    def _write(self, where: Range, write: Write, node: Node) -> None:
        if where[0] == where[1]:
            return
        for _, _, before in self._memory.content(where):
            for user in before.users:
                if not self._is_before(user, node.name):
                    message = (
                        f"program: {_text(write)} does not wait for {user!r}, which uses its memory before"
                    )
                    raise located(node, InternalError(message))
        self._memory.write(where, write)
        self._accesses.writes[node.name].append((where, write))

    # --- addresses

    def _where(self, ref: Ref) -> Range | None:
        """The addresses of a tensor that is in memory known before the step."""
        operand = self._tensors.get(ref)
        array = None if operand is None or operand.slot is not None else operand.value
        return _bounds(array) if isinstance(array, np.ndarray) and array.size else None


# --- the instructions, as joined

_Step: TypeAlias = tuple[Node, ...]
"""The nodes of an instruction."""


def _steps(block: Block) -> Iterator[_Step]:
    """The instructions of a block, without repetitions of one node."""
    for nodes, _ in groupby(_all_steps(block)):
        yield nodes


def _all_steps(block: Block) -> Iterator[_Step]:
    for segment in block:
        for node, action in segment.instructions:
            yield action.nodes if isinstance(action, Updates) else (node,)
        if segment.control is not None:
            yield (segment.control.node,)
        elif segment.receive is not None:
            yield (segment.receive,)


def _replay(accesses: Accesses, steps: Iterable[_Step]) -> set[str]:
    """Raise unless each of ``steps`` finds what its nodes should read. Those of one step read before they
    write: they may run in any order. Returns the names of the nodes.
    """
    memory = Memory()
    for where, write in accesses.memory.adopted:
        memory.write(where, write)
    done = set[str]()
    for nodes in steps:
        for node in nodes:
            for text, where, expected in accesses.reads[node.name]:
                found = memory.content(where)
                if not _are_same(found, expected):
                    message = f"program: the instruction of {node.name!r} reads {text}; "
                    raise located(node, InternalError(message + _difference(expected, found)))
        for node in nodes:
            for where, write in accesses.writes[node.name]:
                memory.write(where, write)
            done.add(node.name)
    return done


def _check_all(accesses: Accesses, done: Container[str]) -> None:
    for name, writes in accesses.writes.items():
        node = writes[0][1].node if writes else None
        if node is not None and name not in done:
            raise located(node, InternalError(f"program: expected an instruction of {name!r}; got none"))


# --- contents


def _difference(expected: Content, found: Content) -> str:
    wrong = [f for f in found if not any(f[2] is e[2] for e in expected)] or found
    got = _text(wrong[0][2]) if wrong else "what was there before the program"
    return f"expected {_text(expected[0][2])}; got {got}"


def _bounds(array: Any) -> Range:
    low, high = np.lib.array_utils.byte_bounds(array)
    return low, high


def _overlap(a: Range, b: Range) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _contains(outer: Range | None, inner: Range) -> bool:
    return outer is not None and outer[0] <= inner[0] and inner[1] <= outer[1]


def _is_same_array(a: Any, b: Any) -> bool:
    """Whether two arrays have each element at one address."""
    return (a.ctypes.data, a.shape, a.strides, a.dtype) == (b.ctypes.data, b.shape, b.strides, b.dtype)


def _are_same(found: Content, expected: Content) -> bool:
    found, expected = _merged(found), _merged(expected)
    return len(found) == len(expected) and all(
        f[:2] == e[:2] and f[2] is e[2] for f, e in zip(found, expected, strict=True)
    )


def _merged(content: Content) -> Content:
    """``content`` with adjacent pieces of one write as one."""
    if len(content) < 2:
        return content
    found = list(content[:1])
    for begin, end, write in content[1:]:
        if found[-1][1] == begin and found[-1][2] is write:
            found[-1] = (found[-1][0], end, write)
        else:
            found.append((begin, end, write))
    return found


def _text(write: Write) -> str:
    source = None if write.node is None else write.node.source
    return write.what if source is None else f"{write.what} ({source})"
