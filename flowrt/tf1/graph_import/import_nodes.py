"""Insertion of nodes read by `flowrt.tf1.graph_import.read_graph_def`, without output specs, into a graph.

Each node is added like any operation, so shapes are inferred and checked. A function of a node becomes a
`FuncGraph` first, in the same way: its nodes are added with its parameters in place of its arguments. Static
shapes and values of the arguments are known inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, final

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError, nearest
from flowrt.graph.construction.build import output_dtypes
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.effects import is_stateful
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import call_op, case_op, while_op
from flowrt.graph.messages.attr_values import MAX_LIST_LENGTH
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES, format_ref
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Argument, Effect, OpDef
from flowrt.graph.ops.base.identities import identity, identity_n
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, merge, relax
from flowrt.graph.topology import sort_topologically
from flowrt.tf1.composed_ops.composition import outputs_of
from flowrt.tf1.graph_import.read_graph_def import MAX_NODES


@final
class InputMap:
    """Replacements for tensors and operations of the nodes, and the set of those used."""

    def __init__(self, tensors: Mapping[Ref, Tensor], controls: Mapping[str, Operation]) -> None:
        self.tensors, self.controls = tensors, controls
        self.used: set[Ref | str] = set()


@final
class _Budget:
    """Number of nodes that may still be added: functions are copied for each operation that owns them."""

    def __init__(self) -> None:
        self._left = MAX_NODES

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise ResourceExhaustedError(
                f"GraphDef: expected at most {MAX_NODES} nodes, counting those of a function once per owner"
            )


@final
class NodeImporter:
    """Adds ``nodes`` to ``graph`` under ``names``; ``added`` are the operations by their nodes' names."""

    def __init__(
        self,
        graph: Graph,
        nodes: Mapping[str, Node],
        mapped: InputMap,
        names: Mapping[str, str],
        budget: _Budget | None = None,
    ) -> None:
        self.graph, self.nodes, self.mapped, self.names = graph, nodes, mapped, names
        self.added: dict[str, Operation] = {}
        self._budget = budget or _Budget()
        self._budget.take(len(nodes))

    def add_all(self) -> None:
        """Add the nodes, producers first. Raises as `import_graph_def`, leaving the graph partly extended."""
        inner = {name: self._without_mapped(node) for name, node in self.nodes.items()}
        for node in inner.values():
            for ref in [*node.inputs, *((name, 0) for name in node.controls)]:
                if ref[0] not in inner:
                    message = f"expected inputs among the nodes of the GraphDef; got {format_ref(ref)!r}"
                    hint = nearest(ref[0], inner) or " input_map can replace it"
                    raise located(node, InvalidArgumentError(f"{message}.{hint}"))
        for name in sort_topologically(inner):
            node = self.nodes[name]
            try:
                self.added[name] = self._add(node)
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:  # a shape rule met what no program builds
                message = f"expected inputs and attributes that match the op; got {error!r}"
                raise located(node, InvalidArgumentError(message)) from error

    def _without_mapped(self, node: Node) -> Node:
        tensors, controls = self.mapped.tensors, self.mapped.controls
        if not tensors and not controls:
            return node
        return node.replace(
            inputs=tuple(ref for ref in node.inputs if ref not in tensors),
            controls=tuple(name for name in node.controls if name not in controls),
        )

    def _add(self, node: Node) -> Operation:
        inputs = [self.tensor(ref) for ref in node.inputs]
        given = dict(node.attrs)
        told = [given.pop(OUTPUT_SHAPES, ())]
        if node.op.effect is Effect.NESTED:
            given |= self._functions(node, inputs)
            if "output_shapes" in given:
                told.append(given["output_shapes"])
                given["output_shapes"] = ()
        attrs = bind_types(node.op, inputs, given)
        if COLOCATION in attrs:
            near = [self.names[name] for name in colocated_with(node) if name in self.names]
            attrs[COLOCATION] = tuple(f"loc:@{name}" for name in near)
        place = self.graph.device(node.device) if node.device else nullcontext()
        order = self.graph.control_dependencies(self._controls(node)) if node.controls else nullcontext()
        with place, order:
            op = self._composed(node, inputs, attrs) or self._added(
                node.op, self.names[node.name], inputs, attrs
            )
        for shapes in told:
            _merge_shapes(op, shapes)
        return op

    def _added(self, op: OpDef, name: str, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> Operation:
        return self.graph.add(op, name, inputs, attrs, output_dtypes(op, attrs))

    def _composed(self, node: Node, inputs: Sequence[Tensor], attrs: Mapping[str, Any]) -> Operation | None:
        """An Identity of what functions of flowrt make in place of the op; None if that is flowrt's own."""
        name = self.names[node.name]
        with self.graph.as_default(), self.graph.name_scope(f"{name}/"):
            outputs = outputs_of(node.op, inputs, attrs)
        if outputs is None:
            return None
        if len(outputs) == 1:
            return self._added(identity, name, outputs, {"T": outputs[0].dtype})
        return self._added(identity_n, name, outputs, {"T": tuple(tensor.dtype for tensor in outputs)})

    def _controls(self, node: Node) -> list[Operation]:
        self.mapped.used.update(name for name in node.controls if name in self.mapped.controls)
        return [self.mapped.controls.get(name) or self.added[name] for name in node.controls]

    def tensor(self, ref: Ref) -> Tensor:
        """The graph's tensor for ``ref``. Raises `InvalidArgumentError`."""
        if ref in self.mapped.tensors:
            self.mapped.used.add(ref)
            return self.mapped.tensors[ref]
        op = self.added[ref[0]]
        if ref[1] >= len(op.outputs):
            message = f"{op.type} {ref[0]!r} has {len(op.outputs)} outputs; got its output {ref[1]}"
            raise InvalidArgumentError(f"expected an output that exists: {message}")
        return op.outputs[ref[1]]

    # --- functions

    def _functions(self, node: Node, inputs: Sequence[Tensor]) -> dict[str, Any]:
        """The attrs of a node that owns functions: the functions, built for ``inputs``, and their dtypes."""
        if node.op is while_op:
            return self._loop(node, inputs)
        arguments = inputs if node.op is call_op else inputs[1:]  # after the predicate or index
        found: dict[str, Any] = {}
        for key, value in node.attrs.items():
            if isinstance(value, Subgraph):
                found[key] = self._branch(node, key, value, arguments)
        if node.op is case_op:
            found["branches"] = tuple(
                self._branch(node, f"branches[{i}]", branch, arguments)
                for i, branch in enumerate(node.attrs["branches"])
            )
        branches = found.get("branches", tuple(found.values()))
        if not branches:
            raise InvalidArgumentError("attribute 'branches': expected at least one function; got none")
        kinds = node.attrs.get("Tout", _results(branches[0]))
        for branch in branches:
            _check_dtypes("results of its functions", kinds, _results(branch))
        return {**found, "Tin": tuple(t.dtype for t in arguments), "Tout": kinds}

    def _branch(self, node: Node, key: str, function: Subgraph, arguments: Sequence[Tensor]) -> Subgraph:
        _check_parameters(key, function, arguments)
        specs = [
            TensorSpec(t.dtype, merge(t.spec.shape, _told_shape(function, i, t)))
            for i, t in enumerate(arguments)
        ]
        known = [partial_value(t.graph.node, t.ref) for t in arguments]
        return self._build(node, key, function, specs, known)

    def _loop(self, node: Node, inputs: Sequence[Tensor]) -> dict[str, Any]:
        """The attrs of a loop. Its variables have the shapes given in the message, or else those of the
        inputs as far as they are invariant under an iteration.
        """
        condition, body = node.attrs["cond"], node.attrs["body"]
        for key, function in (("cond", condition), ("body", body)):
            _check_parameters(key, function, inputs)
        if len(body.fetches) != len(inputs):
            raise InvalidArgumentError(f"'body': expected {len(inputs)} results; got {len(body.fetches)}")
        stays = [ref == (name, 0) for name, ref in zip(body.feeds, body.fetches, strict=True)]
        known = [
            partial_value(t.graph.node, t.ref) if stay or t.dtype is dtypes.resource else None
            for t, stay in zip(inputs, stays, strict=True)
        ]
        specs = _first_specs(node, inputs)
        while True:
            built = self._build(node, "body", body, specs, known)
            _check_dtypes("results of 'body'", [t.dtype for t in inputs], _results(built))
            after = [built.spec(ref) for ref in built.fetches]
            wider = [TensorSpec(a.dtype, relax(a.shape, b.shape)) for a, b in zip(specs, after, strict=True)]
            if wider == specs:
                break
            specs = wider
        tested = self._build(node, "cond", condition, specs, known)
        _check_dtypes("results of 'cond'", [dtypes.bool_], _results(tested))
        return {"cond": tested, "body": built, "T": tuple(t.dtype for t in inputs)}

    def _build(
        self, node: Node, key: str, function: Subgraph, specs: Sequence[TensorSpec], known: Sequence[Any]
    ) -> Subgraph:
        """``function``, an attr of ``node``, built for arguments of ``specs`` with the ``known`` values."""
        owner = self.names[node.name]
        graph = FuncGraph(self.graph, f"{key!r} of {owner!r}")
        inner = {name: n for name, n in function.nodes.items() if name not in function.feeds}
        with graph.name_scope(f"{owner}/"):
            parameters = [
                graph.parameter(spec, _inner_name(name, name.rpartition("/")[0]), value)
                for name, spec, value in zip(function.feeds, specs, known, strict=True)
            ]
            names = {name: graph.unique_name(_inner_name(name, node.name)) for name in inner}
            tensors = {(name, 0): tensor for name, tensor in zip(function.feeds, parameters, strict=True)}
            controls = {name: tensor.op for (name, _), tensor in tensors.items()}
            importer = NodeImporter(graph, inner, InputMap(tensors, controls), names, self._budget)
            importer.add_all()
        effects = [op for op in graph.get_operations() if is_stateful(op.node)]
        targets = [*[importer.added[name] for name in function.targets], *effects]
        return graph.subgraph(
            [importer.tensor(ref) for ref in function.fetches], list(dict.fromkeys(targets))
        )


def _inner_name(name: str, owner: str) -> str:
    """The name of a node of a function, without that of the owner, if a name can begin with the rest."""
    short = name.removeprefix(f"{owner}/")
    return name if short.startswith(("_", "/")) else short


def _check_parameters(key: str, function: Subgraph, arguments: Sequence[Tensor]) -> None:
    if len(function.feeds) != len(arguments):
        raise InvalidArgumentError(
            f"{key!r}: expected a function of {len(arguments)} parameters; got one of {len(function.feeds)}"
        )
    kinds = [t.dtype for t in arguments]
    told = [
        function.nodes[name].attrs.get("dtype", kind)
        for name, kind in zip(function.feeds, kinds, strict=True)
    ]
    _check_dtypes(f"parameters of {key!r}", kinds, told)


def _check_dtypes(what: str, expected: Sequence[DType], got: Sequence[DType]) -> None:
    if list(expected) != list(got):
        wanted, found = (", ".join(d.name for d in kinds) or "none" for kinds in (expected, got))
        raise DTypeError(f"{what}: expected {wanted}; got {found}")


def _first_specs(node: Node, inputs: Sequence[Tensor]) -> list[TensorSpec]:
    """Specs of a loop's variables, from the message or the inputs."""
    body, shapes = node.attrs["body"], node.attrs["output_shapes"]
    told = shapes or [_told_shape(body, i, t) for i, t in enumerate(inputs)]
    if len(told) != len(inputs):
        raise InvalidArgumentError(f"output_shapes: expected {len(inputs)} shapes; got {len(told)}")
    return [
        t.spec if t.dtype is dtypes.variant else TensorSpec(t.dtype, relax(shape, t.spec.shape))
        for t, shape in zip(inputs, told, strict=True)
    ]


def _told_shape(function: Subgraph, position: int, argument: Tensor) -> Shape:
    """Shape of a parameter according to the message, which has none for lists."""
    if argument.dtype is dtypes.variant:
        return argument.spec.shape
    return function.nodes[function.feeds[position]].attrs.get("shape", argument.spec.shape)


def _results(function: Subgraph) -> tuple[DType, ...]:
    return tuple(function.spec(ref).dtype for ref in function.fetches)


def colocated_with(node: Node) -> list[str]:
    """The names in the node's attribute "_class". Raises `InvalidArgumentError`."""
    groups = node.attrs.get(COLOCATION, ())
    if not isinstance(groups, tuple) or not all(isinstance(group, str) for group in groups):
        message = f"attribute '_class': expected a list of strings; got {groups!r}"
        raise located(node, InvalidArgumentError(message))
    return [group.removeprefix("loc:@") for group in groups if group.startswith("loc:@")]


def bind_types(op: OpDef, inputs: Sequence[Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The attrs ``given`` and the type variables determined by the inputs.

    Raises `InvalidArgumentError` for the number of inputs, `DTypeError` for dtypes that the op does not
    support, `ResourceExhaustedError` for an input that must be small and is not.
    """
    attrs = dict(given)
    counts = [_length(argument, attrs) for argument in op.inputs]
    if sum(counts) != len(inputs):
        pairs = zip(op.inputs, counts, strict=True)
        names = ", ".join(f"{a.name} * {n}" if a.is_list else a.name for a, n in pairs)
        raise InvalidArgumentError(f"expected {sum(counts)} inputs ({names}); got {len(inputs)}")
    places = [(a, i) for a, n in zip(op.inputs, counts, strict=True) for i in range(n)]
    for position, ((argument, offset), tensor) in enumerate(zip(places, inputs, strict=True)):
        dtype = _dtype_for(argument, offset, tensor.dtype, attrs)
        if dtype is not tensor.dtype:
            got = f"{tensor.name!r} of {tensor.dtype.name}"
            raise DTypeError(f"input {position} ({argument.name}): expected dtype {dtype.name}; got {got}")
        if argument.on_host and math.prod(max(d or 1, 1) for d in tensor.spec.shape or ()) > MAX_LIST_LENGTH:
            where = f"input {position} ({argument.name})"  # shape rules make Python lists of these
            raise ResourceExhaustedError(
                f"{where}: expected {MAX_LIST_LENGTH} elements at most; got {tensor!r}"
            )
    for variable, allowed in op.types.items():
        bound = _required(attrs, variable)
        for dtype in bound if isinstance(bound, tuple) else (bound,):
            if dtype not in allowed:
                names = ", ".join(sorted(d.name for d in allowed))
                raise DTypeError(f"{variable}: expected one of {names}; got {dtype.name}")
    for argument in op.outputs:
        _length(argument, attrs)
    return attrs


def _dtype_for(argument: Argument, offset: int, given: DType, attrs: dict[str, Any]) -> DType:
    """Dtype required at position ``offset`` of ``argument``; a free type variable is bound to ``given``."""
    if argument.type_attr is None:
        assert argument.dtype is not None
        return argument.dtype
    if argument.is_type_list:
        return attrs[argument.type_attr][offset]
    return attrs.setdefault(argument.type_attr, given)


def _length(argument: Argument, attrs: Mapping[str, Any]) -> int:
    """Number of tensors of ``argument``. Raises `InvalidArgumentError` if no attr determines it."""
    if argument.number_attr is not None:
        return int(_required(attrs, argument.number_attr))
    if argument.is_type_list:
        return len(_required(attrs, argument.type_attr or ""))
    return 1


def _required(attrs: Mapping[str, Any], key: str) -> Any:
    if key not in attrs:
        raise InvalidArgumentError(f"attribute {key!r}: expected a value; got none")
    return attrs[key]


def _merge_shapes(op: Operation, shapes: Sequence[Shape]) -> None:
    """Merge the declared output shapes. Raises `InvalidArgumentError` if they are incompatible."""
    if not shapes:
        return
    if len(shapes) != len(op.outputs):
        raise InvalidArgumentError(f"_output_shapes: expected {len(op.outputs)} shapes; got {len(shapes)}")
    for tensor, shape in zip(op.outputs, shapes, strict=True):
        if tensor.dtype is not dtypes.variant:
            tensor.set_shape(shape)
