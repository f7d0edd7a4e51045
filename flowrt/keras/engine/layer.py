"""`Layer`: Keras's protocol over flowrt's layers.

A layer of Keras names its variables by name scopes and keeps its losses and updates to itself: nothing goes
into the graph's collections of regularization losses and update operations. It takes structures of tensors,
passes masks on, asks for the learning phase, records each call, and owns what its attributes hold.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from flowrt.dtypes import as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, nearest
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.initializers import GlorotUniform, Zeros
from flowrt.keras import constraints, initializers, regularizers
from flowrt.keras.engine.nodes import Node, is_of_use, one_or_list, record, tensors_in
from flowrt.keras.identifiers import custom_object_scope, serialize_object
from flowrt.keras.state.graph_state import mask_of, set_mask, tracked, unique_layer_name
from flowrt.keras.state.sessions import batch_get_value, batch_set_value, learning_phase
from flowrt.keras.state.settings import floatx
from flowrt.layers import base
from flowrt.layers.core import KernelLayer
from flowrt.nest import flatten, map_structure
from flowrt.variables.variable import Variable, VariableAggregation, VariableSynchronization


class _Calls(threading.local):
    """The value of ``training`` in the innermost call that has one."""

    training: Any = None


_CALLS = _Calls()


class Layer(base.Layer):
    """Base of the layers: a subclass has ``build(input_shape)``, ``call(inputs)`` and, if it should be saved,
    ``get_config()``.

    ``input_shape`` or ``batch_input_shape``, ``batch_size`` and ``dtype`` let a layer begin a `Sequential`;
    ``weights`` are its values once it is built. Raises `TypeError` for arguments that no layer has.
    """

    stateful = False
    supports_masking = False
    input_spec: Any = None
    _accepts: ClassVar[dict[str, bool]] = {"training": False, "mask": False}

    _arguments: tuple[tuple[Any, ...], dict[str, Any]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """The layer, with the arguments of its constructor, which `get_config` gives back."""
        self = super().__new__(cls)
        self._arguments = (args, kwargs)
        return self

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        parameters = inspect.signature(cls.call).parameters
        cls._accepts = {name: name in parameters for name in ("training", "mask")}

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        dynamic: bool = False,
        activity_regularizer: Any = None,
        input_shape: Any = None,
        input_dim: int | None = None,
        batch_input_shape: Any = None,
        batch_size: int | None = None,
        weights: Any = None,
        autocast: bool = True,
        **unknown: Any,
    ) -> None:
        if unknown:
            first = next(iter(unknown))
            hint = nearest(first, inspect.signature(type(self).__init__).parameters)
            raise TypeError(f"{type(self).__name__}: expected arguments of a layer; got {first!r}.{hint}")
        super().__init__(trainable, name or unique_layer_name(type(self).__name__), dtype)
        self.activity_regularizer = regularizers.get(activity_regularizer)
        if input_dim is not None and input_shape is None:
            input_shape = (input_dim,)
        if batch_input_shape is None and input_shape is not None:
            batch_input_shape = (batch_size, *as_tuple(input_shape))
        if batch_input_shape is not None:
            self._batch_input_shape = as_tuple(batch_input_shape)
        self._initial_weights = weights
        self._inbound_nodes: list[Node] = []
        self._own_losses: list[Tensor] = []
        self._own_updates: list[Operation] = []
        self._scope_name = ""

    # --- for subclasses

    def add_weight(
        self,
        name: str | None = None,
        shape: Any = (),
        dtype: Any = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool | None = None,
        constraint: Any = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        **_: Any,
    ) -> Variable:
        """A new variable ``name`` of the layer. The default initializer is Glorot's uniform one for floats,
        and zeros for others; ``regularizer(variable)`` becomes one of the layer's losses.
        """
        element = as_dtype(dtype or self.dtype or floatx())
        size = [int(n or 0) for n in as_tuple(shape)]
        make = initializers.get(initializer) or (GlorotUniform() if element.is_floating else Zeros())
        graph = get_default_graph()
        with graph.root.name_scope(None):
            variable = Variable(
                lambda: make(size, dtype=element),
                name=f"{self._scope_name or graph.get_name_scope() + '/'}{name or 'variable'}".lstrip("/"),
                trainable=trainable,
                constraint=constraints.get(constraint),
                synchronization=synchronization,
                aggregation=aggregation,
            )
        self._weights.append(tracked(variable))
        regularize = regularizers.get(regularizer)
        if regularize is not None:
            with graph.root.name_scope(f"{variable.op.name}/Regularizer/"):
                self._own_losses.append(regularize(variable))
        return variable

    add_variable = add_weight

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Note operations that training must run: ``updates`` are operations, or pairs of a variable and its
        new value.
        """
        for update in updates if isinstance(updates, list) else [updates]:
            if isinstance(update, tuple):
                update = update[0].assign(update[1], read_value=False)
            self._own_updates.append(update if isinstance(update, Operation) else group(update))

    def add_loss(self, losses: Any, inputs: Any = None) -> None:
        """Note scalars, or functions that make them, to add to the loss of training."""
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            self._own_losses.append(convert_to_tensor(loss() if callable(loss) else loss))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the outputs: that of the inputs, if the layer supports masks."""
        return mask if self.supports_masking else None

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the outputs for that of the inputs, found with an equal layer in another graph."""
        with Graph().as_default():
            dtype = self.dtype or floatx()
            outputs = self.copied()(map_shapes(lambda s: placeholder(dtype, s), input_shape))
            return map_structure(lambda t: t.shape, outputs)

    def get_config(self) -> dict[str, Any]:
        """The arguments for an equal layer, as JSON can hold them."""
        args, kwargs = self._arguments
        config: dict[str, Any] = {"name": self.name, "trainable": self.trainable}
        if self.dtype is not None:
            config["dtype"] = self.dtype.name
        if hasattr(self, "_batch_input_shape"):
            config["batch_input_shape"] = list(self._batch_input_shape)
        own = list(inspect.signature(type(self).__init__).parameters.values())[1:]
        taken = {p.name for p in own}
        given = dict(zip((p.name for p in own), args, strict=False)) | kwargs
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            config = {key: value for key, value in config.items() if key in taken}
        skipped = {"weights", "input_shape", "input_dim", "batch_input_shape", "batch_size"} - taken | set(
            config
        )
        return config | {k: serialize_object(v) for k, v in given.items() if k not in skipped}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """A layer of such arguments."""
        return cls(**config)

    def copied(self) -> Any:
        """A new layer like this one, with new weights."""
        args, kwargs = self._arguments
        functions = {f.__name__: f for f in (*args, *kwargs.values()) if hasattr(f, "__name__")}
        with custom_object_scope(functions):
            return self.from_config({**self.get_config(), **self._inner_copies()})

    def _inner_copies(self) -> dict[str, Any]:
        """Copies of the layers among the arguments, by the names of these."""
        return {}

    # --- calling

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer to a tensor or a structure of tensors; at the first call make its variables.

        ``training`` and ``mask`` go to ``call`` if it has such arguments: ``training`` is that of the call
        around, and ``mask`` is that of the inputs, unless given.
        """
        if "_name" not in vars(self):
            raise misuse(f"{type(self).__name__}: expected its __init__ to call super().__init__()")
        inputs = map_structure(_as_input, inputs)
        graph = get_default_graph()
        masks = map_structure(mask_of, inputs)
        has_mask = any(mask is not None for mask in flatten(masks))
        asked = dict(kwargs)
        if self._accepts["mask"] and has_mask and kwargs.get("mask") is None:
            asked["mask"] = masks
        if self._accepts["training"] and kwargs.get("training") is None and len(args) == 0:
            asked["training"] = _CALLS.training if _CALLS.training is not None else learning_phase()
        around = _CALLS.training
        _CALLS.training = asked.get("training", around)
        try:
            with graph.name_scope(self.name) as scope:
                self._scope_name = scope if not self.built else self._scope_name
                self._build_once(inputs)
                outputs = self.call(inputs, *args, **asked)
                if outputs is None:
                    raise misuse(f"layer {self.name!r}: expected `call` to return tensors; got None")
                outputs = _distinct(outputs, inputs)
                self._regularize_activity(outputs)
                self._set_masks(inputs, asked.get("mask", masks if has_mask else None), outputs)
        finally:
            _CALLS.training = around
        record(Node(self, inputs, outputs, (args, kwargs)))
        return outputs

    apply = __call__

    def _build_once(self, inputs: Any) -> None:
        if self.built:
            return
        first = next(iter(tensors_in(inputs)), None)
        if self.dtype is None and first is not None and (first.dtype.is_floating or first.dtype.is_complex):
            self.dtype = first.dtype
        if self.dtype is None:
            self.dtype = as_dtype(floatx())
        self._check_rank(inputs)
        shapes = map_structure(lambda t: t.shape, inputs)
        self.build(shapes)
        self.built = True
        if self._initial_weights is not None:
            self.set_weights(self._initial_weights)

    def _check_rank(self, inputs: Any) -> None:
        if self.takes_one and isinstance(inputs, (list, tuple, Mapping)) and _is_ours(self.call):
            raise misuse(f"layer {self.name!r}: expected one tensor; got {len(inputs)} of them: {inputs!r}")
        if self.rank is not None and isinstance(inputs, Tensor):
            self._check(inputs)

        if isinstance(self, KernelLayer) and isinstance(inputs, Tensor):
            kind = inputs.dtype
            if not (kind.is_floating or kind.is_complex) and _is_ours(self.call):
                raise self._error(
                    DTypeError, f"expected inputs of a floating dtype; got {kind.name}. Use backend.cast()"
                )

    def _regularize_activity(self, outputs: Any) -> None:
        if self.activity_regularizer is None:
            return
        for output in tensors_in(outputs):
            with output.graph.name_scope("ActivityRegularizer"):
                loss = self.activity_regularizer(output)
                self.add_loss(realdiv(loss, cast(shape(output)[0], loss.dtype)))

    def _set_masks(self, inputs: Any, masks: Any, outputs: Any) -> None:
        found = self.compute_mask(inputs, masks)
        if found is None:
            return
        flat = found if isinstance(found, (list, tuple)) else [found]
        for output, mask in zip(tensors_in(outputs), flat, strict=False):
            if mask is not None:
                set_mask(output, mask)

    # --- what belongs to it

    @property
    def trainable(self) -> bool:
        """Whether its weights are trained; set, it is that of the layers in it, too. It counts for models
        that are compiled afterwards.
        """
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)
        for layer in self._sublayers():
            layer.trainable = value

    def _owned(self) -> Iterator[Any]:
        """The layers and variables among its attributes, in the order of the attributes."""
        for key, value in vars(self).items():
            if key not in _NOT_OWNED:
                yield from _layers_and_variables(value)

    def _sublayers(self) -> list[Any]:
        found = (each for each in self._owned() if isinstance(each, base.Layer))
        return list(dict.fromkeys(each for each in found if each is not self))

    def _own_weights(self) -> list[Variable]:
        attributes = (each for each in self._owned() if isinstance(each, Variable))
        return list(dict.fromkeys([*self._weights, *attributes]))

    @property
    def trainable_weights(self) -> list[Variable]:
        if not self.trainable:
            return []
        own = [w for w in self._own_weights() if w.trainable]
        return _unique([*own, *(w for layer in self._sublayers() for w in layer.trainable_weights)])

    @property
    def non_trainable_weights(self) -> list[Variable]:
        own = [w for w in self._own_weights() if not (w.trainable and self.trainable)]
        for layer in self._sublayers():
            own += layer.non_trainable_weights if self.trainable else layer.weights
        return _unique(own)

    @property
    def losses(self) -> list[Tensor]:
        """The regularization losses and what `add_loss` noted, with those of the layers in it."""
        return [*self._own_losses, *(loss for layer in self._sublayers() for loss in layer.losses)]

    @losses.setter
    def losses(self, value: list[Tensor]) -> None:
        self._own_losses = value

    @property
    def updates(self) -> list[Operation]:
        """Operations that `add_update` noted, also in its layers; none while it is not trainable."""
        if not self.trainable and not self.stateful:
            return []
        return [*self._own_updates, *(op for layer in self._sublayers() for op in layer.updates)]

    @updates.setter
    def updates(self, value: list[Operation]) -> None:
        self._own_updates = value

    def get_updates_for(self, inputs: Any) -> list[Operation]:
        """The updates for a use with ``inputs``; those for every use with None."""
        return _of_use(self.updates, inputs)

    def get_losses_for(self, inputs: Any) -> list[Tensor]:
        """The losses for a use with ``inputs``; those for every use with None."""
        return _of_use(self.losses, inputs)

    def get_weights(self) -> list[np.ndarray[Any, Any]]:
        """The values of `weights` in the session."""
        return batch_get_value(self.weights)

    def set_weights(self, weights: Any) -> None:
        """Set the values of `weights`. Raises `InvalidArgumentError` for another number, or other shapes."""
        own = self.weights
        if len(own) != len(weights):
            raise misuse(f"layer {self.name!r}: set_weights: expected {len(own)} arrays; got {len(weights)}")
        batch_set_value(list(zip(own, weights, strict=True)))

    def count_params(self) -> int:
        return sum(w.shape.num_elements() or 0 for w in self.weights)

    @property
    def name(self) -> str:
        return self._name

    @property
    def scope_name(self) -> str:
        return self._scope_name.rstrip("/")

    # --- its calls

    @property
    def inbound_nodes(self) -> list[Node]:
        return self._inbound_nodes

    def _call_at(self, index: int, what: str) -> Node:
        if not -len(self._inbound_nodes) <= index < len(self._inbound_nodes):
            raise self._error(
                AttributeError if not self._inbound_nodes else InvalidArgumentError,
                f"expected call {index} for its {what}; it was called {len(self._inbound_nodes)} times",
            )
        return self._inbound_nodes[index]

    def _only_call(self, what: str) -> Node:
        if len(self._inbound_nodes) != 1:
            raise AttributeError(
                f"layer {self.name!r}: expected one call for its {what}; it was called"
                f" {len(self._inbound_nodes)} times"
            )
        return self._inbound_nodes[0]

    def get_input_at(self, node_index: int) -> Any:
        return one_or_list(tensors_in(self._call_at(node_index, "input").inputs))

    def get_output_at(self, node_index: int) -> Any:
        return one_or_list(tensors_in(self._call_at(node_index, "output").outputs))

    def get_input_shape_at(self, node_index: int) -> Any:
        return _shapes(self._call_at(node_index, "input").inputs)

    def get_output_shape_at(self, node_index: int) -> Any:
        return _shapes(self._call_at(node_index, "output").outputs)

    @property
    def input(self) -> Any:
        """The tensors it was called with. Raises `AttributeError` unless it was called once."""
        return one_or_list(tensors_in(self._only_call("input").inputs))

    @property
    def output(self) -> Any:
        return one_or_list(tensors_in(self._only_call("output").outputs))

    @property
    def input_shape(self) -> Any:
        return _shapes(self._only_call("input shape").inputs)

    @property
    def output_shape(self) -> Any:
        return _shapes(self._only_call("output shape").outputs)

    @property
    def input_mask(self) -> Any:
        return mask_of(self.input)

    @property
    def output_mask(self) -> Any:
        return mask_of(self.output)

    def __repr__(self) -> str:
        return f"<flowrt.keras.layers.{type(self).__name__} {self.name!r}>"


_NOT_OWNED = {"_weights", "_inbound_nodes", "_own_losses", "_own_updates", "_arguments", "optimizer", "_tape"}


def as_tuple(shape: Any) -> tuple[int | None, ...]:
    """A shape as a tuple of numbers and None. Raises `DTypeError` for what is none."""
    if isinstance(shape, TensorShape):
        return tuple(shape.as_list())
    if isinstance(shape, str):
        raise misuse(f"expected a shape; got {shape!r}", DTypeError)
    try:
        return tuple(None if getattr(n, "value", n) is None else int(n) for n in shape)
    except TypeError:
        if isinstance(shape, (int, np.integer)):
            return (int(shape),)
        raise misuse(f"expected a shape; got {shape!r}", DTypeError) from None


def map_shapes(function: Any, shapes: Any) -> Any:
    """``function`` of a shape, or the list of it for each of several shapes."""
    is_several = (
        isinstance(shapes, (list, tuple)) and shapes and isinstance(shapes[0], (list, tuple, TensorShape))
    )
    return [function(as_tuple(s)) for s in shapes] if is_several else function(as_tuple(shapes))


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("flowrt.")


def _as_input(value: Any) -> Any:
    if isinstance(value, (Tensor, str)) or value is None:
        return value
    array = np.asarray(value) if isinstance(value, (int, float, list, np.ndarray)) else value
    dtype = floatx() if getattr(array, "dtype", None) == np.float64 else None
    return convert_to_tensor(array, dtype)


def _distinct(outputs: Any, inputs: Any) -> Any:
    """``outputs``, with tensors of their own where they are inputs: each tensor comes from one layer."""
    own = {tensor.ref for tensor in tensors_in(inputs)}
    return map_structure(
        lambda t: identity(t) if isinstance(t, Tensor) and t.ref in own else _as_output(t), outputs
    )


def _as_output(value: Any) -> Any:
    return convert_to_tensor(value) if isinstance(value, Variable) else value


def _layers_and_variables(value: Any) -> Iterator[Any]:
    if isinstance(value, (base.Layer, Variable)):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _layers_and_variables(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _layers_and_variables(each)


def _unique(weights: list[Variable]) -> list[Variable]:
    return list(dict.fromkeys(weights))


def _shapes(structure: Any) -> Any:
    return one_or_list(
        [tuple(t.shape.as_list()) if t.shape.ndims is not None else None for t in tensors_in(structure)]
    )


def _of_use(found: list[Any], inputs: Any) -> list[Any]:
    return [each for each in found if is_of_use(getattr(each, "op", each), tensors_in(inputs))]


def phase(training: Any) -> Any:
    """``training``, or the learning phase if it is None."""
    return learning_phase() if training is None else training
