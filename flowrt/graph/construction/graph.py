"""The graph a user builds: `Graph`, with its names, scopes and collections, and the default graph.

A `Graph` is append-only. Each `Operation` is a handle to an immutable `Node` (see `flowrt.graph.node`): the
compiler works on the nodes and does not depend on this file. Changes after creation (``set_shape``, an
assigned device, an added control input) replace the operation's node and increment ``Graph.mutations``, which
invalidates cached plans; adding operations does not.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from typing import Any

from flowrt.base.in_notebook import InNotebook
from flowrt.device.spec import format_device, merge_device_names, parse_device
from flowrt.dtypes import DType
from flowrt.errors import (
    DTypeError,
    FailedPreconditionError,
    ForeignElementError,
    InvalidArgumentError,
    NotFoundError,
    nearest,
)
from flowrt.graph.construction.defaults import default_graphs, default_sessions, leave_default_graph
from flowrt.graph.construction.names import Names, check_scope
from flowrt.graph.construction.operation import Operation, Tensor, depends_on
from flowrt.graph.construction.rollback import rollback_on_error
from flowrt.graph.construction.scopes import (
    AttributeFunction,
    Controller,
    Scopes,
    ThreadScopes,
    apply_device_functions,
)
from flowrt.graph.inference import Signatures, infer_outputs
from flowrt.graph.messages.graph_def import nodes_to_graph_def
from flowrt.graph.node import COLOCATION, Node, TensorSpec
from flowrt.graph.op_def import Effect, OpDef, PartialValue
from flowrt.graph.op_facets import Vjp
from flowrt.graph.partial_value import partial_value
from flowrt.graph.precision import Precision, with_precision
from flowrt.graph.source import Source, misuse, user_source

__all__ = [
    "Graph", "Operation", "Tensor", "default_sessions", "depends_on", "get_default_graph",
    "leave_default_graph", "reset_default_graph", "user_source",
]  # fmt: skip

_ref_of = attrgetter("ref")


class Graph(InNotebook):
    """A dataflow graph under construction.

    ``with Graph():`` (or ``with graph.as_default():``) makes it the default graph of the thread. Several
    threads may add operations to one graph. ``seed`` is the graph-level random seed, ``gradient_functions``
    the gradients of `custom_gradient` by name, ``python_functions`` those of ``py_func``, ``derivatives`` the
    operation that each operation made by `gradients` is the derivative of, by name, ``mutations`` counts
    changes that invalidate plans.

    Example:
        >>> graph = tf.Graph()
        >>> with graph:
        ...     x = tf.constant(1.0)
        >>> x.graph is graph, [op.name for op in graph.get_operations()]
        (True, ['Const'])
    """

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._names = Names()
        self._collections: dict[Any, list[Any]] = {}
        self._finalized = False
        self._lock = threading.RLock()
        self._thread = ThreadScopes()
        self.signatures: Signatures = {}
        """Cache of signatures."""
        self.gradient_functions: dict[str, Vjp] = {}
        self.python_functions: dict[str, Any] = {}
        self.derivatives: dict[str, str] = {}
        self.seed: int | None = None
        self._precision: Precision | None = None
        self.mutations = 0

    # --- operations

    def add(
        self,
        op_def: OpDef,
        name: str,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        dtypes: Sequence[DType],
    ) -> Operation:
        """Append an operation under the (already unique) ``name``, with the attributes of the thread's
        scopes.

        ``dtypes`` are its outputs'. Raises what the shape rule raises; the graph is then unchanged.
        """
        source, specs = user_source(), [t.spec for t in inputs]

        def value(i: int) -> PartialValue:
            return partial_value(self.node, inputs[i].ref)

        outputs = infer_outputs(op_def, name, attrs, specs, dtypes, value, source)
        return self.append(op_def, name, inputs, attrs, outputs, source)

    def append(
        self,
        op_def: OpDef,
        name: str,
        inputs: Sequence[Tensor],
        attrs: Mapping[str, Any],
        outputs: tuple[TensorSpec, ...],
        source: Source | None,
    ) -> Operation:
        """`add` with known ``outputs`` and user line."""
        scopes = self._thread.scopes
        with self._lock:
            if self._finalized:
                self.check_building()
            controls = self._controls(inputs) if scopes.controllers else ()
            if scopes.colocation and COLOCATION not in attrs:
                attrs = {**attrs, COLOCATION: scopes.colocation}
            if scopes.gradient_overrides and op_def.name in scopes.gradient_overrides:
                attrs = {**attrs, "_gradient_op_type": scopes.gradient_overrides[op_def.name]}
            refs = tuple(map(_ref_of, inputs))
            node = Node(name, op_def, refs, controls, attrs, scopes.device, source, outputs)
            op = Operation(self, node)
            if scopes.device_functions:
                op.node = node.replace(device=apply_device_functions(op, scopes.device_functions))
            if scopes.attribute_function is not None:
                op.node = op.node.replace(attrs={**attrs, **scopes.attribute_function(op)})
            self._operations[name] = op
            if scopes.differentiated:
                self.derivatives[name] = scopes.differentiated
            for controller in scopes.controllers:
                controller.made.add(op)
        return op

    def _controls(self, inputs: Sequence[Tensor]) -> tuple[str, ...]:
        producers = {t.op for t in inputs}
        found: dict[Operation, None] = {}
        for controller in self._thread.scopes.controllers:
            if producers.isdisjoint(controller.made):  # an input made in this scope has waited already
                found.update(dict.fromkeys(controller.waits_for))
        return tuple([op.name for op in found if op not in producers])

    def node(self, name: str) -> Node:
        return self._operations[name].node

    def get_operations(self) -> list[Operation]:
        """All operations, in the order of creation."""
        return list(self._operations.values())

    @property
    def operations(self) -> Mapping[str, Operation]:
        return self._operations

    def get_operation_by_name(self, name: str) -> Operation:
        """Raises `NotFoundError` (a `KeyError`), which names the nearest ones."""
        if not isinstance(name, str):
            raise DTypeError(f"operation name: expected a string; got {name!r}")
        if name not in self._operations:
            raise NotFoundError(f"operation {name!r}: not in the graph.{nearest(name, self._operations)}")
        return self._operations[name]

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor ``"operation:index"``. Raises `NotFoundError` or `InvalidArgumentError`."""
        op_name, colon, index = str(name).rpartition(":")
        if not colon or not index.isdigit():
            raise InvalidArgumentError(f"tensor name: expected 'operation:index'; got {name!r}")
        op = self.get_operation_by_name(op_name)
        if int(index) >= len(op.outputs):
            raise NotFoundError(f"tensor {name!r}: operation {op_name!r} has {len(op.outputs)} outputs")
        return op.outputs[int(index)]

    def as_graph_element(self, obj: Any, allow_tensor: bool = True, allow_operation: bool = True) -> Any:
        """``obj`` (a tensor, operation, variable or name) as this graph's Tensor or Operation.

        Raises `DTypeError` for other types, `InvalidArgumentError` for a foreign graph, `NotFoundError` for a
        name.
        """
        if hasattr(obj, "_as_graph_element"):
            obj = obj._as_graph_element()
        if isinstance(obj, str):
            obj = self.get_tensor_by_name(obj) if ":" in obj else self.get_operation_by_name(obj)
        if isinstance(obj, Operation) and not allow_operation:
            hint = f" Did you mean '{obj.name}:0'?" if obj.outputs else ""
            raise DTypeError(f"expected a tensor; got the operation {obj.name!r}.{hint}")
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Operation) and allow_operation):
            return obj if obj.graph is self else self._adopted(obj)
        hint = ". gradients() and summary.merge_all() may return None" if obj is None else ""
        wanted = " or ".join(["a Tensor"] * allow_tensor + ["an Operation"] * allow_operation)
        raise DTypeError(f"expected {wanted} or its name; got {obj!r}{hint}")

    def _adopted(self, obj: Tensor | Operation) -> Tensor:
        """A tensor of another graph as one of this graph. Raises `InvalidArgumentError` if not readable."""
        adopted = self.adopt(obj) if isinstance(obj, Tensor) else None
        if adopted is None:
            raise obj.graph.foreign(obj)
        return adopted

    def is_feedable(self, tensor: Tensor) -> bool:
        return tensor not in self._collections.get(_UNFEEDABLE, ())

    def prevent_feeding(self, tensor: Tensor) -> None:
        self._collections.setdefault(_UNFEEDABLE, []).append(tensor)

    def is_fetchable(self, _: Any) -> bool:
        return True

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The operations as a GraphDef message: all, or those added since ``version`` was ``from_version``.

        ``add_shapes`` adds the static output shapes as attribute "_output_shapes". Raises
        `UnimplementedError`, which names the operation, for an attribute that a message cannot hold.
        """
        nodes = [op.node for op in self.get_operations()[from_version or 0 :]]
        return nodes_to_graph_def(nodes, add_shapes=add_shapes)

    # --- functions inside it: see `flowrt.graph.construction.func_graph`

    @property
    def root(self) -> Graph:
        """The outermost graph, which is not a function and holds the variables."""
        return self

    @property
    def building(self) -> Graph:
        """The graph to which operations on this graph's tensors are added: an inner function under
        construction, or this graph.
        """
        current = get_default_graph()
        return current if current.is_inside(self) else self

    def is_inside(self, graph: Graph) -> bool:
        """Whether this is a function inside ``graph``."""
        return False

    def adopt(self, tensor: Tensor) -> Tensor | None:
        """The tensor of this graph that represents ``tensor`` of another; None if it cannot be read here."""
        return None

    def origin(self, tensor: Tensor) -> Tensor:
        """``tensor`` of this graph, or, in a function, the tensor of the outer graph that it represents."""
        return tensor

    def outside(self, tensor: Tensor) -> Tensor:
        """The tensor of the outermost graph that is equivalent to ``tensor`` of this graph."""
        return tensor

    def foreign(self, element: Tensor | Operation) -> ForeignElementError:
        """The error for an element of this graph that was passed to another."""
        message = f"{element!r} is not an element of this graph. A session runs one graph: Session(graph=...)"
        op = element.op if isinstance(element, Tensor) else element
        return op.error(ForeignElementError, message)

    @property
    def seed_position(self) -> int:
        """A number for the next random operation, unique in the graph."""
        return self.version

    @property
    def precision(self) -> Precision | None:
        """The precision of the graph's variables, present and future; None: that of their dtype. A variable
        with a precision of its own, that of a strategy, keeps it.

        >>> tf.get_default_graph().precision = tf.distribute.Precision("bfloat16")

        Setting it raises `DTypeError` for what is no `Precision`, and `FailedPreconditionError` if the graph
        is finalized.
        """
        return self.root._precision

    @precision.setter
    def precision(self, precision: Precision | None) -> None:
        if precision is not None and not isinstance(precision, Precision):
            raise misuse(f"Graph.precision: expected a Precision, or None; got {precision!r}", DTypeError)
        root = self.root
        root.check_building()
        for op in root.get_operations():
            if op.op_def.effect is Effect.HANDLE and "dtype" in op.node.attrs:
                attrs = with_precision(op.node.attrs, root._precision, precision)
                if attrs != op.node.attrs:
                    op.mutate(attrs=attrs)
        root._precision = precision

    def __repr__(self) -> str:
        return f"<flowrt.Graph of {len(self._operations)} operations>"

    # --- freezing

    def finalize(self) -> None:
        """Refuse further operations."""
        self._finalized = True

    def unfinalize(self) -> None:
        """Allow further operations again."""
        self._finalized = False

    @property
    def finalized(self) -> bool:
        return self._finalized

    def check_building(self) -> None:
        if self._finalized:
            raise misuse("the graph is finalized and can no longer be changed", FailedPreconditionError)

    def rollback_on_error(self) -> AbstractContextManager[None]:
        """A context that removes every operation added in it if it ends with an exception."""
        return rollback_on_error(self)

    @property
    def version(self) -> int:
        """The number of its operations."""
        return len(self._operations)

    # --- names

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """``name`` in the current name scope, made unique (without regard to case) with ``_1``, ``_2``, …"""
        scope = self._thread.scopes.name
        return self.unique_absolute(f"{scope}/{name}" if scope else name, mark_as_used)

    def unique_absolute(self, name: str, mark_as_used: bool = True) -> str:
        with self._lock:
            return self._names.unique(name, mark_as_used)

    def operation_name(self, name: str) -> str:
        """The full name of a new operation requested as ``name``; a trailing ``/`` means that it is complete.

        Raises `DTypeError` for another type, `InvalidArgumentError` for characters not allowed in names.
        """
        if not isinstance(name, str):
            raise misuse(f"operation name: expected a string; got {name!r}", DTypeError)
        if name.endswith("/"):
            full = name[:-1]
            if full in self._operations:
                return self.unique_absolute(full)
            self._names.take(full)
            return full
        self._names.check_operation(name)
        scope = self._thread.scopes.name
        return self.unique_absolute(f"{scope}/{name}" if scope else name)

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Prefix new names with a unique ``name/``; ``"x/"`` re-enters a scope, None and "" the root."""
        check_scope(name or "")
        scopes = self._thread.scopes
        old = scopes.name
        if not name:
            scopes.name = ""
        elif name.endswith("/"):
            scopes.name = name[:-1]
        else:
            scopes.name = self.unique_name(name)
        try:
            yield scopes.name + "/" if scopes.name else ""
        finally:
            scopes.name = old

    def get_name_scope(self) -> str:
        return self._thread.scopes.name

    # --- containers, devices, order, place

    @contextmanager
    def container(self, container_name: str) -> Iterator[None]:
        """Assign variables created in it to this container of their task; ``""`` is the default one. Raises
        `InvalidArgumentError` for anything but a string.
        """
        if not isinstance(container_name, str):
            raise InvalidArgumentError(f"container: expected a name; got {container_name!r}")
        scopes = self._thread.scopes
        old, scopes.container = scopes.container, container_name
        try:
            yield
        finally:
            scopes.container = old

    def get_container_scope(self) -> str:
        return self._thread.scopes.container

    @contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Place new operations: a (partial) device name is merged with the outer ones field by field; the
        inner scope wins.

        A function gets each new operation and returns a device; None clears the outer scopes. Raises
        `InvalidArgumentError` for a name that does not parse.
        """
        scopes = self._thread.scopes
        old = scopes.device, scopes.device_functions
        spec = device_name_or_function
        if spec is None:
            scopes.device, scopes.device_functions = "", ()
        elif callable(spec):
            scopes.device_functions = (*(scopes.device_functions or (scopes.device,)), spec)
        else:
            name = format_device(parse_device(str(spec)))
            if scopes.device_functions:
                scopes.device_functions = (*scopes.device_functions, name)
            else:
                scopes.device = merge_device_names(scopes.device, name)
        try:
            yield
        finally:
            scopes.device, scopes.device_functions = old

    @property
    def scopes(self) -> Scopes:
        """The calling thread's scopes."""
        return self._thread.scopes

    def get_device_scope(self) -> str:
        """The device requested by the device scopes outside the first function scope."""
        return self._thread.scopes.device

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """Make new operations wait for ``control_inputs`` (operations, tensors, variables); None clears outer
        scopes.
        """
        scopes = self._thread.scopes
        old = scopes.controllers
        if control_inputs is None:
            scopes.controllers = ()
        else:
            elements = [self.as_graph_element(c) for c in control_inputs]
            ops = [e if isinstance(e, Operation) else e.op for e in elements]
            scopes.controllers = (*old, Controller(list(dict.fromkeys(ops))))
        try:
            yield
        finally:
            scopes.controllers = old

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Keep new operations on ``op``'s device."""
        scopes = self._thread.scopes
        old = scopes.device, scopes.device_functions, scopes.colocation
        if op is not None:
            is_around = self.is_inside(getattr(op, "graph", self))
            element = op if is_around else self.as_graph_element(op)
            target = element if isinstance(element, Operation) else element.op
            groups = tuple(target.colocation_groups())
            outer = () if ignore_existing else scopes.colocation
            scopes.colocation = tuple(dict.fromkeys((*outer, *groups)))
            scopes.device, scopes.device_functions = target.device, ()
        elif ignore_existing:
            scopes.colocation = ()
        try:
            yield
        finally:
            scopes.device, scopes.device_functions, scopes.colocation = old

    @contextmanager
    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> Iterator[None]:
        """Give new operations of types in ``op_type_map`` the gradient registered under the mapped name."""
        scopes = self._thread.scopes
        old = scopes.gradient_overrides
        scopes.gradient_overrides = {**old, **op_type_map}
        try:
            yield
        finally:
            scopes.gradient_overrides = old

    @contextmanager
    def attributes_by(self, function: AttributeFunction) -> Iterator[None]:
        """Give new operations the further attributes that ``function`` returns for them."""
        scopes = self._thread.scopes
        old = scopes.attribute_function
        scopes.attribute_function = function
        try:
            yield
        finally:
            scopes.attribute_function = old

    @contextmanager
    def derivatives_of(self, op: Operation | None) -> Iterator[None]:
        """Note new operations in `derivatives` as those of ``op``; None: as no derivatives."""
        scopes = self._thread.scopes
        old = scopes.differentiated
        scopes.differentiated = "" if op is None else op.name
        try:
            yield
        finally:
            scopes.differentiated = old

    # --- collections

    def add_to_collection(self, name: Any, value: Any) -> None:
        self.check_building()
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Any, value: Any) -> None:
        """Add ``value`` to each of ``names`` (one name or several) that does not have it yet."""
        for name in dict.fromkeys((names,) if isinstance(names, str) else tuple(names or ())):
            if not any(value is item for item in self._collections.get(name, ())):
                self.add_to_collection(name, value)

    def get_collection(self, name: Any, scope: str | None = None) -> list[Any]:
        """A copy of the collection; ``scope`` keeps only items with a name that begins with that pattern."""
        items = list(self._collections.get(name, ()))
        if scope is None:
            return items
        pattern = re.compile(scope)
        return [item for item in items if hasattr(item, "name") and pattern.match(item.name)]

    def get_collection_ref(self, name: Any) -> list[Any]:
        return self._collections.setdefault(name, [])

    def get_all_collection_keys(self) -> list[Any]:
        return [k for k in self._collections if isinstance(k, str)]

    def clear_collection(self, name: Any) -> None:
        self.check_building()
        self._collections.pop(name, None)

    # --- the default graph

    @contextmanager
    def as_default(self) -> Iterator[Graph]:
        """Make this the thread's default graph."""
        with self:
            yield self

    def __enter__(self) -> Graph:
        default_graphs().append(self)
        return self

    def __exit__(self, *ending: object) -> None:
        if not default_graphs() or default_graphs()[-1] is not self:
            raise FailedPreconditionError(
                "default graphs: expected scopes to be left in the order they were entered"
            )
        default_graphs().pop()


_UNFEEDABLE = object()


_global_default: list[Graph] = []


def get_default_graph() -> Graph:
    """The innermost graph of the thread's ``with`` stack, otherwise the process's global one.

    Returns:
        A `Graph`.

    Example:
        >>> with tf.Graph() as graph:
        ...     found = tf.get_default_graph()
        >>> found is graph
        True
    """
    stack = default_graphs()
    if stack:
        return stack[-1]
    if not _global_default:
        _global_default.append(Graph())
    return _global_default[0]


def reset_default_graph() -> None:
    """Replace the default graph by an empty one.

    Raises:
        FailedPreconditionError: A ``with graph`` is open.
    """
    if default_graphs():
        raise FailedPreconditionError(
            "reset_default_graph(): expected no graph's 'with' block around the call"
        )
    _global_default[:] = [Graph()]
