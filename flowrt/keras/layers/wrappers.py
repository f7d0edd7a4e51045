"""Layers around layers: `TimeDistributed`, `Bidirectional`."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.tile_and_reverse import reverse_v2
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.cells import build_cell
from flowrt.keras.layers.recurrent import RNN

__all__ = ["Bidirectional", "TimeDistributed", "Wrapper"]


class Wrapper(Layer):
    """Base of layers around a ``layer``."""

    def __init__(self, layer: Any, **options: Any) -> None:
        if not isinstance(layer, Layer):
            raise misuse(f"{type(self).__name__}: expected a layer; got {layer!r}")
        if hasattr(layer, "_batch_input_shape") and not {"input_shape", "batch_input_shape"} & options.keys():
            options["batch_input_shape"] = layer._batch_input_shape
        super().__init__(**options)
        self.layer = layer

    def build(self, input_shape: Any) -> None:
        build_cell(self.layer, input_shape, self._scope_name, self.dtype)

    def get_config(self) -> dict[str, Any]:
        inner = {"class_name": type(self.layer).__name__, "config": self.layer.get_config()}
        return {**super().get_config(), "layer": inner}

    def _inner_copies(self) -> dict[str, Any]:
        return {"layer": self.layer.copied()}


class TimeDistributed(Wrapper):
    """``layer`` at each step of ``[batch, time, ...]``."""

    supports_masking = True

    def build(self, input_shape: Any) -> None:
        if (input_shape.ndims or 3) < 3:
            raise misuse(f"layer {self.name!r}: expected inputs [batch, time, ...]; got shape {input_shape}")
        dims = input_shape.as_list()
        super().build(TensorShape([dims[0], *dims[2:]]))

    def call(self, inputs: Tensor, training: Any = None, mask: Any = None) -> Tensor:
        dims, sizes = inputs.shape.as_list(), shape(inputs)
        steps = sizes[1] if dims[1] is None else dims[1]
        inner = [sizes[i] if n is None else n for i, n in enumerate(dims)][2:]
        options = {"training": training} if self.layer._accepts["training"] else {}
        rows = reshape(inputs, [-1, *inner])
        rows.set_shape([None, *dims[2:]])
        outputs = self.layer.call(rows, **options)
        self.layer._regularize_activity(outputs)
        after = outputs.shape.as_list()[1:]
        more = [shape(outputs)[i + 1] if n is None else n for i, n in enumerate(after)]
        batch = sizes[0] if dims[0] is None else dims[0]
        found: Tensor = reshape(outputs, [batch, steps, *more])
        found.set_shape([dims[0], dims[1], *after])
        return found


class Bidirectional(Wrapper):
    """A recurrent ``layer`` and its like backwards in time: outputs put together by ``merge_mode``, which is
    "concat", "sum", "mul", "ave", or None for a list.
    """

    def __init__(
        self, layer: RNN, merge_mode: str | None = "concat", weights: Any = None, backward_layer: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        if merge_mode not in ("sum", "mul", "ave", "concat", None):
            raise misuse(
                f"Bidirectional: expected merge_mode concat, sum, mul, ave or None; got {merge_mode!r}"
            )
        super().__init__(layer, **options)
        del self.layer  # it is one of the two
        self.forward_layer = _named(layer, f"forward_{layer.name}", layer.go_backwards)
        self.backward_layer = _named(layer, f"backward_{layer.name}", not layer.go_backwards)
        self.merge_mode, self._initial_weights = merge_mode, weights
        self.return_sequences, self.return_state = layer.return_sequences, layer.return_state
        self.stateful, self.supports_masking = layer.stateful, True
        self._inner_layer = type(layer), layer.get_config()

    def build(self, input_shape: Any) -> None:
        for layer in (self.forward_layer, self.backward_layer):
            layer._scope_name = f"{self._scope_name}{layer.name}/"
            layer.dtype = layer.dtype or self.dtype
            layer.build(input_shape)
            layer.built = True

    def __call__(self, inputs: Any, initial_state: Any = None, **options: Any) -> Any:
        if isinstance(inputs, (list, tuple)) and len(inputs) > 1 and initial_state is None:
            inputs, initial_state = inputs[0], list(inputs[1:])
        if initial_state is not None:
            options["initial_state"] = list(initial_state)
        return super().__call__(inputs, **options)

    def call(self, inputs: Tensor, training: Any = None, mask: Any = None, initial_state: Any = None) -> Any:
        states: list[Any] = [None, None]
        if initial_state is not None:
            half = len(initial_state) // 2
            states = [initial_state[:half], initial_state[half:]]
        both = [
            layer.call(inputs, mask=mask, training=training, initial_state=state)
            for layer, state in zip((self.forward_layer, self.backward_layer), states, strict=True)
        ]
        ends: list[Any] = []
        if self.return_state:
            ends = [*both[0][1:], *both[1][1:]]
            both = [found[0] for found in both]
        if self.return_sequences:
            both[1] = reverse_v2(both[1], [0 if self.forward_layer.time_major else 1])
        merged = self._merged(*both)
        outputs = merged if isinstance(merged, list) else [merged]
        return [*outputs, *ends] if self.return_state or self.merge_mode is None else outputs[0]

    def _merged(self, forward: Tensor, backward: Tensor) -> Any:
        if self.merge_mode is None:
            return [forward, backward]
        if self.merge_mode == "concat":
            return concat([forward, backward], -1)
        if self.merge_mode == "mul":
            return multiply(forward, backward)
        total = add(forward, backward)
        return realdiv(total, 2.0) if self.merge_mode == "ave" else total

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        own = mask if self.return_sequences else None
        return [own, own] if self.merge_mode is None else own

    def reset_states(self) -> None:
        self.forward_layer.reset_states()
        self.backward_layer.reset_states()

    def get_config(self) -> dict[str, Any]:
        layer_class, config = self._inner_layer
        return {**Layer.get_config(self), "layer": {"class_name": layer_class.__name__, "config": config}}

    def _inner_copies(self) -> dict[str, Any]:
        layer_class, config = self._inner_layer
        return {"layer": layer_class.from_config(config)}


def _named(layer: RNN, name: str, go_backwards: bool) -> Any:
    """A new layer like ``layer``, in this direction."""
    config = {**layer.get_config(), "name": name, "go_backwards": go_backwards}
    config.pop("batch_input_shape", None)
    return type(layer).from_config(config)
