"""Conversion of TensorFlow 1's control flow to While and If during import.

It is based on *dead* tensors. ``Switch(data, pred)`` forwards data to one of two sides, and consumers of the
other side do not run; ``Merge`` forwards the live side. A loop is a *frame*: ``Enter`` leads into it; each
variable has a Merge of the value from Enter and that of the last iteration (``NextIteration``), followed by a
Switch on ``LoopCond`` that leads to the body or, by ``Exit``, out of the frame.

Conversion to structured form:

  1. `flowrt.tf1.graph_import.import_frames` finds each node's frame. The innermost become While operations
     first. The Merges of a frame, and constants that enter it, are the parameters of the condition and of the
     body.
  2. The remaining nodes have no cycles. Their Switches and Merges determine the *conditions* under which a
     node runs: a set of (predicate, side). Merges of one predicate under the same conditions are the results
     of one If, unless that creates a cycle; the innermost become If operations first
     (`flowrt.tf1.graph_import.import_branches`).
  3. An Exit or a Merge becomes an Identity of the same name. Nodes under conditions that no Merge ends have
     no readable value, and are dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import while_op
from flowrt.graph.messages.graph_def import format_ref
from flowrt.graph.node import Node, Ref
from flowrt.graph.ops.base.identities import identity
from flowrt.tf1.graph_import import v1_ops
from flowrt.tf1.graph_import.import_branches import extracted, raise_branches, unused_name
from flowrt.tf1.graph_import.import_frames import Frame, find_frames

_CONTROL_FLOW = (
    v1_ops.SWITCH,
    v1_ops.MERGE,
    v1_ops.ENTER,
    v1_ops.EXIT,
    v1_ops.NEXT_ITERATION,
    v1_ops.LOOP_COND,
    v1_ops.CONTROL_TRIGGER,
)


def raise_control_flow(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with While and If in place of frames, Switch and Merge; the same
    object if there are none. Raises `InvalidArgumentError`, with a node's name, unless they have the
    structure described above.
    """
    if not any(node.op in _CONTROL_FLOW for node in nodes.values()):
        return nodes
    for node in nodes.values():
        if node.op in _CONTROL_FLOW and node.op is not v1_ops.MERGE:
            count = len(node.op.inputs)
            if len(node.inputs) != count:
                raise _error(node, f"expected {count} inputs; got {len(node.inputs)}")
    taken = set(nodes)
    root, loops = find_frames(nodes)
    for frame in loops:
        _raise_loop(frame, taken)
    return raise_branches(root.nodes, taken)


def _raise_loop(frame: Frame, taken: set[str]) -> None:
    """Replace ``frame`` by a While operation in its parent frame."""
    loop = _Loop(frame)
    name = unused_name(frame.name.removesuffix("/while_context"), taken)
    outside = frame.parent.nodes
    outside[name] = loop.operation(name, taken)
    for exit_name in frame.exits:
        node = outside[exit_name]
        variable = loop.left_by(node)
        outside[exit_name] = node.replace(op=identity, inputs=((name, variable),))


class _Loop:
    """The parts of a frame: its variables (each a Merge), its constants (each an Enter), and the rest."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        nodes = frame.nodes
        self._test = self._one_test()
        self._initial: dict[str, str] = {}  # from a variable to the Enter of its first value
        self._next: dict[str, str] = {}  # from a variable to its NextIteration
        for node in nodes.values():
            if node.op is v1_ops.MERGE:
                self._add_if_variable(node)
        first = set(self._initial.values())
        self._constants = [n.name for n in nodes.values() if n.op is v1_ops.ENTER and n.name not in first]
        self._variables = list(self._initial)
        self._switches = {
            node.name: node.inputs[0][0]
            for node in nodes.values()
            if node.op is v1_ops.SWITCH and node.inputs[1:] == ((self._test.name, 0),)
        }
        for switch, variable in self._switches.items():
            if variable not in self._initial:
                raise _error(nodes[switch], f"expected a variable of the loop (a Merge); got {variable!r}")

    def _one_test(self) -> Node:
        found = [node for node in self._frame.nodes.values() if node.op is v1_ops.LOOP_COND]
        if len(found) != 1:
            where = found[1] if found else next(iter(self._frame.nodes.values()))
            raise _error(where, f"expected one LoopCond in frame {self._frame.name!r}; got {len(found)}")
        return found[0]

    def _add_if_variable(self, merge: Node) -> None:
        nodes = self._frame.nodes
        ops = {nodes[name].op: name for name, _ in merge.inputs if name in nodes}
        if v1_ops.NEXT_ITERATION not in ops:
            return
        if len(merge.inputs) != 2 or ops.keys() != {v1_ops.ENTER, v1_ops.NEXT_ITERATION}:
            got = ", ".join(map(format_ref, merge.inputs))
            raise _error(merge, f"expected a Merge of an Enter and a NextIteration; got {got}")
        self._initial[merge.name] = ops[v1_ops.ENTER]
        self._next[merge.name] = ops[v1_ops.NEXT_ITERATION]

    def left_by(self, node: Node) -> int:
        """The index of the variable that the Exit ``node`` returns, seen through Identity: so gradients are
        grouped.
        """
        switch, side = ref = node.inputs[0]
        while switch in self._frame.nodes and self._frame.nodes[switch].op is identity:
            switch, side = self._frame.nodes[switch].inputs[0]
        if switch not in self._switches or side != 0:
            raise _error(node, f"expected output 0 of a Switch on LoopCond; got {format_ref(ref)!r}")
        return self._variables.index(self._switches[switch])

    def operation(self, name: str, taken: set[str]) -> Node:
        """The While operation."""
        nodes = self._frame.nodes
        test = self._inner_ref(self._test.inputs[0])
        after = [self._inner_ref(nodes[self._next[variable]].inputs[0]) for variable in self._variables]
        inside = self._inside(taken, [test, *after])
        read = {name for name, _ in (test, *after, *[ref for node in inside.values() for ref in node.inputs])}
        constants = [name for name in self._constants if name in read]
        feeds = [*self._variables, *constants]
        condition = extracted(inside, feeds, [test])
        waits = [name for each in self._next.values() for name in nodes[each].controls if name in inside]
        body = extracted(inside, feeds, [*after, *[(name, 0) for name in constants]], waits)
        enters = [nodes[n] for n in (*self._initial.values(), *constants)]
        controls = dict.fromkeys(control for enter in enters for control in enter.controls)
        attrs = {
            "cond": condition,
            "body": body,
            "output_shapes": (),
            "parallel_iterations": enters[0].attrs["parallel_iterations"],
        }
        inputs = tuple(enter.inputs[0] for enter in enters)
        return Node(name, while_op, inputs, tuple(controls), attrs, "", self._test.source, ())

    def _inside(self, taken: set[str], needed: Sequence[Ref]) -> Mapping[str, Node]:
        """Nodes of an iteration, with its branches converted; parameters have no nodes."""
        gone = {*self._variables, *self._constants, *self._switches, self._test.name}
        gone |= {*self._initial.values(), *self._next.values()}
        inside = {}
        for node in self._frame.nodes.values():
            if node.name not in gone:
                inputs = tuple(map(self._inner_ref, node.inputs))
                controls = tuple(c for c in node.controls if c not in gone)
                inside[node.name] = node.replace(inputs=inputs, controls=controls)
        return raise_branches(inside, taken, needed)

    def _inner_ref(self, ref: Ref) -> Ref:
        """The tensor that ``ref`` refers to while the loop continues."""
        if ref[0] in self._switches and ref[1] == 1:
            return self._switches[ref[0]], 0
        return ref


def _error(node: Node, message: str) -> InvalidArgumentError:
    error = located(node, InvalidArgumentError(message))
    assert isinstance(error, InvalidArgumentError)
    return error
