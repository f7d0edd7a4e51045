"""`Network`: layers connected to a graph, found backwards from its outputs; itself a layer.

The order of the layers, and so of their weights, is Keras's: by the longest way to an output, then as they
are met on the way back from the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.keras.engine.input_layer import InputLayer
from flowrt.keras.engine.layer import Layer
from flowrt.keras.engine.nodes import Node, history_of, map_tensors, one_or_list, record, tensors_in
from flowrt.nest import flatten, pack_sequence_as
from flowrt.variables.variable import Variable


class OperationLayer(Layer):
    """An operation of the graph between two layers, as a layer: it repeats the operation on other inputs."""

    def __init__(self, operation: Operation, name: str | None = None) -> None:
        super().__init__(name=name or f"tf_op_layer_{operation.name.replace('/', '_')}")
        self._operation, self.built = operation, True

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        operation, graph = self._operation, get_default_graph()
        made = graph.add(
            operation.node.op,
            graph.unique_name(operation.name.rpartition("/")[2]),
            inputs,
            dict(operation.node.attrs),
            [output.dtype for output in operation.outputs],
        )
        return one_or_list(list(made.outputs))


class Network(Layer):
    """A model's graph of layers: ``Network(inputs, outputs)``. `call` applies its layers to other inputs.

    ``inputs`` and ``outputs`` are tensors, lists or dicts of them. Raises `InvalidArgumentError` for inputs
    that are no `Input`, and for outputs that depend on a placeholder besides.
    """

    def __init__(
        self, inputs: Any = None, outputs: Any = None, name: str | None = None, **options: Any
    ) -> None:
        self._is_graph_network = False
        self._nodes: list[Node] = []
        self._layers: list[Any] = []
        super().__init__(name=name, **options)
        self.inputs: list[Tensor] | None = None
        self.outputs: list[Tensor] | None = None
        if inputs is not None:
            self._connect(inputs, outputs)

    def _connect(self, inputs: Any, outputs: Any) -> None:
        self._nested_inputs, self._nested_outputs = inputs, outputs
        self.inputs = [_as_model_input(t) for t in flatten(inputs)]
        for each in flatten(outputs):
            if not isinstance(each, (Tensor, Variable)):
                raise misuse(f"Model: expected tensors as outputs; got {each!r}")
        self.outputs = [convert_to_tensor(t) for t in flatten(outputs)]
        _record_operations(self.inputs, self.outputs)
        for each in self.outputs:
            if history_of(each) is None:
                raise misuse(f"Model: expected outputs computed from the inputs; got {each!r}")
        self._layers, self._nodes = _sorted_graph(self.inputs, self.outputs)
        names = [layer.name for layer in self._layers]
        if len(set(names)) < len(names):
            again = next(name for name in names if names.count(name) > 1)
            raise misuse(
                f"model {self.name!r}: expected layers of different names; {again!r} is the name of 2"
            )
        self._is_graph_network = self.built = True
        self._name_inputs_and_outputs()

    def _name_inputs_and_outputs(self) -> None:
        assert self.inputs is not None
        assert self.outputs is not None
        self.input_names = [_layer_of(t).name for t in self.inputs]
        self.output_names = _unique_names([_layer_of(t).name for t in self.outputs])

    # --- as a layer

    def build(self, input_shape: Any) -> None:
        """Nothing: its layers are built when they are called."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not self._is_graph_network:
            raise misuse(f"model {self.name!r}: expected a model with a method `call`; it has none")
        return self._apply(inputs)

    def _apply(self, inputs: Any) -> Any:
        """The outputs for other inputs: all layers are called again, in order."""
        assert self.inputs is not None
        assert self.outputs is not None
        if isinstance(inputs, Mapping) and not isinstance(self._nested_inputs, Mapping):
            inputs = [inputs[name] for name in self.input_names]
        given = flatten(inputs)
        if len(given) != len(self.inputs):
            raise misuse(f"model {self.name!r}: expected {len(self.inputs)} inputs; got {len(given)}")
        values = {old.ref: new for old, new in zip(self.inputs, given, strict=True)}

        def now(tensor: Tensor) -> Any:
            return values.get(tensor.ref, tensor)

        for node in self._nodes:
            args, kwargs = node.arguments
            found = node.layer(
                map_tensors(now, node.inputs), *map_tensors(now, args), **map_tensors(now, dict(kwargs))
            )
            for old, new in zip(tensors_in(node.outputs), tensors_in(found), strict=True):
                values[old.ref] = new
        outputs = [now(tensor) for tensor in self.outputs]
        return pack_sequence_as(self._nested_outputs, outputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """None: the layers inside have set the masks of the outputs."""
        return None

    # --- its layers

    @property
    def layers(self) -> list[Any]:
        """The layers, in the order of the weights."""
        return list(self._layers) if self._is_graph_network else self._sublayers()

    def _sublayers(self) -> list[Any]:
        return list(self._layers) if self._is_graph_network else super()._sublayers()

    def get_layer(self, name: str | None = None, index: int | None = None) -> Any:
        """The layer of this name or place. Raises `InvalidArgumentError` for an unknown one."""
        layers = self.layers
        if index is not None:
            if not -len(layers) <= index < len(layers):
                raise misuse(f"get_layer: expected an index below {len(layers)}; got {index}")
            return layers[index]
        for layer in layers:
            if layer.name == name:
                return layer
        raise misuse(f"get_layer: expected one of {', '.join(each.name for each in layers)}; got {name!r}")

    @property
    def weights(self) -> list[Variable]:
        """All variables, layer by layer."""
        self._check_built()
        own = [w for layer in self._sublayers() for w in layer.weights]
        return list(dict.fromkeys([*own, *self._own_weights()]))

    def _check_built(self) -> None:
        if not self.built:
            raise misuse(
                f"model {self.name!r}: expected a model with weights; it has none yet. Give its"
                " first layer an input_shape, or call it with data first"
            )

    @property
    def input(self) -> Any:
        return one_or_list(list(self.inputs)) if self.inputs is not None else super().input

    @property
    def output(self) -> Any:
        return one_or_list(list(self.outputs)) if self.outputs is not None else super().output

    @property
    def input_shape(self) -> Any:
        return one_or_list([tuple(t.shape.as_list()) for t in flatten(self.input)])

    @property
    def output_shape(self) -> Any:
        return one_or_list([tuple(t.shape.as_list()) for t in flatten(self.output)])

    @property
    def state_updates(self) -> list[Operation]:
        """The updates of the states of its stateful layers."""
        return [op for layer in self.layers if layer.stateful for op in layer.updates]

    def reset_states(self) -> None:
        """Begin the states of its stateful recurrent layers anew."""
        for layer in self.layers:
            if hasattr(layer, "reset_states") and layer.stateful:
                layer.reset_states()

    @property
    def stateful(self) -> bool:  # type: ignore[override]
        return any(getattr(layer, "stateful", False) for layer in self._sublayers())

    # --- as data

    def get_config(self) -> dict[str, Any]:
        """The layers with their calls. Raises `InvalidArgumentError` for a model that is a class."""
        if not self._is_graph_network:
            raise misuse(f"model {self.name!r}: expected a model of layers; it is a class of yours")
        assert self.inputs is not None
        assert self.outputs is not None
        places = _places(self._nodes, self.inputs)
        return {
            "name": self.name,
            "layers": [_layer_config(layer, self._nodes, places) for layer in self._layers],
            "input_layers": [list(places[t.ref]) for t in self.inputs],
            "output_layers": [list(places[t.ref]) for t in self.outputs],
        }


def _as_model_input(tensor: Any) -> Tensor:
    """``tensor``, with an `InputLayer` if no layer made it."""
    tensor = convert_to_tensor(tensor)
    history = history_of(tensor)
    if history is None:
        InputLayer(input_tensor=tensor, dtype=tensor.dtype)
    return tensor


def _layer_of(tensor: Tensor) -> Any:
    history = history_of(tensor)
    assert history is not None
    return history.layer


def _unique_names(names: Sequence[str]) -> list[str]:
    """``names``, of which a repeated one gets the suffix of its count: "dense", "dense_1"."""
    found: list[str] = []
    for name in names:
        count, candidate = 0, name
        while candidate in found:
            count += 1
            candidate = f"{name}_{count}"
        found.append(candidate)
    return found


def _record_operations(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
    """Record operations between layers as calls of an `OperationLayer` each."""
    ends = {tensor.ref for tensor in inputs}
    connected: dict[str, bool] = {}

    def connect(tensor: Tensor) -> bool:
        """Whether ``tensor`` depends on the inputs; the operations on the way are recorded."""
        if tensor.ref in ends:
            return True
        history = history_of(tensor)
        if history is not None:
            if (key := f"node {id(history.node)}") not in connected:
                connected[key] = False
                connected[key] = any(list(map(connect, history.node.tensors())))
            return connected[key]
        op = tensor.op
        if op.name not in connected:
            connected[op.name] = any(list(map(connect, op.inputs)))
            if connected[op.name]:
                layer = OperationLayer(op)
                record(Node(layer, list(op.inputs), list(op.outputs), ((), {})))
        return connected[op.name]

    for output in outputs:
        connect(output)


def _sorted_graph(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[list[Any], list[Node]]:
    """The layers in Keras's order, and the calls between inputs and outputs, each after those it needs."""
    ends = {tensor.ref for tensor in inputs}
    met: dict[Any, int] = {}  # layer -> when it was met
    order: list[Node] = []
    finished = set[int]()

    def visit(tensor: Tensor) -> None:
        history = history_of(tensor)
        if history is None or id(history.node) in finished:
            return
        node = history.node
        met.setdefault(node.layer, len(met))
        finished.add(id(node))
        if tensor.ref not in ends:
            for each in node.tensors():
                visit(each)
        order.append(node)

    for output in outputs:
        visit(output)
    depth_of_node: dict[int, int] = {}
    depth_of_layer: dict[Any, int] = {}
    for node in reversed(order):
        depth = max(depth_of_node.setdefault(id(node), 0), depth_of_layer.get(node.layer, 0))
        depth_of_layer[node.layer] = depth_of_node[id(node)] = depth
        is_end = any(t.ref in ends for t in tensors_in(node.outputs))
        for tensor in [] if is_end else node.tensors():
            history = history_of(tensor)
            if history is not None:
                place = id(history.node)
                depth_of_node[place] = max(depth + 1, depth_of_node.get(place, 0))
    for tensor in inputs:
        layer = _layer_of(tensor)
        depth_of_layer.setdefault(layer, 0)
        met.setdefault(layer, -1)
    _check_connected(order, ends)
    layers = sorted(depth_of_layer, key=lambda layer: (-depth_of_layer[layer], met[layer]))
    calls = [n for n in order if n.tensors() and not any(t.ref in ends for t in tensors_in(n.outputs))]
    return layers, sorted(calls, key=lambda node: -depth_of_node[id(node)])


def _check_connected(nodes: Sequence[Node], ends: set[Any]) -> None:
    for node in nodes:
        if isinstance(node.layer, InputLayer) and node.layer.is_placeholder:
            for tensor in tensors_in(node.outputs):
                if tensor.ref not in ends:
                    raise misuse(
                        f"Model: expected all placeholders among the inputs; {tensor.name!r} is missing"
                    )


# --- a network as data


def _places(nodes: Sequence[Node], inputs: Sequence[Tensor]) -> dict[Any, tuple[str, int, int]]:
    """Tensor -> its layer's name, the number of the layer's call in this network, and of the output."""
    calls: dict[Any, int] = {}
    found: dict[Any, tuple[str, int, int]] = {t.ref: (_layer_of(t).name, 0, 0) for t in inputs}
    for node in nodes:
        call = calls[node.layer] = calls.get(node.layer, -1) + 1
        for index, tensor in enumerate(tensors_in(node.outputs)):
            found[tensor.ref] = (node.layer.name, call, index)
    return found


def _layer_config(layer: Any, nodes: Sequence[Node], places: Mapping[Any, Any]) -> dict[str, Any]:
    calls = []
    for node in nodes:
        if node.layer is layer:
            args, kwargs = node.arguments
            if args or tensors_in(dict(kwargs)):
                raise misuse(
                    f"layer {layer.name!r}: expected a call with inputs only, to write it; it has more"
                )
            calls.append([[*places[t.ref], dict(kwargs)] for t in tensors_in(node.inputs)])
    return {
        "class_name": type(layer).__name__,
        "config": layer.get_config(),
        "name": layer.name,
        "inbound_nodes": calls,
    }
