"""`Variable`: a tensor that keeps its value between runs.

A Variable is a handle operation with an initializer. Each use as a tensor adds a new read at that point, so
that reads and writes happen in program order. A fetch of the variable itself is a single read, created with
it, that runs after all the step's operations on the variable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np

from flowrt.dtypes import DType, DTypeLike
from flowrt.errors import FailedPreconditionError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, default_sessions, get_default_graph
from flowrt.graph.construction.python_values import Symbolic
from flowrt.graph.effects import AT_END
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import pack
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.selection import where_op
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import squeeze_op
from flowrt.graph.ops.elementwise.comparison import logical_not
from flowrt.graph.ops.state import variable_ops
from flowrt.graph.ops.surface.operators import overload_operators
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.shapes import TensorShape, as_shape, merge
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeLike, TensorLike
from flowrt.variables.variable_creators import CreatedInScopes

__all__ = [
    "global_variables", "global_variables_initializer", "GraphKeys", "is_variable_initialized",
    "local_variables", "local_variables_initializer", "model_variables", "moving_average_variables",
    "report_uninitialized_variables", "trainable_variables", "Variable", "VariableAggregation",
    "variables_initializer", "VariableSynchronization",
]  # fmt: skip


class GraphKeys:
    """Names of the standard collections."""

    GLOBAL_VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    METRIC_VARIABLES = "metric_variables"
    MODEL_VARIABLES = "model_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    SUMMARIES = "summaries"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    ASSET_FILEPATHS = "asset_filepaths"
    REGULARIZATION_LOSSES = "regularization_losses"
    CONCATENATED_VARIABLES = "concatenated_variables"
    SAVERS = "savers"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    UPDATE_OPS = "update_ops"
    LOSSES = "losses"
    SAVEABLE_OBJECTS = "saveable_objects"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    SUMMARY_OP = "summary_op"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    LOCAL_RESOURCES = "local_resources"
    RESOURCES = "resources"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    EVAL_STEP = "eval_step"
    VARIABLES = GLOBAL_VARIABLES


class VariableSynchronization(Enum):
    """The time at which the copies of a variable on several replicas are synchronized."""

    AUTO, NONE, ON_WRITE, ON_READ = range(4)


class VariableAggregation(Enum):
    """The combination of several replicas' writes."""

    NONE, SUM, MEAN, ONLY_FIRST_REPLICA = range(4)


class Reference:
    """See `Variable.ref`: equal and of one hash for one variable."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def deref(self) -> Variable:
        return self._variable

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self._variable is other._variable

    def __hash__(self) -> int:
        return id(self._variable)


def _scatter_method(name: str, op: OpDef[Operation]) -> Callable[..., Tensor]:
    """The method of `Variable` that writes the rows of `IndexedSlices` by ``op``, and returns the value."""

    def scatter(
        self: Variable, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Tensor:
        return self._scatter(op, sparse_delta, name)

    scatter.__name__, scatter.__qualname__ = name, f"Variable.{name}"
    return scatter


class Variable(Symbolic, metaclass=CreatedInScopes):
    """A value of the session that operations read and assign.

    Args:
        initial_value: The first value: anything that converts to a tensor, or a function without arguments
            that returns it.
        trainable: Whether optimizers train it; the default is True.
        collections: Names of the collections that it joins, instead of GLOBAL_VARIABLES.
        validate_shape: Whether the shape is fixed; if False, it may change by assignment.
        dtype: The dtype; None for that of the initial value.
        constraint: A function that maps the value to an allowed one after each optimizer step.
        synchronization: When copies of the variable on several replicas are brought together.
        aggregation: How values that replicas assign are combined.
        shape: The shape, if it is not that of the initial value.

    Raises:
        InvalidArgumentError: The initial value has an unknown shape, and ``validate_shape`` is not False.

    Example:
        >>> v = tf.Variable([1.0, 2.0], name='v')
        >>> session.run(v.initializer)
        >>> session.run(v.assign_add([1.0, 1.0]))
        array([2., 3.], dtype=float32)
    """

    __array_priority__ = 100

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool | None = None,
        collections: Sequence[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: Any = None,
        dtype: DTypeLike | None = None,
        expected_shape: Any = None,
        import_scope: str | None = None,
        constraint: Callable[[Tensor], Tensor] | None = None,
        use_resource: bool | None = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: ShapeLike = None,
    ) -> None:
        if initial_value is None:
            raise misuse("Variable: expected an initial_value; got None")
        if trainable and synchronization is VariableSynchronization.ON_READ:
            raise misuse("Variable: expected trainable=False with synchronization ON_READ; got True")
        graph, container = get_default_graph().root, get_default_graph().get_container_scope()
        self.synchronization, self.aggregation = synchronization, aggregation
        self.trainable = (
            synchronization is not VariableSynchronization.ON_READ if trainable is None else bool(trainable)
        )
        self.constraint = constraint
        scope_name = name or "Variable"
        with _at_root(), graph.control_dependencies(None), graph.name_scope(scope_name) as scope:
            full_name = scope[:-1]
            with graph.name_scope("Initializer"):
                initial = initial_value() if callable(initial_value) else initial_value
                initial = initial.initialized_value() if isinstance(initial, Variable) else initial
                if isinstance(initial, Tensor):
                    initial = initial.graph.outside(initial)
                self._initial_value = convert_to_tensor(initial, dtype, "initial_value")
            known = merge(
                self._initial_value.spec.shape, as_shape(shape if shape is not None else expected_shape)
            )
            if validate_shape and known is None:
                raise misuse(
                    f"Variable {full_name!r}: expected an initial value of known shape; got "
                    f"{self._initial_value!r}. Pass validate_shape=False if its shape may vary"
                )
            handle_shape = known if validate_shape else None
            self._dtype = self._initial_value.dtype
            in_precision = {} if graph.precision is None else graph.precision.attributes(self._dtype)
            self._handle: Tensor = variable_ops.var_handle_op(
                dtype=self._dtype, shape=handle_shape, container=container, shared_name=full_name, name=scope,
                **in_precision,
            )  # fmt: skip
            with self._beside():
                self._initializer: Operation = variable_ops.assign_variable_op(
                    self.handle, self._initial_value, name="Assign"
                )
                self._is_initialized: Tensor = variable_ops.var_is_initialized_op(
                    self.handle, name="IsInitialized/VarIsInitializedOp"
                )
                self._snapshot: Tensor = variable_ops.read_variable_op(
                    self.handle, dtype=self._dtype, name="Read/ReadVariableOp", **{AT_END: True}
                )
        keys = list(collections) if collections is not None else [GraphKeys.GLOBAL_VARIABLES]
        if self.trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(GraphKeys.TRAINABLE_VARIABLES)
        graph.add_to_collections(keys, self)

    @property
    def handle(self) -> Tensor:
        """The resource handle of the variable."""
        return self._handle

    @contextlib.contextmanager
    def _beside(self) -> Iterator[None]:
        """Place new operations on the variable's device, ignoring the open device scope."""
        graph = self._building
        with graph.device(None), graph.device(self.handle.op.device or None):
            yield

    @property
    def _building(self) -> Graph:
        """The graph for operations on it: its own, or the function inside it that is being built."""
        return self.handle.graph.building

    # --- properties

    def __bool__(self) -> bool:  # type: ignore[override]  # that of tensors never returns
        """True, as of TensorFlow 1's variables: ``if v:`` asks whether there is one. Raises
        `DTypeError` in a function being traced, where variables stand for their values.
        """
        if getattr(get_default_graph(), "observe", None) is not None:
            super().__bool__()
        return True

    @property
    def name(self) -> str:
        return self.handle.name

    @property
    def op(self) -> Operation:
        return self.handle.op

    @property
    def graph(self) -> Graph:
        return self.handle.graph

    @property
    def device(self) -> str:
        return self.handle.device

    @property
    def dtype(self) -> DType:
        return self._dtype

    @property
    def shape(self) -> TensorShape:
        return TensorShape(self.handle.op.get_attr("shape"))

    def get_shape(self) -> TensorShape:
        return self.shape

    @property
    def initializer(self) -> Operation:
        """The operation that assigns the initial value."""
        return self._initializer

    @property
    def initial_value(self) -> Tensor:
        return self._initial_value

    def initialize_from(self, initial_value: Callable[[], Tensor]) -> None:
        """Let another value, made by ``initial_value()``, be the initial one: `initializer` is another
        operation then. Raises `UnimplementedError` for a variable with several copies.
        """
        if list(self.copies) != [self]:
            raise misuse(
                f"variable {self.op.name!r}: expected one copy of it; it has {len(self.copies)}",
                UnimplementedError,
            )
        with self.graph, self.graph.control_dependencies(None), self.graph.name_scope(f"{self.op.name}/"):
            with self._beside():
                self._initial_value = initial_value()
                self._initializer = variable_ops.assign_variable_op(
                    self.handle, self._initial_value, name="Assign"
                )

    def is_initialized(self) -> Tensor:
        return self._is_initialized

    def _as_graph_element(self) -> Tensor:
        """The fetch of the variable: its value at the end of the step."""
        return self._snapshot

    def __flowrt_tensor__(self) -> Tensor:
        return self.read_value()

    # --- reading

    def value(self) -> Tensor:
        """The value at this point of the program."""
        return self.read_value()

    def read_value(self) -> Tensor:
        with self._beside():
            name = f"{self.op.name}/ReadVariableOp"
            full_name = f"{self.graph.unique_absolute(name)}/"
            return variable_ops.read_variable_op(self.handle, dtype=self._dtype, name=full_name)

    def initialized_value(self) -> Tensor:
        """The initial value, for initial values of other variables, in any order of initialization."""
        return self.initial_value

    def sparse_read(self, indices: NumericLike, name: str | None = None) -> Tensor:
        """Rows of the value: ``[*indices.shape, *shape[1:]]``; on a GPU 0 for an index out of range."""
        with self._beside():
            return variable_ops.resource_gather(self.handle, indices, dtype=self._dtype, name=name)

    def eval(self, session: Any = None) -> Any:
        return self._as_graph_element().eval(session=session)

    def load(self, value: TensorLike, session: Any = None) -> None:
        """Set the value in ``session`` (or the default session), without adding operations. Raises
        `InvalidArgumentError` for another shape.
        """
        found = _shape_of(value)
        if not self.shape.is_compatible_with(found):
            raise misuse(
                f"variable {self.op.name!r}: load: expected a value of shape {self.shape}; got {found}"
            )
        values = zip(self.copies, self.value_for_copies(value), strict=True)
        (session or _default_session()).assign_variables(dict(values))

    # --- its values in sessions: one, or with a strategy one per copy

    strategy: Any = None
    """The strategy that created it, if each of its workers has a graph."""

    @property
    def copies(self) -> Sequence[Variable]:
        """The variables that hold its value: itself, unless a strategy made it."""
        return (self,)

    def value_of_copies(self, values: Sequence[Any]) -> Any:
        """The value to save, computed from those of `copies`."""
        return values[0]

    def value_for_copies(self, value: TensorLike) -> Sequence[Any]:
        """Values for `copies` that together represent ``value``, to restore."""
        return (value,)

    @property
    def shared_value(self) -> Tensor | None:
        """The value, where it is computed from copies on other workers: all of them must run it at the same
        time. None where `copies` are all there is.
        """
        return None

    # --- writing

    def check_updated_here(self) -> None:
        """Raise `FailedPreconditionError` if an update through the handle would make other copies stale:
        never, unless a strategy created it.
        """

    def assign(
        self, value: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        """Set the value. Returns the new value as a tensor, or with ``read_value=False`` the operation."""
        return self._write(variable_ops.assign_variable_op, (value,), name or "Assign", read_value)

    def assign_add(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._write(variable_ops.assign_add_variable_op, (delta,), name or "AssignAdd", read_value)

    def assign_sub(
        self, delta: TensorLike, use_locking: bool = False, name: str | None = None, read_value: bool = True
    ) -> Any:
        return self._write(variable_ops.assign_sub_variable_op, (delta,), name or "AssignSub", read_value)

    def count_up_to(self, limit: int, name: str | None = None) -> Tensor:
        """Increment a scalar int32 or int64 variable; returns its old value.

        The step raises `OutOfRangeError` if the variable has reached ``limit``.
        """
        with self._beside():
            return variable_ops.resource_count_up_to(self.handle, limit=limit, T=self._dtype, name=name)

    def _write(self, op: Any, values: tuple[Any, ...], name: str, read_value: bool) -> Any:
        converted = [convert_to_tensor(v, self._dtype) for v in values[-1:]]
        with self._beside():
            written: Operation = op(self.handle, *values[:-1], *converted, name=name)
            if not read_value:
                return written
            with self._building.control_dependencies([written]):
                return self.read_value()

    def _scatter(self, op: Any, slices: IndexedSlices, name: str | None) -> Tensor:
        return self._write(op, (slices.indices, slices.values), name or op.name, True)

    scatter_update = _scatter_method("scatter_update", variable_ops.resource_scatter_update)
    scatter_add = _scatter_method("scatter_add", variable_ops.resource_scatter_add)
    scatter_sub = _scatter_method("scatter_sub", variable_ops.resource_scatter_sub)
    scatter_mul = _scatter_method("scatter_mul", variable_ops.resource_scatter_mul)
    scatter_div = _scatter_method("scatter_div", variable_ops.resource_scatter_div)
    scatter_min = _scatter_method("scatter_min", variable_ops.resource_scatter_min)
    scatter_max = _scatter_method("scatter_max", variable_ops.resource_scatter_max)

    def set_shape(self, shape: ShapeLike) -> None:
        """Add facts about the shape, for later reads. Raises `InvalidArgumentError` for a contradiction."""
        op = self.handle.op
        refined = merge(op.get_attr("shape"), as_shape(shape))
        if refined != op.get_attr("shape"):
            op.mutate(attrs={**op.node.attrs, "shape": refined})

    def ref(self) -> Reference:
        """A hashable reference to the variable: `Reference.deref` returns it."""
        return Reference(self)

    experimental_ref = ref

    def __repr__(self) -> str:
        return f"<flowrt.Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


@contextlib.contextmanager
def _at_root() -> Iterator[None]:
    """Create variables of a function in the root graph, on the device requested here."""
    current = get_default_graph()
    if current is current.root:
        yield
        return
    with current.root as root, root.device(current.get_device_scope() or None):
        yield


def _shape_of(value: Any) -> TensorShape:
    """The shape of a value to load; unknown if it has none, which is an error later."""
    if hasattr(value, "shape"):
        return TensorShape(value.shape)
    try:
        found = np.asarray(value)
    except ValueError:
        return TensorShape(None)
    return TensorShape(None if found.dtype == object else found.shape)


def _default_session() -> Any:
    if not default_sessions():
        raise misuse(
            "load(): expected a session; got none. Pass session=, or use 'with Session():'",
            FailedPreconditionError,
        )
    return default_sessions()[-1]


overload_operators(Variable)


# --- collections of variables


def global_variables(scope: str | None = None) -> list[Variable]:
    """The variables that a checkpoint has, in the order of their creation.

    Args:
        scope: A regular expression: only variables with names that begin with it.

    Returns:
        A list of variables.

    Example:
        >>> w = tf.get_variable('w', [1])
        >>> [v.name for v in tf.global_variables()]
        ['w:0']
    """
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """The variables that optimizers update, in the order of their creation.

    Args:
        scope: A regular expression: only variables with names that begin with it.

    Returns:
        A list of variables.

    Example:
        >>> w = tf.get_variable('w', [1])
        >>> count = tf.get_variable('count', [], trainable=False)
        >>> [v.name for v in tf.trainable_variables()]
        ['w:0']
    """
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def moving_average_variables(scope: str | None = None) -> list[Variable]:
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def variables_initializer(var_list: Sequence[Variable], name: str = "init") -> Operation:
    """An operation that initializes ``var_list``."""
    initializers = [v.initializer for v in var_list]
    return group(*initializers, name=name) if initializers else no_op(name=name)


def global_variables_initializer() -> Operation:
    """An operation that gives each of `global_variables`, as they are now, its initial value.

    Returns:
        The operation, to be run once before the first step, unless a checkpoint is restored.

    Example:
        >>> w = tf.get_variable('w', initializer=[1.0, 2.0])
        >>> session.run(tf.global_variables_initializer())
        >>> w.eval()
        array([1., 2.], dtype=float32)
    """
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """An operation that gives each local variable, such as the counts of metrics, its initial value.

    Example:
        >>> total = tf.get_local_variable('total', initializer=0.0)
        >>> session.run(tf.local_variables_initializer())
        >>> total.eval()
        np.float32(0.0)
    """
    return variables_initializer(local_variables())


def is_variable_initialized(variable: Variable) -> Tensor:
    return variable.is_initialized()


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """A 1-D string tensor of the names of the variables that have no value."""
    variables = list(var_list) if var_list is not None else global_variables() + local_variables()
    with get_default_graph().name_scope(name):
        if not variables:
            return convert_to_tensor(np.array([], object), "string")
        missing = logical_not(pack([v.is_initialized() for v in variables]))
        names = convert_to_tensor([v.op.name for v in variables])
        rows = squeeze_op(where_op(missing), squeeze_dims=[1])
        return gather_op(names, rows, 0)
