"""`Sequential`: a model that is a list of layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrt.graph.source import misuse
from flowrt.keras.engine.input_layer import Input, InputLayer
from flowrt.keras.engine.layer import Layer, as_tuple
from flowrt.keras.engine.model import Model
from flowrt.layers import base
from flowrt.nest import flatten


class Sequential(Model):
    """Layers one after the other, each with one input and one output.

    With the shape of the inputs, from the first layer's ``input_shape`` or the data of `fit`, the layers are
    called and have weights.

    Args:
        layers: The layers; `add` appends further ones.
        name: The model's name.

    Example:
        >>> from flowrt.keras.layers import Dense
        >>> model = tf.keras.Sequential([Dense(4, activation='relu', input_shape=[3]), Dense(2)])
        >>> model.output_shape, model.count_params()
        ((None, 2), 26)
    """

    def __init__(self, layers: Sequence[Any] | None = None, name: str | None = None) -> None:
        self._list: list[Any] = []
        super().__init__(name=name)
        for layer in layers or ():
            self.add(layer)

    def add(self, layer: Any) -> None:
        """Append a layer. Raises `DTypeError` for what is none."""
        if not isinstance(layer, base.Layer):
            raise misuse(f"Sequential.add: expected a layer; got {layer!r}")
        layer = layer if isinstance(layer, Layer) else LayerOfFlowrt(layer)
        if not self._list and not isinstance(layer, InputLayer):
            shape = _input_shape(layer)
            if shape is not None:
                first = Input(batch_shape=shape, dtype=_dtype(layer), name=f"{layer.name}_input")
                self._list, self._outputs_so_far = [], first
                self._append(layer)
                return
        if isinstance(layer, InputLayer):
            self._outputs_so_far = layer.output
            return
        self._append(layer)

    def _append(self, layer: Any) -> None:
        if any(layer is each for each in self._list):
            raise misuse(f"Sequential.add: expected a new layer; {layer.name!r} is in the model")
        self._list.append(layer)
        before = getattr(self, "_outputs_so_far", None)
        if before is not None:
            after = layer(before)
            if len(flatten(after)) != 1:
                raise misuse(f"Sequential.add: expected layers with one output; {layer.name!r} has more")
            self._outputs_so_far = after
            inputs = self.inputs[0] if self.inputs else before
            self._connect(inputs, after)

    def pop(self) -> None:
        """Remove the last layer. Raises `InvalidArgumentError` if there is none."""
        if not self._list:
            raise misuse("Sequential.pop: expected a model with layers; it has none")
        last = self._list.pop()
        if self.inputs is None:
            return
        last._inbound_nodes.pop()
        if self._list:
            self._outputs_so_far = self._list[-1].output
            self._connect(self.inputs[0], self._outputs_so_far)
        else:
            self.inputs = self.outputs = None
            self._is_graph_network = self.built = False

    @property
    def layers(self) -> list[Any]:
        """The layers, without that of the inputs."""
        return list(self._list)

    def _sublayers(self) -> list[Any]:
        return list(self._list)

    def build(self, input_shape: Any = None) -> None:
        """Call the layers with inputs of this shape, batch first."""
        if self._is_graph_network or input_shape is None:
            return
        self._begin(tuple(as_tuple(input_shape))[1:], None)

    def _begin(self, shape: Sequence[Any], dtype: Any) -> None:
        layers, self._list = self._list, []
        self._outputs_so_far = Input(shape, dtype=dtype, name=f"{self.name}_input")
        for layer in layers:
            self._append(layer)

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        if not self._is_graph_network:
            self._begin(inputs.shape.as_list()[1:], inputs.dtype)
        return self._apply(inputs)

    def _connect_class(self, kinds: Sequence[tuple[Any, Any]], is_list: bool) -> None:
        if not self._list:
            raise misuse(f"model {self.name!r}: expected a Sequential with layers; it has none")
        self.build((None, *kinds[0][0]))

    def get_config(self) -> dict[str, Any]:
        """The layers in order."""
        own = [{"class_name": type(layer).__name__, "config": layer.get_config()} for layer in self._list]
        if own and self.inputs is not None:
            own[0]["config"].setdefault("batch_input_shape", list(as_tuple(self.inputs[0].shape)))
        return {"name": self.name, "layers": own}


class LayerOfFlowrt(Layer):
    """A layer of `flowrt.layers` in a model of Keras."""

    def __init__(self, layer: base.Layer) -> None:
        super().__init__(name=layer.name)
        self.layer = layer

    def call(self, inputs: Any, training: Any = None, **_: Any) -> Any:
        options: Mapping[str, Any] = {"training": training} if hasattr(self.layer, "momentum") else {}
        return self.layer(inputs, **options)


def _input_shape(layer: Any) -> Any:
    """The shape of the inputs that ``layer``, or the first layer in it, is made for; None if it says none."""
    if isinstance(layer, Model) and layer.inputs:
        return layer.inputs[0].shape.as_list()
    if isinstance(layer, Sequential) and layer.layers:
        return _input_shape(layer.layers[0])
    return getattr(layer, "_batch_input_shape", None)


def _dtype(layer: Any) -> Any:
    if isinstance(layer, Model) and layer.inputs:
        return layer.inputs[0].dtype
    return layer.dtype
