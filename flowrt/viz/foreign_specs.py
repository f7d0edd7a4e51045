"""Dtypes and shapes of the tensors of a graph that flowrt cannot build: `with_specs`.

They come from the file, and for known operations from the ops' inference rules. Nothing is checked: if a rule
rejects its inputs, its result is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.construction.build import output_dtypes
from flowrt.graph.functions.control_flow import while_op
from flowrt.graph.inference import infer_outputs
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, with_functions
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, merge
from flowrt.graph.topology import sort_topologically

UNKNOWN = DType("unknown", 0, np.object_)
"""The dtype of an unknown operation's outputs; TensorFlow's number for "invalid"."""

UNCHECKED = (OpError, TypeError, ValueError, LookupError, AttributeError)
"""Errors that a rule may raise for unchecked attributes and inputs."""


def with_specs(graph: Subgraph, given: Mapping[str, TensorSpec] = {}) -> Subgraph:
    """``graph`` with the specs of all outputs, producers first; in its own order where it has a cycle.

    ``given`` are those of a function's arguments, by the names of its parameters.
    """
    try:
        ordered = sort_topologically(graph.nodes)
    except InvalidArgumentError:  # a loop of TensorFlow 1, for instance
        ordered = graph.nodes
    read = _num_read(graph)
    nodes: dict[str, Node] = {}
    for name, node in ordered.items():
        if name in graph.feeds:
            nodes[name] = node.replace(outputs=(given[name],)) if name in given else node
        else:
            nodes[name] = _with_outputs(node, nodes, read.get(name, 0))
    return graph.replace(nodes=nodes)


def _with_outputs(node: Node, nodes: Mapping[str, Node], num_read: int) -> Node:
    inputs = [_spec(nodes, ref) for ref in node.inputs]
    same = node.op is not while_op  # the shape of a loop variable may change, too
    known = [spec if same else spec._replace(shape=None) for spec in inputs]
    node = with_functions(node, lambda function: _with_arguments(function, known))
    node = node.replace(attrs={**_types(node, inputs), **node.attrs})
    outputs = _outputs(node, inputs, nodes, num_read)
    attrs = {key: value for key, value in node.attrs.items() if key != OUTPUT_SHAPES}
    return node.replace(attrs=attrs, outputs=outputs)


def _types(node: Node, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """The type variables of the op, by its inputs."""
    if any(argument.number_attr for argument in node.op.inputs):
        return {}
    found: dict[str, Any] = {}
    for i, argument in enumerate(node.op.inputs):
        if argument.is_type_list and argument.type_attr:
            found[argument.type_attr] = tuple([spec.dtype for spec in inputs[i:]])
        elif argument.type_attr and i < len(inputs):
            found[argument.type_attr] = inputs[i].dtype
    return found


def _with_arguments(function: Subgraph, inputs: Sequence[TensorSpec]) -> Subgraph:
    """An operation's functions take its last inputs."""
    first = max(len(inputs) - len(function.feeds), 0)
    pairs = zip(function.feeds, inputs[first:], strict=False)
    told = {feed: function.nodes[feed].outputs[0] for feed in function.feeds}
    merged = {
        f: TensorSpec(s.dtype, _merged(s.shape, told[f].shape)) for f, s in pairs if s.dtype is not UNKNOWN
    }
    return with_specs(function, merged)


def _spec(nodes: Mapping[str, Node], ref: Ref) -> TensorSpec:
    """The current spec of ``ref``; unknown if it closes a cycle."""
    outputs = nodes[ref[0]].outputs if ref[0] in nodes else ()
    return outputs[ref[1]] if ref[1] < len(outputs) else TensorSpec(UNKNOWN, None)


def _num_read(graph: Subgraph) -> dict[str, int]:
    """The number of outputs to assume for each node: one more than the highest index read."""
    found: dict[str, int] = {}
    for name, index in (*[ref for node in graph for ref in node.inputs], *graph.fetches):
        found[name] = max(found.get(name, 0), index + 1)
    return found


def _outputs(
    node: Node, inputs: Sequence[TensorSpec], nodes: Mapping[str, Node], num_read: int
) -> tuple[TensorSpec, ...]:
    told: tuple[Shape, ...] = node.attrs.get(OUTPUT_SHAPES) or ()
    specs = list(_inferred(node, inputs, nodes))
    specs += [TensorSpec(UNKNOWN, None)] * (max(num_read, len(told)) - len(specs))
    for i, shape in enumerate(told):
        specs[i] = specs[i]._replace(shape=_merged(specs[i].shape, shape))
    return tuple(specs)


def _inferred(node: Node, inputs: Sequence[TensorSpec], nodes: Mapping[str, Node]) -> tuple[TensorSpec, ...]:
    """The outputs by the op's own rule; dtypes alone if it fails."""
    dtypes: Sequence[Any] = ()
    try:
        dtypes = output_dtypes(node.op, node.attrs)
        found = infer_outputs(
            node.op, node.name, node.attrs, inputs, dtypes,
            lambda i: partial_value(nodes.__getitem__, node.inputs[i]), None,
        )  # fmt: skip
    except UNCHECKED:
        found = tuple([TensorSpec(dtype, None) for dtype in dtypes])
    return tuple([_sensible(spec) for spec in found])


def _sensible(spec: TensorSpec) -> TensorSpec:
    """Return ``spec`` with the damage from malformed attributes removed."""
    found: tuple[Any, Any] = spec
    dtype, shape = found
    sizes = shape if isinstance(shape, tuple) else ("",)
    is_shape = all(size is None or isinstance(size, int) for size in sizes)
    return TensorSpec(dtype if isinstance(dtype, DType) else UNKNOWN, sizes if is_shape else None)


def _merged(inferred: Shape, told: Shape) -> Shape:
    try:
        return merge(inferred, told)
    except InvalidArgumentError:  # the file has the last word
        return told
