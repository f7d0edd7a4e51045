"""Programs that a device can capture and launch as one unit, such as a CUDA graph."""

from __future__ import annotations

from flowrt import dtypes
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.buffers.buffer_assignment import is_on_host
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect, by_argument
from flowrt.graph.resources.variables import VariableResource

_OF_DEVICE = (Effect.PURE, Effect.READ, Effect.WRITE)


def is_fixed(subgraph: Subgraph, tensors: BoundTensors) -> bool:
    """Whether every step makes the same calls on the same memory, independent of the host."""
    return all(_is_fixed(node, subgraph, tensors) for node in subgraph)


def _is_fixed(node: Node, subgraph: Subgraph, tensors: BoundTensors) -> bool:
    """Whether the device needs only itself for ``node``: of resources, only variables are not the host's."""
    op = node.op
    if op.name == "_Feed":
        return tensors[node.name, 0].slot is None
    if op.effect is Effect.HANDLE:
        return True
    if op.effect not in _OF_DEVICE or op.state is not None or is_on_host(node):
        return False
    for argument, refs in by_argument(op.inputs, node.inputs, node.attrs):
        operands = [tensors[ref] for ref in refs]
        if argument.on_host and any(operand.host_value is None for operand in operands):
            return False
        are_handles = any(subgraph.spec(ref).dtype is dtypes.resource for ref in refs)
        if are_handles and not all(isinstance(o.value, VariableResource) for o in operands):
            return False
    return True
