"""Calls of layers on tensors as data: a `Node` each. Models are found by following them backwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.keras.state.graph_state import graph_state
from flowrt.nest import flatten, pack_sequence_as


@dataclass(eq=False)
class Node:
    """One call of ``layer``: structures of its ``inputs`` and ``outputs``; ``arguments`` are the other ones
    of ``call``, positional and by name.
    """

    layer: Any
    inputs: Any
    outputs: Any
    arguments: tuple[tuple[Any, ...], Mapping[str, Any]]

    def tensors(self) -> list[Tensor]:
        """The tensors that the call read, also among its arguments, in order and each once."""
        found = [*tensors_in(self.inputs), *tensors_in(self.arguments)]
        return list({tensor.ref: tensor for tensor in found}.values())


class History(NamedTuple):
    """The place where a tensor comes from: an output of a call."""

    node: Node
    output: int

    @property
    def layer(self) -> Any:
        return self.node.layer


def history_of(tensor: Tensor) -> History | None:
    """The call of a layer that made ``tensor``, or None."""
    found: History | None = graph_state(tensor.graph).history.get(tensor.ref)
    return found


def record(node: Node) -> None:
    """Note ``node`` for its layer and its outputs."""
    node.layer._inbound_nodes.append(node)
    for index, tensor in enumerate(tensors_in(node.outputs)):
        graph_state(tensor.graph).history[tensor.ref] = History(node, index)


def tensors_in(structure: Any) -> list[Tensor]:
    """The tensors of a structure of tensors and other values."""
    return [each for each in flatten(structure) if isinstance(each, Tensor)]


def source_inputs(tensor: Tensor) -> list[Tensor]:
    """The inputs from which layers computed ``tensor``: those that no layer made, or `keras.Input` did."""
    made = history_of(tensor)
    read = made.node.tensors() if made is not None else []
    found = [source for each in read for source in source_inputs(each)] if read else [tensor]
    return list({each.ref: each for each in found}.values())


def map_tensors(function: Callable[[Tensor], Any], structure: Any) -> Any:
    """``structure`` with ``function`` of its tensors in their places."""
    flat = [function(each) if isinstance(each, Tensor) else each for each in flatten(structure)]
    return pack_sequence_as(structure, flat)


def one_or_list(values: list[Any]) -> Any:
    """The only value, or the list of several."""
    return values[0] if len(values) == 1 else values


def is_of_use(operation: Operation, inputs: Sequence[Tensor]) -> bool:
    """Whether ``operation`` depends on one of ``inputs``; with none given, whether it depends on no
    placeholder, and so is of every use of its layer.
    """
    refs = frozenset(tensor.ref for tensor in inputs)
    if refs:
        return any(tensor.ref in refs for op in _ancestors(operation, refs) for tensor in op.inputs)
    return all(op.type != "Placeholder" for op in _ancestors(operation, refs))


def _ancestors(operation: Operation, inputs: frozenset[Any]) -> Iterator[Operation]:
    """``operation`` and what it depends on, as far as ``inputs``."""
    waiting, seen = [operation], set[str]()
    while waiting:
        op = waiting.pop()
        if op.name not in seen:
            seen.add(op.name)
            yield op
            waiting += [tensor.op for tensor in op.inputs if tensor.ref not in inputs]
