"""`Tensor` and `Operation`: the user's handles to a graph's nodes.

Both are made by `Graph.add` only. An operation's node may be replaced (``set_shape``, a device set by hand,
an added control input); each replacement increments ``Graph.mutations``, which invalidates earlier plans.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from traceback import StackSummary
from typing import TYPE_CHECKING, Any, final

from flowrt.base.in_notebook import InNotebook
from flowrt.dtypes import DType
from flowrt.errors import (
    FailedPreconditionError,
    ForeignElementError,
    InvalidArgumentError,
    NotFoundError,
    OpError,
    nearest,
)
from flowrt.graph.construction.defaults import default_sessions
from flowrt.graph.construction.python_values import Symbolic
from flowrt.graph.node import COLOCATION, SET_SHAPE, Node, Ref, TensorSpec, set_outputs
from flowrt.graph.op_def import OpDef
from flowrt.graph.shapes import TensorShape, as_shape, merge
from flowrt.graph.source import misuse, traceback_of
from flowrt.graph.typing import ShapeLike

if TYPE_CHECKING:
    from flowrt.graph.construction.graph import Graph


@final
class Tensor(Symbolic):
    """One output of an operation: symbolic, without a value until a session runs it.

    Python's operators and indexing add operations to the tensor's graph (see
    `flowrt.graph.ops.surface.operators`).

    Example:
        >>> x = tf.constant([[1.0, 2.0], [3.0, 4.0]], name='x')
        >>> x
        <flowrt.Tensor 'x:0' shape=(2, 2) dtype=float32>
        >>> (x[0] * 2 + 1).eval()
        array([3., 5.], dtype=float32)
    """

    # with a dict, empty unless used: libraries such as tflearn hang their variables and scopes on tensors
    __slots__ = ("__dict__", "__weakref__", "dtype", "index", "op", "ref")
    __array_priority__ = 100  # so that ``array * tensor`` calls the tensor's method first

    def __init__(self, op: Operation, index: int, dtype: DType) -> None:
        self.op = op
        self.index = index
        self.dtype = dtype  # type: ignore[misc]  # of a base that only reads it
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
    def _op(self) -> Operation:
        """TensorFlow's attribute, which public code reads, as OpenAI's baselines do."""
        return self.op

    @property
    def spec(self) -> TensorSpec:
        return self.op.node.outputs[self.index]

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return TensorShape(self.spec.shape)

    def get_shape(self) -> TensorShape:
        return self.shape

    def set_shape(self, shape: ShapeLike) -> None:
        """Merge static information into the shape. Raises `InvalidArgumentError` if they are incompatible.

        Operations that read the tensor rely on it: a step in which its value has another shape raises
        `InvalidArgumentError`. What needs the shape alone, such as `tf.shape` or `tf.zeros_like`, is computed
        from what was said, as in TensorFlow 1.
        """
        node = self.op.node
        try:
            refined = merge(self.spec.shape, as_shape(shape))
        except InvalidArgumentError as error:
            raise self.op.error(InvalidArgumentError, f"set_shape: {error}") from None
        if refined != self.spec.shape:
            outputs = list(node.outputs)
            outputs[self.index] = TensorSpec(self.dtype, refined)
            self.op.mutate(
                outputs=tuple(outputs),
                attrs={**node.attrs, SET_SHAPE: tuple({*set_outputs(node), self.index})},
            )

    def consumers(self) -> list[Operation]:
        """The operations that read this tensor. Walks the graph: for inspection, not for inner loops."""
        return [op for op in self.graph.get_operations() if self in op.inputs]

    def eval(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> Any:
        """The tensor's value in ``session`` or the default session.

        Raises `FailedPreconditionError` when there is no session.
        """
        return _session_for(session, "eval()").run(self, feed_dict)

    def __repr__(self) -> str:
        return f"<flowrt.Tensor {self.name!r} shape={self.shape} dtype={self.dtype.name}>"

    __str__ = __repr__


@final
class Operation(InNotebook):
    """A handle to one node of a graph: ``inputs`` and ``outputs`` are tensors; all else is the node's."""

    __slots__ = ("__weakref__", "_outputs", "graph", "name", "node")

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph = graph
        self.node = node
        self.name = node.name
        specs = node.outputs
        if len(specs) == 1:
            # In no tuple: the collector walks over all of a graph, and these would be a fifth of its objects.
            self._outputs: Tensor | tuple[Tensor, ...] = Tensor(self, 0, specs[0][0])
        else:
            self._outputs = tuple([Tensor(self, i, spec[0]) for i, spec in enumerate(specs)])

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        outputs = self._outputs
        return outputs if isinstance(outputs, tuple) else (outputs,)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        operations = self.graph.operations
        return tuple([operations[name].outputs[index] for name, index in self.node.inputs])

    @property
    def control_inputs(self) -> tuple[Operation, ...]:
        operations = self.graph.operations
        return tuple([operations[name] for name in self.node.controls])

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
    def traceback(self) -> StackSummary:
        """The user's calls that led to it, outermost first; the last one is at `source`.

        Example:
            >>> tf.constant(1.0).op.traceback[-1].line
            'tf.constant(1.0).op.traceback[-1].line'
        """
        return traceback_of(self.node.source)

    @property
    def node_def(self) -> Node:
        return self.node

    def get_attr(self, name: str) -> Any:
        """An attribute's value. Raises `NotFoundError`."""
        if name not in self.node.attrs:
            raise self.error(NotFoundError, f"no attribute {name!r}.{nearest(name, self.node.attrs)}")
        return self.node.attrs[name]

    def colocation_groups(self) -> list[str]:
        """The ``loc:@name`` entries, or that of its own name if it has none."""
        return list(self.node.attrs.get(COLOCATION, (f"loc:@{self.name}",)))

    def mutate(self, **changes: Any) -> None:
        """Replace fields of the node; earlier plans become invalid."""
        self.graph.check_building()
        self.node = self.node.replace(**changes)
        self.graph.mutations += 1

    def extend(
        self, inputs: Sequence[Tensor], attrs: Mapping[str, Any], outputs: Sequence[TensorSpec]
    ) -> list[Tensor]:
        """Append ``inputs`` and ``outputs`` to an operation that owns functions, with ``attrs`` that hold the
        functions for them. Returns the new outputs; existing outputs keep their meaning.
        """
        first = len(self.outputs)
        added = [Tensor(self, first + i, spec.dtype) for i, spec in enumerate(outputs)]
        self._outputs = (*self.outputs, *added)
        self.mutate(
            inputs=(*self.node.inputs, *[t.ref for t in inputs]),
            attrs={**self.node.attrs, **attrs},
            outputs=(*self.node.outputs, *outputs),
        )
        return added

    def retract(self, node: Node) -> None:
        """Undo `extend` since the operation had ``node``."""
        self._outputs = self.outputs[: len(node.outputs)]
        self.mutate(inputs=node.inputs, attrs=node.attrs, outputs=node.outputs)

    def add_control_input(self, op: Operation) -> None:
        """Make this operation wait for ``op``. Raises `InvalidArgumentError` if ``op`` depends on it."""
        if op.graph is not self.graph:
            raise self.error(ForeignElementError, f"control input {op.name!r} belongs to another graph")
        if depends_on(op, self):
            raise self.error(
                InvalidArgumentError,
                f"expected a graph without cycles; control input {op.name!r} depends on this",
            )
        self.mutate(controls=(*self.node.controls, op.name))

    _add_control_input = add_control_input

    def values(self) -> tuple[Tensor, ...]:
        """The outputs."""
        return tuple(self.outputs)

    def run(self, feed_dict: Mapping[Any, Any] | None = None, session: Any = None) -> None:
        """Run it in ``session`` or the default session."""
        _session_for(session, "run()").run(self, feed_dict)

    def error(self, cls: Any, message: str) -> Any:
        """An error of class ``cls`` that names this operation, its type and the user's line."""
        return cls(message, op=self.name, op_type=self.type, source=self.source)

    def describe_calls(self, error: OpError) -> None:
        """Have the traceback of ``error``, raised by this operation, also tell which calls made it, if there
        were several: TensorFlow 1's "Caused by op".
        """
        frames = self.traceback
        if len(frames) > 1 and not hasattr(error, "__notes__"):
            error.add_note("".join([f"{self.type} {self.name!r} was made by\n", *frames.format()]).rstrip())

    def __repr__(self) -> str:
        return f"<flowrt.Operation {self.name!r} type={self.type}>"


def depends_on(op: Operation, other: Operation) -> bool:
    """Whether ``op`` is ``other`` or depends on it, directly or not."""
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


def _session_for(session: Any, what: str) -> Any:
    if session is None and not default_sessions():
        raise misuse(
            f"{what}: expected a session; got none. Pass session=, or use 'with Session():'",
            FailedPreconditionError,
        )
    return session if session is not None else default_sessions()[-1]
