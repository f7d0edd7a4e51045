"""`export`: the operations that outputs need, as an ONNX model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from flowrt.graph.construction.constant import placeholder_with_default_op
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.elementwise.comparison import select, select_v2
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.passes.pipeline import OPTIMISATIONS, optimise
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.prune import extract
from flowrt.onnx import emit  # noqa: F401 (registers the emitters)
from flowrt.onnx.emit.absent import why_absent
from flowrt.onnx.emit.call import EMITTERS, Call
from flowrt.onnx.external_data import SUFFIX, Piece, move_out, without_outside, write_pieces
from flowrt.onnx.proto import onnx
from flowrt.onnx.writer import (
    CannotExportError,
    Info,
    Writer,
    names_in,
    needed_nodes,
    tensor_proto,
    value_info,
)
from flowrt.storage.durable_files import path_string, replace_file, typed_os_errors

OPSET = 20
MAX_BYTES = 2_000_000_000
"""Bytes of weights in the model: a protobuf message has less than 2 GiB, and the graph has to fit as well."""

Named = Sequence[Any] | Mapping[str, Any]


def export(source: Any, inputs: Named, outputs: Named, path: Any = None, *, opset: int = OPSET) -> Any:
    """The ModelProto that computes ``outputs`` from ``inputs``, also written to ``path`` if it is given.

    ``source`` is a session (the values of its variables become initializers) or a graph without variables.
    ``inputs`` and ``outputs`` are tensors (or their names), which keep their operations' names, or a dict of
    them by the names that the model shall have. An unknown size of an input is a dimension with a name. Of
    2 GiB of weights and more the large ones are in a file beside the model, ``path`` with ".data" behind it.

    >>> flowrt.onnx.export(session, [images], {"scores": logits}, "classifier.onnx")

    Raises `UnimplementedError` that names all operations that ONNX cannot say, with their lines and what to
    do; `InvalidArgumentError` for an output that needs another input, or variables without a session;
    `ResourceExhaustedError` for 2 GiB of weights without a path.
    """
    if opset < OPSET:
        raise InvalidArgumentError(f"opset: expected {OPSET} or later; got {opset}")
    graph = source if isinstance(source, Graph) else source.graph
    fed = _named(graph, inputs)
    wanted = _named(graph, outputs)
    step = extract(graph, list(wanted.values()), [], {each: each.spec.shape for each in fed.values()})
    step = step.mapped(_with_default)
    step = infer_shapes(optimise(infer_shapes(lower(step)), OPTIMISATIONS))
    step = optimise(step.mapped(partial(_decided, step)), OPTIMISATIONS)
    where = None if path is None else path_string(path, "export")
    exporter = Exporter(_values_of(source, graph, step), opset, where and os.path.basename(where) + SUFFIX)
    model, outside = exporter.model(step, list(fed), list(wanted))
    if where is not None:
        with typed_os_errors(where):
            if outside:
                write_pieces(where + SUFFIX, outside)
            replace_file(where, model.SerializeToString())
    return model


def _named(graph: Graph, tensors: Named) -> dict[str, Tensor]:
    """The tensors by the names that the model gives them."""
    if isinstance(tensors, Mapping):
        return {name: _tensor(graph, each) for name, each in tensors.items()}
    if isinstance(tensors, Tensor | str):
        raise InvalidArgumentError(f"expected a list of tensors, or a dict of them by name; got {tensors!r}")
    found = [_tensor(graph, each) for each in tensors]
    names = [each.op.name if len(each.op.outputs) == 1 else each.name for each in found]
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"expected different tensors, or a dict of them by name; got {names}")
    return dict(zip(names, found, strict=True))


def _tensor(graph: Graph, each: Any) -> Tensor:
    found: Any = graph.as_graph_element(each, allow_operation=False)
    return found


def _with_default(node: Node) -> Node:
    """A placeholder that is no input has its default."""
    if node.op is not placeholder_with_default_op:
        return node
    return node.replace(op=identity, attrs={"T": node.outputs[0].dtype})


def _decided(step: Subgraph, node: Node) -> Node:
    """A choice by a constant is what it chooses: a dropout outside of training has no random numbers."""
    if node.op not in (select, select_v2):
        return node
    condition = _constant_of(step.nodes[node.inputs[0][0]])
    if condition is None or np.ndim(condition):
        return node
    chosen = node.inputs[1 if condition else 2]
    if step.spec(chosen) != node.outputs[0]:
        return node
    return node.replace(op=identity, inputs=(chosen,), attrs={"T": node.outputs[0].dtype})


def _values_of(source: Any, graph: Graph, step: Subgraph) -> Mapping[str, Any]:
    """The values of the variables that ``step`` reads, by the names of their handles."""
    handles = [node for node in step if node.op is var_handle_op]
    if not handles:
        return {}
    if isinstance(source, Graph):
        raise InvalidArgumentError(
            f"export: expected a session, since the graph has variables: {handles[0].name!r}; got a graph"
        )
    reads = [f"{node.name}/Read/ReadVariableOp:0" for node in handles]
    values = source.run(reads)
    return {node.name: np.asarray(value) for node, value in zip(handles, values, strict=True)}


@final
class Exporter:
    """The export of one step. ``variables`` are values by the names of handles; ``beside`` is the name of the
    file for weights that the model has no room for, if there may be one.
    """

    def __init__(self, variables: Mapping[str, Any], opset: int, beside: str | None) -> None:
        self._variables, self._opset, self._beside = variables, opset, beside
        self._refused: list[str] = []
        self._root = Writer(opset)

    def model(self, step: Subgraph, inputs: Sequence[str], outputs: Sequence[str]) -> tuple[Any, list[Piece]]:
        """The ModelProto, and the weights that are not in it."""
        helper = onnx().helper
        root = self._root
        names: dict[Ref, str] = {}
        infos = []
        for name, feed in zip(inputs, step.feeds, strict=True):
            spec = step.nodes[feed].outputs[0]
            names[feed, 0] = root.declare(name, spec.dtype.np)
            infos.append(value_info(name, spec.dtype.np, spec.shape))
        ends = set(outputs) & set(inputs)
        if ends:
            raise InvalidArgumentError(
                f"expected other names for outputs than for inputs; got {sorted(ends)}"
            )
        for name in outputs:
            root.name(name)
        self._write(step, root, names)
        results = []
        for name, ref in zip(outputs, step.fetches, strict=True):
            spec = step.spec(ref)
            if ref in names:
                root.nodes.append(helper.make_node("Identity", [names[ref]], [name], name=f"{name}/output"))
                results.append(value_info(name, spec.dtype.np, spec.shape))
        self._check_refused()
        nodes = needed_nodes(root.nodes, outputs)
        read = set().union(*map(names_in, nodes))
        tensors = [tensor_proto(value, name) for name, value in root.initializers.items() if name in read]
        outside = self._outside(tensors)
        graph = helper.make_graph(nodes, "flowrt", infos, results, tensors)
        opsets = [helper.make_opsetid("", self._opset)]
        version = min(helper.find_min_ir_version_for(opsets), 10)
        model = helper.make_model(graph, opset_imports=opsets, producer_name="flowrt", ir_version=version)
        _check(without_outside(model) if outside else model)
        return model, outside

    def _outside(self, tensors: Sequence[Any]) -> list[Piece]:
        """The bytes that do not fit into the model, taken from the ``tensors``."""
        if sum(len(tensor.raw_data) for tensor in tensors) <= MAX_BYTES:
            return []
        if self._beside is None:
            raise ResourceExhaustedError(
                "the model: expected less than 2 GiB of weights, or a path, for a file of weights beside it"
            )
        return move_out(tensors, self._beside)

    def _check_refused(self) -> None:
        if self._refused:
            noun = "operation" if len(self._refused) == 1 else "operations"
            rows = [f"{len(self._refused)} {noun} cannot be exported:", *self._refused]
            raise UnimplementedError("\n  ".join(rows))

    # --- nodes

    def _write(self, step: Subgraph, writer: Writer, names: dict[Ref, str]) -> None:
        """Add the nodes of ``step``; ``names`` has those of its feeds, and gets those of all its tensors."""
        needed = _read_nodes(step)
        for node in step:
            if (node.name, 0) in names or node.name not in needed:
                continue
            is_said = node.op.name in EMITTERS or node.op.name == "Const" or node.op is var_handle_op
            if is_said and any(ref not in names for ref in node.inputs):
                continue  # a row of the error names what this one needs
            try:
                if not is_said:
                    raise CannotExportError(why_absent(node.op))
                found = self._emitted(node, step, writer, [names[ref] for ref in node.inputs])
            except (CannotExportError, UnimplementedError) as error:
                line = "" if node.source is None else f" ({node.source})"
                self._refused.append(f"{node.op.name} {node.name!r}{line}: {error}")
                continue
            for index, (name, spec) in enumerate(zip(found, node.outputs, strict=False)):
                if name and spec.dtype not in (dtypes.resource, dtypes.variant):
                    names[node.name, index] = writer.cast(name, spec.dtype.np)
                elif name:
                    names[node.name, index] = name

    def _emitted(self, node: Node, step: Subgraph, writer: Writer, names: list[str]) -> Sequence[str]:
        if node.op.name == "Const":
            return [writer.constant(np.asarray(node.attrs["value"]))]
        if node.op is var_handle_op:
            if node.name not in self._variables:
                raise CannotExportError("expected a variable of the session")
            return [self._root.constant(self._variables[node.name], node.name)]
        specs = [step.spec(ref) for ref in node.inputs]
        known = [_constant_of(step.nodes[name]) for name, _ in node.inputs]
        found = EMITTERS[node.op.name](Call(node, self, writer, names, specs, known), *names)
        return [found] if isinstance(found, str) else found

    def inner(
        self, function: Subgraph, outer: Writer, name: str, given: Mapping[str, str],
        inputs: Sequence[Info] = (),
    ) -> Any:  # fmt: skip
        """The GraphProto of a body or branch.

        ``given`` maps feeds to names around it; ``inputs`` are its own, which ``given`` may
        name too.
        """
        writer = Writer(self._opset, outer)
        names: dict[Ref, str] = {(feed, 0): each for feed, each in given.items()}
        self._write(function, writer, names)
        if any(ref not in names for ref in function.fetches):
            raise CannotExportError("one of its operations cannot be exported")
        return writer.graph([names[ref] for ref in function.fetches], name, inputs)


def _read_nodes(step: Subgraph) -> set[str]:
    """The nodes with results that reach the fetches: not those that others only wait for (an Assert)."""
    found: set[str] = set()
    stack = [name for name, _ in step.fetches]
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack += [producer for producer, _ in step.nodes[name].inputs]
    return found


def _constant_of(node: Node) -> Any:
    return node.attrs["value"] if node.op.name == "Const" else None


def _check(model: Any) -> None:
    """Raise `InvalidArgumentError` where ONNX's checker and shape inference find a mistake."""
    library = onnx()
    try:
        library.checker.check_model(model, full_check=True)
    except (library.checker.ValidationError, library.shape_inference.InferenceError, OpError) as error:
        raise InvalidArgumentError(f"the model: ONNX's checker says: {error}") from error
