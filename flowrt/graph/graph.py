"""The graph a user builds: `Graph`, `Operation`, `Tensor`, and the scopes that colour new operations.

A `Graph` is append-only. Each `Operation` is a handle on an immutable `Node` (see `flowrt.graph.node`): the compiler
takes the nodes and never sees this file. What may still change after creation (``set_shape``, a device set by hand,
an added control input) replaces the operation's node and counts in ``Graph.mutations``, which makes cached plans stale;
growing the graph does not.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, final

from flowrt.device.spec import DeviceSpec, format_device, merge_device_names, parse_device
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, NotFoundError
from flowrt.graph.graph_def import nodes_to_graph_def
from flowrt.graph.node import Node, Ref, Source, TensorSpec
from flowrt.graph.op_def import OpDef, ShapeContext, nearest
from flowrt.graph.partial_value import partial_value
from flowrt.graph.shapes import Shape, TensorShape, as_shape, merge

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_VALID_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_VALID_SCOPE = re.compile(r"[A-Za-z0-9_.\\/>-]*")

DeviceFunction: TypeAlias = Callable[["Operation"], Any]


def user_source() -> Source | None:
    """The innermost frame of the caller's that does not belong to flowrt."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_PACKAGE):
        if frame.f_back is None:
            return None
        frame = frame.f_back
    key = (id(frame.f_code), frame.f_lasti)
    found = _sources.get(key)
    if found is None or found.code is not frame.f_code:
        found = _sources[key] = Source(frame.f_code, frame.f_lasti)
    return found


# Equal facts are one object: the garbage collector walks over every object that an operation is made of, and took half
# of the time that a graph of 100,000 operations needs to build before these were shared.
_sources: dict[tuple[int, int], Source] = {}
_outputs: dict[tuple[DType, Shape], tuple[TensorSpec]] = {}


def _one_output(dtype: DType, shape: Shape) -> tuple[TensorSpec]:
    key = (dtype, shape)
    found = _outputs.get(key)
    if found is None:
        found = _outputs[key] = (TensorSpec(dtype, shape),)
    return found


@final
class Tensor:
    """One output of an operation: symbolic, without a value until a session runs it.

    Python's operators and indexing add operations to the tensor's graph (see `flowrt.graph.ops.operators`).
    """

    __slots__ = ("__weakref__", "dtype", "index", "op", "ref")
    __array_priority__ = 100  # so that ``array * tensor`` asks the tensor first
    __array_ufunc__ = None

    def __init__(self, op: Operation, index: int, dtype: DType) -> None:
        self.op = op
        self.index = index
        self.dtype = dtype
        self.ref: Ref = (op.name, index)

    @property
    def graph(self) -> Graph:
        return self.op.graph

    @property
    def name(self) -> str:
        """``operation:index``."""
        return f"{self.op.name}:{self.index}"

    @property
    def device(self) -> str:
        return self.op.device

    @property
    def spec(self) -> TensorSpec:
        return self.op.node.outputs[self.index]

    @property
    def shape(self) -> TensorShape:
        """What is known of the shape."""
        return TensorShape(self.spec.shape)

    def get_shape(self) -> TensorShape:
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Add facts about the shape. Raises `InvalidArgumentError` when they contradict what is known."""
        try:
            refined = merge(self.spec.shape, as_shape(shape))
        except InvalidArgumentError as error:
            raise self.op.error(InvalidArgumentError, f"set_shape: {error}") from None
        if refined != self.spec.shape:
            outputs = list(self.op.node.outputs)
            outputs[self.index] = TensorSpec(self.dtype, refined)
            self.op.mutate(outputs=tuple(outputs))

    def consumers(self) -> list[Operation]:
        """The operations that read this tensor. Walks the graph: for inspection, not for inner loops."""
        return [op for op in self.graph.get_operations() if self in op.inputs]

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """Its value in ``session`` or the default session.

        Raises `FailedPreconditionError` when there is no session.
        """
        return _session_for(session, "eval()").run(self, feed_dict)

    if TYPE_CHECKING:  # set by flowrt.graph.ops.operators once the ops exist
        def __add__(self, other: Any, /) -> Any: ...
        def __radd__(self, other: Any, /) -> Any: ...
        def __sub__(self, other: Any, /) -> Any: ...
        def __rsub__(self, other: Any, /) -> Any: ...
        def __mul__(self, other: Any, /) -> Any: ...
        def __rmul__(self, other: Any, /) -> Any: ...
        def __truediv__(self, other: Any, /) -> Any: ...
        def __rtruediv__(self, other: Any, /) -> Any: ...
        def __floordiv__(self, other: Any, /) -> Any: ...
        def __rfloordiv__(self, other: Any, /) -> Any: ...
        def __mod__(self, other: Any, /) -> Any: ...
        def __rmod__(self, other: Any, /) -> Any: ...
        def __pow__(self, other: Any, /) -> Any: ...
        def __rpow__(self, other: Any, /) -> Any: ...
        def __matmul__(self, other: Any, /) -> Any: ...
        def __rmatmul__(self, other: Any, /) -> Any: ...
        def __and__(self, other: Any, /) -> Any: ...
        def __rand__(self, other: Any, /) -> Any: ...
        def __or__(self, other: Any, /) -> Any: ...
        def __ror__(self, other: Any, /) -> Any: ...
        def __xor__(self, other: Any, /) -> Any: ...
        def __rxor__(self, other: Any, /) -> Any: ...
        def __lt__(self, other: Any, /) -> Any: ...
        def __le__(self, other: Any, /) -> Any: ...
        def __gt__(self, other: Any, /) -> Any: ...
        def __ge__(self, other: Any, /) -> Any: ...
        def __getitem__(self, other: Any, /) -> Any: ...
        def __neg__(self) -> Any: ...
        def __abs__(self) -> Any: ...
        def __invert__(self) -> Any: ...

    def __iter__(self) -> NoReturn:
        raise DTypeError(
            f"Tensor {self.name!r} cannot be iterated: the graph has no values yet. Use flowrt.unstack()"
        )

    def __len__(self) -> NoReturn:
        raise DTypeError(
            f"Tensor {self.name!r} has no len(): use .shape, or flowrt.shape() for the run-time value"
        )

    def __bool__(self) -> NoReturn:
        raise DTypeError(
            f"Tensor {self.name!r} has no truth value: the graph has no values yet. Use flowrt.cond() to choose by a"
            " tensor, and 'is None' to test for absence"
        )

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise DTypeError(
            f"Tensor {self.name!r} has no value yet: expected an array. Run it in a session first"
        )

    def __repr__(self) -> str:
        return f"<flowrt.Tensor {self.name!r} shape={self.shape} dtype={self.dtype.name}>"

    __str__ = __repr__


@final
class Operation:
    """A handle on one node of a graph: ``inputs`` and ``outputs`` are tensors, everything else is the node's."""

    __slots__ = ("__weakref__", "control_inputs", "graph", "inputs", "name", "node", "outputs")

    def __init__(
        self, graph: Graph, node: Node, inputs: tuple[Tensor, ...], control_inputs: tuple[Operation, ...]
    ) -> None:
        self.graph = graph
        self.node = node
        self.name = node.name
        self.inputs = inputs
        self.control_inputs = control_inputs
        self.outputs = tuple([Tensor(self, i, spec[0]) for i, spec in enumerate(node.outputs)])

    @property
    def type(self) -> str:
        return self.node.op.name

    @property
    def op_def(self) -> OpDef:
        return self.node.op

    @property
    def device(self) -> str:
        return self.node.device

    @property
    def source(self) -> str | None:
        """``file:line`` of the user's call."""
        return None if self.node.source is None else str(self.node.source)

    @property
    def node_def(self) -> Node:
        return self.node

    def get_attr(self, name: str) -> Any:
        """An attribute's value. Raises `NotFoundError`."""
        if name not in self.node.attrs:
            raise self.error(NotFoundError, f"no attribute {name!r}. {nearest(name, self.node.attrs)}")
        return self.node.attrs[name]

    def colocation_groups(self) -> list[str]:
        """The ``loc:@name`` entries, or its own when it has none."""
        return list(self.node.attrs.get("_class", (f"loc:@{self.name}",)))

    def mutate(self, **changes: Any) -> None:
        """Replace fields of the node; plans that were made before are not used again."""
        self.graph.check_building()
        self.node = self.node.replace(**changes)
        self.graph.mutations += 1

    def add_control_input(self, op: Operation) -> None:
        """Make this operation wait for ``op``. Raises `InvalidArgumentError` if ``op`` depends on this one."""
        if op.graph is not self.graph:
            raise self.error(InvalidArgumentError, f"control input {op.name!r} is of another graph")
        if depends_on(op, self):
            raise self.error(
                InvalidArgumentError, f"control input {op.name!r} depends on this operation: a cycle"
            )
        self.control_inputs += (op,)
        self.mutate(controls=(*self.node.controls, op.name))

    _add_control_input = add_control_input

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it in ``session`` or the default session."""
        _session_for(session, "run()").run(self, feed_dict)

    def error(self, cls: Any, message: str) -> Any:
        """An error of class ``cls`` that says where: this operation, its type and the user's line."""
        return cls(message, op=self.name, op_type=self.type, source=self.source)

    def __repr__(self) -> str:
        return f"<flowrt.Operation {self.name!r} type={self.type}>"


def depends_on(op: Operation, other: Operation) -> bool:
    """Whether ``op`` is ``other`` or reads or waits for it, directly or not."""
    seen, stack = {op}, [op]
    while stack:
        current = stack.pop()
        if current is other:
            return True
        for producer in [t.op for t in current.inputs] + list(current.control_inputs):
            if producer not in seen:
                seen.add(producer)
                stack.append(producer)
    return False


class _Controller:
    """One ``control_dependencies`` scope, and the operations made in it (which need not wait twice)."""

    __slots__ = ("made", "waits_for")

    def __init__(self, waits_for: list[Operation]) -> None:
        self.waits_for, self.made = waits_for, set[Operation]()


class _Scopes(threading.local):
    """A thread's scopes on one graph."""

    def __init__(self) -> None:
        self.name = ""
        self.device: str = ""
        self.device_functions: tuple[
            DeviceFunction | str, ...
        ] = ()  # used instead of `device` when non-empty
        self.controllers: tuple[_Controller, ...] = ()
        self.colocation: tuple[str, ...] = ()
        self.gradient_overrides: dict[str, str] = {}


class Graph:
    """A dataflow graph under construction.

    ``with Graph():`` (or ``with graph.as_default():``) makes it the default graph of the thread. Several threads may
    add operations to one graph. ``seed`` is the graph-level random seed,
    ``gradient_functions`` the gradients of `custom_gradient` by name, ``python_functions`` those of ``py_func``, ``mutations`` counts changes that make
    plans stale.
    """

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._names: dict[str, int] = {}  # lower-cased name -> how often it was asked for
        self._collections: dict[Any, list[Any]] = {}
        self._valid_names: set[str] = set()  # names that were checked: scripts use few different ones
        self._finalized = False
        self._lock = threading.RLock()
        self._scopes = _Scopes()
        self.gradient_functions: dict[str, Any] = {}
        self.python_functions: dict[str, Any] = {}
        self.seed: int | None = None
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
        """Append an operation under the (already unique) ``name``, coloured by the thread's scopes.

        ``dtypes`` are its outputs'. Raises what the shape rule raises; the graph is then unchanged.
        """
        scopes = self._scopes
        with self._lock:
            if self._finalized:
                self.check_building()
            source = user_source()
            refs = tuple([t.ref for t in inputs])
            outputs = self._infer(op_def, name, inputs, refs, attrs, dtypes, source)
            controls = self._control_inputs(inputs) if scopes.controllers else ()
            if scopes.colocation and "_class" not in attrs:
                attrs = {**attrs, "_class": scopes.colocation}
            if scopes.gradient_overrides and op_def.name in scopes.gradient_overrides:
                attrs = {**attrs, "_gradient_op_type": scopes.gradient_overrides[op_def.name]}
            node = Node(
                name, op_def, refs, tuple([c.name for c in controls]), attrs, scopes.device, source, outputs
            )
            op = Operation(self, node, tuple(inputs), controls)
            if scopes.device_functions:
                op.node = node.replace(device=_apply_device_functions(op, scopes.device_functions))
            self._operations[name] = op
            for controller in scopes.controllers:
                controller.made.add(op)
        return op

    def _infer(
        self,
        op_def: OpDef,
        name: str,
        inputs: Sequence[Tensor],
        refs: tuple[Ref, ...],
        attrs: Mapping[str, Any],
        dtypes: Sequence[DType],
        source: Source | None,
    ) -> tuple[TensorSpec, ...]:
        specs = [t.op.node.outputs[t.index] for t in inputs]
        context = ShapeContext(
            op_def,
            attrs,
            [s[1] for s in specs],
            [s[0] for s in specs],
            lambda i: partial_value(self.node, refs[i]),
        )
        try:
            shapes = op_def.shape(context)
        except InvalidArgumentError as error:
            if error.op is not None:
                raise
            where = None if source is None else str(source)
            described = ", ".join(str(s) for s in specs)
            message = f"{error.message}; inputs are ({described})"
            raise type(error)(message, op=name, op_type=op_def.name, source=where) from None
        except (TypeError, ValueError, IndexError) as error:  # a host input of a rank the rule did not expect
            described = ", ".join(f"{spec}={context.value(i)}" for i, spec in enumerate(specs))
            message = f"expected inputs of other shapes or values; got ({described}): {error}"
            raise InvalidArgumentError(
                message, op=name, op_type=op_def.name, source=None if source is None else str(source)
            ) from error
        if len(dtypes) == 1:
            return _one_output(dtypes[0], shapes[0])
        return tuple([TensorSpec(d, s) for d, s in zip(dtypes, shapes, strict=True)])

    def _control_inputs(self, inputs: Sequence[Tensor]) -> tuple[Operation, ...]:
        producers = {t.op for t in inputs}
        found: dict[Operation, None] = {}
        for controller in self._scopes.controllers:
            if producers.isdisjoint(controller.made):  # an input made in this scope has waited already
                found.update(dict.fromkeys(controller.waits_for))
        return tuple(op for op in found if op not in producers)

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
            raise NotFoundError(f"operation {name!r}: the graph has none. {nearest(name, self._operations)}")
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

        Raises `DTypeError` for other types, `InvalidArgumentError` for a foreign graph, `NotFoundError` for a name.
        """
        if hasattr(obj, "_as_graph_element"):
            obj = obj._as_graph_element()
        if isinstance(obj, str):
            obj = self.get_tensor_by_name(obj) if ":" in obj else self.get_operation_by_name(obj)
        if (isinstance(obj, Tensor) and allow_tensor) or (isinstance(obj, Operation) and allow_operation):
            if obj.graph is not self:
                raise InvalidArgumentError(f"{obj!r} is not an element of this graph")
            return obj
        wanted = " or ".join(["a Tensor"] * allow_tensor + ["an Operation"] * allow_operation)
        raise DTypeError(f"expected {wanted} or the name of one; got {obj!r}")

    def is_feedable(self, tensor: Tensor) -> bool:
        return tensor not in self._collections.get(_UNFEEDABLE, ())

    def prevent_feeding(self, tensor: Tensor) -> None:
        self._collections.setdefault(_UNFEEDABLE, []).append(tensor)

    def is_fetchable(self, _: Any) -> bool:
        return True

    def as_graph_def(self, from_version: int | None = None, add_shapes: bool = False) -> Any:
        """The operations as a GraphDef message: all, or those added since ``version`` was ``from_version``.

        ``add_shapes`` adds what is known of the output shapes as attribute "_output_shapes". Raises
        `UnimplementedError`, which names the operation, for an attribute that a message cannot hold.
        """
        nodes = [op.node for op in self.get_operations()[from_version or 0 :]]
        return nodes_to_graph_def(nodes, add_shapes=add_shapes)

    # --- freezing

    def finalize(self) -> None:
        """Refuse further operations."""
        self._finalized = True

    @property
    def finalized(self) -> bool:
        return self._finalized

    def check_building(self) -> None:
        if self._finalized:
            raise FailedPreconditionError("the graph is finalized: it cannot be changed any more")

    def rollback_on_error(self) -> _Rollback:
        """A context that takes back every operation added in it when it ends with an exception."""
        return _Rollback(self)

    @property
    def version(self) -> int:
        """How many operations it has."""
        return len(self._operations)

    # --- names

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """``name`` in the current name scope, made unique (without regard to case) with ``_1``, ``_2``, …"""
        scope = self._scopes.name
        return self.unique_absolute(f"{scope}/{name}" if scope else name, mark_as_used)

    def unique_absolute(self, name: str, mark_as_used: bool = True) -> str:
        with self._lock:
            names, key = self._names, name.lower()
            count = names.get(key, 0)
            if mark_as_used:
                names[key] = count + 1
            if count == 0:
                return name
            while True:
                candidate = f"{name}_{count}"
                count += 1
                if candidate.lower() not in names:
                    break
            if mark_as_used:
                names[key] = count
                names[candidate.lower()] = 1
            return candidate

    def operation_name(self, name: str) -> str:
        """The full name of a new operation asked for as ``name``; a trailing ``/`` takes it as it stands.

        Raises `InvalidArgumentError` for characters that names may not have.
        """
        if name.endswith("/"):
            full = name[:-1]
            if full in self._operations:
                return self.unique_absolute(full)
            self._names.setdefault(full.lower(), 1)
            return full
        if name not in self._valid_names:
            if not _VALID_NAME.fullmatch(name):
                raise InvalidArgumentError(
                    f"operation name: expected letters, digits and _.\\->/ ; got {name!r}"
                )
            self._valid_names.add(name)
        return self.unique_name(name)

    @contextmanager
    def name_scope(self, name: str | None) -> Iterator[str]:
        """Prefix new names with a fresh ``name/``; ``"x/"`` re-enters a scope as it stands, None and "" the root."""
        if name and not _VALID_SCOPE.fullmatch(name):
            raise InvalidArgumentError(f"name scope: expected letters, digits and _.\\->/ ; got {name!r}")
        scopes = self._scopes
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
        return self._scopes.name

    # --- devices, order, place

    @contextmanager
    def device(self, device_name_or_function: Any) -> Iterator[None]:
        """Place new operations: a (partial) device name merges field by field with the outer ones, the inner wins.

        A function gets each new operation and returns a device; None clears the outer scopes. Raises
        `InvalidArgumentError` for a name that does not parse.
        """
        scopes = self._scopes
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

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """New operations wait for ``control_inputs`` (operations, tensors, variables); None clears outer scopes."""
        scopes = self._scopes
        old = scopes.controllers
        if control_inputs is None:
            scopes.controllers = ()
        else:
            elements = [self.as_graph_element(c) for c in control_inputs]
            ops = [e if isinstance(e, Operation) else e.op for e in elements]
            scopes.controllers = (*old, _Controller(list(dict.fromkeys(ops))))
        try:
            yield
        finally:
            scopes.controllers = old

    @contextmanager
    def colocate_with(self, op: Any, ignore_existing: bool = False) -> Iterator[None]:
        """Keep new operations on ``op``'s device."""
        scopes = self._scopes
        old = scopes.device, scopes.device_functions, scopes.colocation
        if op is not None:
            element = self.as_graph_element(op)
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
        """New operations of the types in ``op_type_map`` get the gradient registered under the mapped name."""
        scopes = self._scopes
        old = scopes.gradient_overrides
        scopes.gradient_overrides = {**old, **op_type_map}
        try:
            yield
        finally:
            scopes.gradient_overrides = old

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
        """A copy of the collection; with ``scope`` those of its items whose name begins with that pattern."""
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
        _defaults.stack.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not _defaults.stack or _defaults.stack[-1] is not self:
            raise FailedPreconditionError(
                "default graphs: expected scopes to be left in the order they were entered"
            )
        _defaults.stack.pop()


_UNFEEDABLE = object()


class _Rollback:
    """See `Graph.rollback_on_error`; holds the graph's lock meanwhile."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        graph = self._graph
        graph._lock.acquire()
        self._count = len(graph._operations)
        self._names = dict(graph._names)
        self._collections = {k: list(v) for k, v in graph._collections.items()}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        graph = self._graph
        if kind is not None:
            for name in list(graph._operations)[self._count :]:
                del graph._operations[name]
            graph._names, graph._collections = self._names, self._collections
        graph._lock.release()


def _apply_device_functions(op: Operation, scopes: tuple[DeviceFunction | str, ...]) -> str:
    device = ""
    for scope in scopes:
        chosen = scope(op) if callable(scope) else scope
        name = chosen.to_string() if isinstance(chosen, DeviceSpec) else chosen or ""
        device = merge_device_names(device, name)
    return device


class _Defaults(threading.local):
    """A thread's stacks of default graphs and sessions."""

    def __init__(self) -> None:
        self.stack: list[Graph] = []
        self.sessions: list[Any] = []


_defaults = _Defaults()
_global_default: list[Graph] = []


def get_default_graph() -> Graph:
    """The innermost graph of the thread's ``with`` stack, otherwise the process's global one."""
    stack = _defaults.stack
    if stack:
        return stack[-1]
    if not _global_default:
        _global_default.append(Graph())
    return _global_default[0]


def reset_default_graph() -> None:
    """Replace the global default graph by an empty one. Raises `FailedPreconditionError` inside a ``with graph``."""
    if _defaults.stack:
        raise FailedPreconditionError(
            "reset_default_graph(): expected no graph's 'with' block around the call"
        )
    _global_default[:] = [Graph()]


def leave_default_graph(graph: Graph) -> None:
    """Take the innermost ``graph`` off the thread's stack, wherever it is: interactive scopes may end in any order."""
    stack = _defaults.stack
    if graph in stack:
        del stack[len(stack) - 1 - stack[::-1].index(graph)]


def default_sessions() -> list[Any]:
    """The thread's stack of default sessions, for `Session` to push to."""
    return _defaults.sessions


def _session_for(session: Any, what: str) -> Any:
    if session is None and not _defaults.sessions:
        raise FailedPreconditionError(
            f"{what}: expected a session; got none. Pass session=, or use 'with Session():'"
        )
    return session if session is not None else _defaults.sessions[-1]
