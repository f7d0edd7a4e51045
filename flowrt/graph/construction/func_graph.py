"""The graph of a function: a branch, the condition or body of a loop, a callee.

A `FuncGraph` is built like any graph, while it is the default one. Tensors that it reads from enclosing
graphs are *captured*: each becomes an extra parameter, and an input of the operation that owns the function.
After construction, `FuncGraph.subgraph` returns the function as data.

Rules of this file:
  1. A function shares names and collections with its outer graph, so operation names are unique across both,
     and variables and losses are found wherever they were created.
  2. Parameters are _Feed nodes. The caller gives arguments in the order of ``parameters``: those of the
     function first, then the captures.
  3. A constant is copied instead of captured, so that values derived from it are known inside. Floating-point
     and complex constants are captured, since a gradient may be requested for them (the compiler copies them
     later).
  4. A function that represents whole steps (`FuncGraph.computes_anew`) captures only step inputs and
     persistent state; values that the outer graph computes from them are recomputed inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowrt.errors import ForeignElementError, InvalidArgumentError
from flowrt.graph.construction.constant import KNOWN, feed_op
from flowrt.graph.construction.graph import Graph
from flowrt.graph.construction.operation import Operation, Tensor
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.partial_value import partial_value
from flowrt.graph.source import user_line
from flowrt.graph.topology import reachable, sort_topologically

SEED_POSITIONS = 1 << 30
"""First number of random operations in functions; those of graphs are numbered by position."""


class FuncGraph(Graph):
    """A function under construction inside ``outer``; ``what`` names it in errors: "the body of 'while'".

    ``parameters`` are in order; ``captures`` maps the tensors of ``outer`` that it reads to their parameters;
    ``control_captures`` are the operations of ``outer`` that it waits for.
    """

    def __init__(self, outer: Graph, what: str) -> None:
        super().__init__()
        self.outer, self.what = outer, what
        self._names, self._collections, self._lock = outer._names, outer._collections, outer._lock
        self.gradient_functions, self.python_functions = outer.gradient_functions, outer.python_functions
        self.seed = outer.seed
        self._thread.scopes.inherit(outer._thread.scopes)
        self.signatures = outer.signatures
        self.parameters: list[Tensor] = []
        self.captures: dict[Tensor, Tensor] = {}
        self._origins: dict[Tensor, Tensor] = {}
        """Inverse of `captures`."""
        self.control_captures: dict[Operation, None] = {}
        self.computes_anew = False
        """Whether values it reads from its outer graph are recomputed inside it on each run."""
        self._computed: dict[Operation, Operation] = {}
        """Map from operations of the outer graph that it recomputes to their copies."""
        self.must_run: Callable[[FuncGraph], Sequence[Operation]] | None = getattr(outer, "must_run", None)
        """Finds operations that run with the function although nothing reads them; None: there are none.

        """
        self.observe: Callable[[Tensor], Any] | None = getattr(outer, "observe", None)
        """Returns a tensor's value, as a Python scalar or None, to the user's code that builds the function;
        None if values are not observable.
        """
        self.is_converted: bool = getattr(outer, "is_converted", False)
        """Whether autograph converted the user's code that builds the function."""

    @property
    def root(self) -> Graph:
        """The outermost graph, which is not a function and holds the variables."""
        return self.outer.root

    @property
    def seed_position(self) -> int:
        return SEED_POSITIONS + len(self._names)

    # --- parameters and captures

    def parameter(self, spec: TensorSpec, name: str = "arg", known: Any = None) -> Tensor:
        """A new parameter; ``known`` is the known part of its value (see `partial_value`)."""
        attrs: dict[str, Any] = {"dtype": spec.dtype, "shape": spec.shape}
        if known is not None:
            attrs[KNOWN] = known
        with self.control_dependencies(None), self.device(None):
            added = self.add(feed_op, self.operation_name(name), (), attrs, (spec.dtype,))
        self.parameters.append(added.outputs[0])
        return added.outputs[0]

    def stand_in(self, tensor: Tensor, name: str) -> Tensor:
        """A new parameter with the static information of ``tensor``."""
        return self.parameter(tensor.spec, name, partial_value(tensor.graph.node, tensor.ref))

    def is_inside(self, graph: Graph) -> bool:
        """Whether ``graph`` encloses this function."""
        return self.outer is graph or self.outer.is_inside(graph)

    def adopt(self, tensor: Tensor) -> Tensor | None:
        return self.capture(tensor) if self.is_inside(tensor.graph) else None

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this function that represents ``tensor`` of an enclosing graph."""
        found = self.captures.get(tensor)
        if found is not None:
            return found
        if tensor.graph is not self.outer:
            adopted = self.outer.adopt(tensor)
            if adopted is None:
                raise self.outer.foreign(tensor)
            return self.capture(adopted)
        if self.computes_anew and not _is_given(tensor.op):
            return self._computed_here(tensor)
        if _is_copied(tensor):
            self.captures[tensor] = copied = self.copy_constant(tensor.op.node)
            return copied
        own = tensor.op.name.rpartition("/")[2].lstrip("_")  # a name without scopes begins with a letter
        self.captures[tensor] = parameter = self.stand_in(tensor, f"{own or 'value'}-captured")
        self._origins[parameter] = tensor
        return parameter

    def _computed_here(self, tensor: Tensor) -> Tensor:
        """``tensor`` of the outer graph, recomputed here from step inputs and persistent state."""

        def missing(ops: Iterable[Operation]) -> list[Operation]:
            return [op for op in ops if op not in self._computed and not _is_given(op)]

        needed = reachable(
            missing([tensor.op]), lambda op: missing([*[t.op for t in op.inputs], *op.control_inputs])
        )
        for op in [op for op in self.outer.get_operations() if op in needed]:
            inputs, name, node = [self.capture(t) for t in op.inputs], self.unique_absolute(op.name), op.node
            waits = [self._computed[control] for control in op.control_inputs if control in self._computed]
            with self.device(None), self.device(node.device or None), self.control_dependencies(None):
                with self.control_dependencies(waits):
                    copy = self.append(op.op_def, name, inputs, node.attrs, node.outputs, node.source)
            self._computed[op] = copy
        return self._computed[tensor.op].outputs[tensor.index]

    def origin(self, tensor: Tensor) -> Tensor:
        found = self._origins.get(tensor)
        return tensor if found is None else found.graph.origin(found)

    def copy_constant(self, constant: Node) -> Tensor:
        """A copy of the constant in this function."""
        name = self.unique_absolute(constant.name)
        with self.control_dependencies(None):
            return self.add(
                constant.op, name, (), constant.attrs, [spec.dtype for spec in constant.outputs]
            ).outputs[0]

    def lift(self, op: Operation) -> None:
        """Move ``op``, which reads only captures, out of the function: it becomes a parameter of its name."""
        outside = {inner: outer for outer, inner in self.captures.items()}
        node, outer = op.node, self.outer
        inputs = [outside[t] for t in op.inputs]
        with outer, outer.device(None), outer.device(node.device or None):  # not that of the loop
            name = outer.unique_absolute(op.name)
            lifted = outer.add(node.op, name, inputs, node.attrs, [spec.dtype for spec in node.outputs])
        (spec,) = node.outputs
        lifted.outputs[0].set_shape(spec.shape)
        attrs = {"dtype": spec.dtype, "shape": spec.shape}
        op.node = Node(op.name, feed_op, (), (), attrs, "", node.source, node.outputs)
        self.parameters.append(op.outputs[0])
        self.captures[lifted.outputs[0]] = op.outputs[0]

    def outside(self, tensor: Tensor) -> Tensor:
        """``tensor`` of this function computed in the outermost graph, to be available before the function
        runs. Raises `InvalidArgumentError` if it depends on an argument.
        """
        outer_of = {inner: outer for outer, inner in self.captures.items()}
        copies: dict[Operation, Operation] = {}

        def found(t: Tensor) -> Tensor:
            if t in outer_of:
                outer = outer_of[t]
                return outer.graph.outside(outer)
            return copies[t.op].outputs[t.index]

        with self.root as root:
            for op in _in_order(tensor.op, set(outer_of)):
                if op.type == "_Feed":
                    raise op.error(
                        InvalidArgumentError,
                        f"expected a value that does not depend on the arguments of {self.what}; got"
                        f" {tensor!r}",
                    )
                inputs, name = [found(t) for t in op.inputs], root.unique_absolute(op.name)
                kinds = [spec.dtype for spec in op.node.outputs]
                copies[op] = root.add(op.op_def, name, inputs, op.node.attrs, kinds)
        return found(tensor)

    def captured(self) -> list[Tensor]:
        """The tensors of ``outer`` that the caller passes after the function's own arguments."""
        parameters = set(self.parameters)
        return [outer for outer, inner in self.captures.items() if inner in parameters]

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Iterator[None]:
        """`Graph.control_dependencies`, where the whole function waits for operations of enclosing graphs."""
        if control_inputs is None:
            with super().control_dependencies(None):
                yield
            return
        inside = []
        for element in control_inputs:
            if hasattr(element, "_as_graph_element"):
                element = element._as_graph_element()
            op = element.op if isinstance(element, Tensor) else element
            if isinstance(op, Operation) and self.is_inside(op.graph):
                self.control_captures[op] = None
            else:
                inside.append(element)
        with super().control_dependencies(inside):
            yield

    @contextmanager
    def rollback_on_error(self) -> Iterator[None]:
        """`Graph.rollback_on_error`, which also forgets what the function captured for the operations."""
        maps: Sequence[dict[Any, Any]] = (
            self.captures, self._origins, self._computed, self.control_captures
        )  # fmt: skip
        parameters, kept = list(self.parameters), [(each, dict(each)) for each in maps]
        try:
            with super().rollback_on_error():
                yield
        except BaseException:
            self.parameters[:] = parameters
            for each, entries in kept:
                each.clear()
                each.update(entries)
            raise

    # --- the function as data

    def subgraph(self, fetches: Sequence[Tensor], targets: Sequence[Operation] = ()) -> Subgraph:
        """The nodes needed by ``fetches``, ``targets`` and `must_run`, in order, all parameters as feeds."""
        if self.must_run is not None:
            targets = list(dict.fromkeys([*targets, *self.must_run(self)]))
        roots = [*[t.op.name for t in (*self.parameters, *fetches)], *[op.name for op in targets]]
        needed = reachable(roots, lambda name: self.node(name).predecessors)
        nodes = {op.name: op.node for op in self.get_operations() if op.name in needed}
        return Subgraph(
            sort_topologically(nodes),
            tuple(t.op.name for t in self.parameters),
            tuple(t.ref for t in fetches),
            tuple(op.name for op in targets),
        )

    @staticmethod
    def of(subgraph: Subgraph, outer: Graph, what: str) -> FuncGraph:
        """A function under construction, restored from ``subgraph`` with the same operation names."""
        graph = FuncGraph(outer, what)
        for node in subgraph:
            graph._restore(node)
        graph.parameters = [graph.operations[name].outputs[0] for name in subgraph.feeds]
        return graph

    def _restore(self, node: Node) -> None:
        operations = self._operations
        operations[node.name] = Operation(self, node)

    def again(self, fetches: Sequence[Tensor], before: Subgraph) -> Subgraph:
        """`subgraph` of a function that was ``before``, keeping the targets it had."""
        return self.subgraph(fetches, [self.operations[name] for name in before.targets])

    def tensor(self, ref: Ref) -> Tensor:
        """The tensor with this name in the subgraph."""
        return self.operations[ref[0]].outputs[ref[1]]

    def is_twin(self, graph: Graph) -> bool:
        """Whether ``graph`` is the same function under construction as the user built it: names are unique,
        so one common name suffices.
        """
        return (
            isinstance(graph, FuncGraph)
            and graph is not self
            and any(name in self.operations for name in graph.operations)
        )

    def counterpart(self, tensor: Tensor) -> Tensor:
        """The equivalent of ``tensor`` of a twin in this function; pruned operations are restored for it."""
        missing, stack = set[Operation](), [tensor.op]
        while stack:
            op = stack.pop()
            if op.name not in self.operations:
                missing.add(op)
                stack += [t.op for t in op.inputs] + list(op.control_inputs)
        for op in tensor.graph.get_operations():
            if op in missing:
                self._restore(op.node)
        return self.tensor(tensor.ref)

    def foreign(self, element: Tensor | Operation) -> ForeignElementError:
        """The error for an element of this function that was passed to code outside it."""
        op = element.op if isinstance(element, Tensor) else element
        kind, made = type(element).__name__.lower(), f" (made at {op.source})" if op.source else ""
        return ForeignElementError(
            f"{kind} {element.name!r}{made} is inside {self.what} and cannot be used outside. Return it "
            "from there",
            op=op.name,
            op_type=op.type,
            source=user_line(),
        )


def _in_order(last: Operation, known: set[Tensor]) -> list[Operation]:
    """``last`` and the operations that it depends on and that are not ``known``, producers first."""

    def unknown(ops: Iterable[Operation]) -> list[Operation]:
        return [op for op in ops if not all(t in known for t in op.outputs[:1])]

    needed = reachable(unknown([last]), lambda op: unknown([t.op for t in op.inputs]))
    return [op for op in last.graph.get_operations() if op in needed]


def _is_given(op: Operation) -> bool:
    """Whether it is an input of the step, or names state that outlives the step."""
    return op.op_def.effect in (Effect.SOURCE, Effect.HANDLE)


def _is_copied(tensor: Tensor) -> bool:
    is_constant = tensor.op.type == "Const" and not tensor.op.control_inputs
    return is_constant and not (tensor.dtype.is_floating or tensor.dtype.is_complex)
