"""Invariants of every subgraph, checked by tests after each pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import InternalError
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Argument


def verify_subgraph(subgraph: Subgraph) -> None:
    """Raises `InternalError`, naming the first bad node, unless

    nodes are stored under their own names, after their inputs and control inputs; inputs and controls exist,
    each control once; values are arrays; input and output dtypes are those of the op's signature; feeds,
    fetches and targets exist; functions satisfy these rules too, and have a parameter of its dtype for each
    argument of their owner.
    """
    seen: dict[str, Node] = {}
    for name, node in subgraph.nodes.items():
        for fault in _faults(name, node, seen):
            source = None if node.source is None else str(node.source)
            raise InternalError(fault, op=name, op_type=node.op.name, source=source)
        seen[name] = node
        for function in owned_subgraphs(node.attrs):
            verify_subgraph(function)
    for fault in _end_faults(subgraph):
        raise InternalError(f"subgraph: {fault}")


def _faults(name: str, node: Node, seen: Mapping[str, Node]) -> Iterator[str]:
    if node.name != name:
        yield f"expected the node to be stored under its own name; got {node.name!r}"
    for producer, index in node.inputs:
        if producer not in seen:
            yield f"expected input {producer!r} to come before it"
        elif not 0 <= index < len(seen[producer].outputs):
            count = len(seen[producer].outputs)
            yield f"expected one of the {count} outputs of {producer!r}; got number {index}"
    for control in node.controls:
        if control not in seen:
            yield f"expected control input {control!r} to come before it"
    if len(set(node.controls)) != len(node.controls):
        yield f"expected each control input once; got {', '.join(node.controls)}"
    if isinstance(value := node.attrs.get("value"), np.generic):
        yield f"expected an array as the value; got {value!r}"
    yield from _dtype_faults(node, seen)
    for function in owned_subgraphs(node.attrs):
        yield from _function_faults(function, node, seen)


def _function_faults(function: Subgraph, node: Node, seen: Mapping[str, Node]) -> Iterator[str]:
    arguments = node.inputs[
        max(0, len(node.inputs) - len(function.feeds)) :
    ]  # follow a predicate or an index
    expected = [seen[name].outputs[index].dtype for name, index in arguments]
    found = [function.spec((name, 0)).dtype for name in function.feeds if name in function.nodes]
    if expected != found:
        yield f"expected a function with parameters {_names(expected)}; got {_names(found)}"


def _dtype_faults(node: Node, seen: Mapping[str, Node]) -> Iterator[str]:
    inputs = [seen[name].outputs[index].dtype for name, index in node.inputs]
    yield from _signature_faults("inputs", node.op.inputs, node, inputs)
    yield from _signature_faults("outputs", node.op.outputs, node, [spec.dtype for spec in node.outputs])


def _signature_faults(
    what: str, arguments: tuple[Argument, ...], node: Node, found: list[DType]
) -> Iterator[str]:
    expected = [dtype for argument in arguments for dtype in argument.dtypes(node.attrs)]
    if expected != found:
        yield f"expected {what} of dtypes {_names(expected)}; got {_names(found)}"


def _names(kinds: list[DType]) -> str:
    return f"({', '.join(kind.name for kind in kinds)})"


def _end_faults(subgraph: Subgraph) -> Iterator[str]:
    nodes = subgraph.nodes
    for name in subgraph.feeds:
        if name not in nodes:
            yield f"expected feed {name!r} among the nodes"
    for name, index in subgraph.fetches:
        if name not in nodes or not 0 <= index < len(nodes[name].outputs):
            yield f"expected fetch {name!r}:{index} among the nodes' outputs"
    for name in subgraph.targets:
        if name not in nodes:
            yield f"expected target {name!r} among the nodes"
