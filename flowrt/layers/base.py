"""`Layer`: a function of tensors with its own variables, created at its first call and shared by later ones.

A layer has a variable scope: ``name``, or a default one made unique ("dense", "dense_1", ...), captured at
its first call. Its variables are `get_variable` variables there, so that an enclosing ``variable_scope(...,
reuse=...)`` shares them. A subclass has ``build(input_shape)``, which creates variables with `add_weight`,
and ``call(inputs)``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from flowrt import nn
from flowrt.base.structure import map_structure
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, nearest
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse, user_line
from flowrt.graph.tf1_signatures import optional, parameters_of, required
from flowrt.graph.typing import NumericLike, ShapeLike
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization
from flowrt.variables.variable_scope import VariableScope, variable_scope


class Layer:
    """Base of the layers.

    ``trainable``: whether its variables are trained; ``dtype`` is theirs (None: the input's). ``_scope`` (a
    name that is not made unique) and ``_reuse`` are passed by the functions of `flowrt.layers`. Attributes:
    ``built``, ``losses`` (regularization losses) and ``updates`` (operations that training must run; see
    `add_update`).
    """

    rank: ClassVar[int | None] = None
    """The rank that inputs must have."""
    takes_one: ClassVar[bool] = False
    """Whether its inputs are one tensor, never several."""

    stateful = False
    """Whether its updates are run even if it is not trainable."""

    def __init__(
        self,
        trainable: bool = True,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        activity_regularizer: Callable[[Tensor], Any] | None = None,
        _scope: str | VariableScope | None = None,
        _reuse: Any = None,
    ) -> None:
        self.trainable, self.built, self.activity_regularizer = trainable, False, activity_regularizer
        self.dtype: DType | None = None if dtype is None else as_dtype(dtype)
        self.losses: list[Tensor] = []
        self.updates: list[Operation] = []
        self._name, self._reuse = name or _snake_case(type(self).__name__), _reuse
        self._weights: list[Variable] = []
        self._scope: VariableScope | None = None
        if _scope is not None:
            with variable_scope(_scope) as captured:
                self._scope = captured

    # --- for subclasses

    def build(self, input_shape: TensorShape) -> None:
        """Make the variables; called once, in the layer's scope."""

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Any:
        """The output for ``inputs``."""
        return inputs

    def add_weight(
        self,
        name: str,
        shape: ShapeLike,
        dtype: DTypeLike | None = None,
        initializer: Any = None,
        regularizer: Any = None,
        trainable: bool = True,
        constraint: Any = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> Variable:
        """The layer's variable ``name``: a new one, or with reuse the existing one."""
        collected = get_default_graph().get_collection_ref(GraphKeys.REGULARIZATION_LOSSES)
        before = len(collected)
        weight = get_variable(
            name,
            shape,
            self.dtype if dtype is None else dtype,
            initializer,
            regularizer,
            trainable and self.trainable,
            constraint=constraint,
            synchronization=synchronization,
            aggregation=aggregation,
        )
        self.losses += collected[before:]
        self._weights.append(weight)
        return weight

    add_variable = add_weight

    def _add_parameter(self, name: str, shape: Sequence[int], kind: str, dtype: Any = None) -> Variable:
        """The variable ``name``, with the layer's initializer, regularizer and constraint for this kind."""
        options = ("initializer", "regularizer", "constraint")
        given = {option: getattr(self, f"{kind}_{option}") for option in options}
        return self.add_weight(name, shape, dtype, **given)

    def add_update(self, updates: Any, inputs: Any = None) -> None:
        """Register operations for training to run with the training operation (collection UPDATE_OPS).

        In a function, a branch or a loop they cannot be run from outside. There they are in no collection and
        run automatically: with the function, or, if it has no such rule, with the layer's output. A layer
        that is neither trainable nor ``stateful`` has no updates.
        """
        if not (self.trainable or self.stateful):
            return
        graph = get_default_graph()
        for update in updates if isinstance(updates, (list, tuple)) else [updates]:
            self.updates.append(update)
            if graph is graph.root:
                graph.add_to_collections(GraphKeys.UPDATE_OPS, update)

    def add_loss(self, losses: Any, inputs: NumericLike | None = None) -> None:
        """Note losses to add to the training loss (collection REGULARIZATION_LOSSES)."""
        for loss in losses if isinstance(losses, (list, tuple)) else [losses]:
            self.losses.append(loss)
            get_default_graph().add_to_collections(GraphKeys.REGULARIZATION_LOSSES, loss)

    # --- calling

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Apply the layer; at the first call make its variables, for the inputs' last known shape.

        Raises `InvalidArgumentError` for inputs of the wrong rank or of too little known shape, `DTypeError`
        for a dtype that is not floating.
        """
        tensor = convert_to_tensor(inputs)
        with self._entered() as scope, tensor.graph.name_scope(scope.original_name_scope):
            if not self.built:
                self._check(tensor)
                self.dtype = self.dtype or tensor.dtype
                self.build(tensor.shape)
                self.built = True
            known = len(self.updates)
            outputs = self.call(tensor, *args, **kwargs)
            outputs = _behind(self.updates[known:], outputs)
            if self.activity_regularizer is not None:
                with tensor.graph.name_scope("ActivityRegularizer"):
                    loss = self.activity_regularizer(outputs)
                    self.add_loss(realdiv(loss, cast(shape(outputs)[0], loss.dtype)))
        return outputs

    apply = __call__

    def _entered(self) -> Any:
        """The layer's variable scope, which its first call captures."""
        if self._scope is None:
            asked = self._name if self._reuse else None
            with variable_scope(asked, default_name=self._name) as captured:
                self._scope = captured
        return variable_scope(
            self._scope, reuse=True if self.built else self._reuse, auxiliary_name_scope=False
        )

    def _check(self, tensor: Tensor) -> None:
        if self.rank is not None and tensor.shape.ndims not in (None, self.rank):
            raise self._error(InvalidArgumentError, f"expected inputs of rank {self.rank}; got {tensor!r}")

    def _error(self, cls: type[Any], message: str) -> Any:
        return cls(f"layer {self.name!r}: {message}", source=user_line())

    def _known(self, shape: TensorShape, axis: int, floating: bool = True) -> int:
        """The dimension ``axis`` of the inputs, which the variables depend on."""
        assert self.dtype is not None
        if floating and not (self.dtype.is_floating or self.dtype.is_complex):
            raise self._error(DTypeError, f"expected inputs of a floating dtype; got {self.dtype.name}")
        rank = shape.ndims or 0
        size = shape.as_list()[axis] if -rank <= axis < rank else None
        if size is None:
            raise self._error(
                InvalidArgumentError, f"expected dimension {axis} of the inputs to be known; got {shape}"
            )
        return int(size)

    # --- its variables

    @property
    def name(self) -> str:
        return self._name

    @property
    def scope_name(self) -> str:
        """The name of its variable scope. Raises `InvalidArgumentError` before the first call."""
        if self._scope is None:
            raise self._error(InvalidArgumentError, "has no scope before its first call")
        return self._scope.name

    @property
    def graph(self) -> Graph:
        return self._weights[0].graph if self._weights else get_default_graph()

    @property
    def weights(self) -> list[Variable]:
        """The variables, the trainable ones first."""
        return self.trainable_weights + self.non_trainable_weights

    @property
    def trainable_weights(self) -> list[Variable]:
        return [w for w in self._weights if w.trainable and self.trainable]

    @property
    def non_trainable_weights(self) -> list[Variable]:
        return [w for w in self._weights if not (w.trainable and self.trainable)]

    @property
    def variables(self) -> list[Variable]:
        return self.weights

    @property
    def trainable_variables(self) -> list[Variable]:
        return self.trainable_weights

    @property
    def non_trainable_variables(self) -> list[Variable]:
        return self.non_trainable_weights

    def count_params(self) -> int:
        """The number of elements of its variables."""
        return sum(w.shape.num_elements() or 0 for w in self._weights)

    def __repr__(self) -> str:
        return f"<flowrt.layers.{type(self).__name__} {self.name!r}>"


def _behind(updates: Sequence[Operation], outputs: Any) -> Any:
    """``outputs``, in a branch or loop together with ``updates``, which nothing else would run."""
    graph = get_default_graph()
    if not updates or not isinstance(graph, FuncGraph) or graph.must_run is not None:
        return outputs
    with graph.control_dependencies(updates):
        return map_structure(identity, outputs)


def _snake_case(name: str) -> str:
    """``MaxPooling2D`` -> ``max_pooling2d``."""
    parts = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", parts).lower()


def activation_function(activation: Any) -> Callable[..., Any] | None:
    """``activation``, or the function of flowrt.nn with this name. Raises `DTypeError` if there is none."""
    found = getattr(nn, activation, None) if isinstance(activation, str) else activation
    if found is None and activation is not None:
        hint = nearest(activation, dir(nn))
        raise misuse(f"activation: expected a function of flowrt.nn; got {activation!r}.{hint}", DTypeError)
    if found is not None and not callable(found):
        raise misuse(
            f"activation: expected a function or the name of one in flowrt.nn; got {found!r}", DTypeError
        )
    return found


def layer_function(
    layer: type[Layer], has_reuse: bool = True, has_training: bool = False, before: str | None = None
) -> Callable[..., Tensor]:
    """The function that makes a ``layer`` and applies it: ``inputs``, then the layer's arguments.

    ``training``, an argument of a call, and ``reuse`` come next to the layer's ``trainable`` and ``name``:
    last, or before its argument ``before``.
    """
    own = {p.name: p for p in parameters_of(layer) if p.kind is p.POSITIONAL_OR_KEYWORD}
    last = [own.pop(name) for name in ("trainable", "name") if name in own]
    last = [*([optional("training", False, "NumericLike")] if has_training else []), *last]
    last += [optional("reuse", annotation="bool | None")] if has_reuse else []
    place = len(own) if before is None else list(own).index(before)
    ordered = list(own.values())
    parameters = [required("inputs", "NumericLike"), *ordered[:place], *last, *ordered[place:]]
    signature = inspect.Signature(parameters, return_annotation="Tensor")

    def function(*args: Any, **kwargs: Any) -> Tensor:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            unknown = next((name for name in kwargs if name not in signature.parameters), "")
            hint = nearest(unknown, signature.parameters)
            found = f"got {unknown!r}.{hint}" if unknown else f"{error}."
            message = f"layers.{function.__name__}: expected the layer's arguments; {found}"
            raise misuse(message, DTypeError) from None
        inputs, reuse = given.pop("inputs"), given.pop("reuse", None)
        training = {"training": given.pop("training", False)} if has_training else {}
        return layer(**given, _scope=given.get("name"), _reuse=reuse)(inputs, **training)

    function.__name__ = function.__qualname__ = _snake_case(layer.__name__)
    function.__module__ = layer.__module__
    function.__doc__ = _doc_of_call(layer)
    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def _doc_of_call(layer: type[Layer]) -> str:
    """The docstring of a layer's function: that of ``layer``, with the input and the result."""
    doc = f"Makes a `{layer.__name__}` and applies it to ``inputs``. {inspect.getdoc(layer)}"
    doc = doc.replace("\nArgs:\n", "\nArgs:\n    inputs: The tensor that it is applied to.\n")
    return doc.replace("\nExample:\n", "\nReturns:\n    The layer's result, a tensor.\n\nExample:\n")


class InputSpec:
    """Expectations of an input, for programs that set them; nothing reads them."""

    def __init__(
        self, dtype: Any = None, shape: Any = None, ndim: int | None = None, max_ndim: int | None = None,
        min_ndim: int | None = None, axes: dict[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.dtype, self.shape, self.axes = dtype, shape, dict(axes or {})
        self.ndim, self.max_ndim, self.min_ndim = ndim, max_ndim, min_ndim
