"""A trace: a Python function run once with symbolic tensors, as a function of the graph.

Rules of this file:
  1. Tensors that a trace reads from enclosing graphs become inputs of every call. The trace belongs to the
     innermost of those graphs, and any function inside that graph may call it.
  2. Operations with effects run whenever a call does, in the order of the Python code: writes of one variable
     among themselves; external effects (a print, an assertion, a call of Python) after all earlier writes and
     before all later ones.
  3. Python code that needs a tensor's value (``if x > 0:``) gets it if it is known for the traced call, from
     constants and arrays, with a `TracerWarning`: the trace contains only that path through the code.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from flowrt.base.structure import flatten, pack_as
from flowrt.control_flow.functions import without_placeholders
from flowrt.control_flow.signatures import Arguments, Signature, is_within, with_flow, without_source
from flowrt.errors import DTypeError, InvalidArgumentError, TracerWarning
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.construction.operation import Operation, Tensor, depends_on
from flowrt.graph.effects import is_stateful
from flowrt.graph.functions.control_flow import call_op
from flowrt.graph.functions.known_values import KnownValues
from flowrt.graph.node import Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.source import misuse, user_source_at


class _Result(NamedTuple):
    """A leaf of the Python function's result, and its output; None if it has none."""

    leaf: Any
    tensor: Tensor | None

    @staticmethod
    def of(graph: FuncGraph, leaf: Any, text: str) -> _Result:
        if leaf is None:
            return _Result(leaf, None)
        if isinstance(leaf, Operation):
            if leaf.graph is not graph:
                raise leaf.error(
                    InvalidArgumentError, f"function {text}: returned an operation from outside it"
                )
            return _Result(leaf, None)
        try:
            tensor = convert_to_tensor(leaf.flow if hasattr(leaf, "_with_flow") else leaf)
        except DTypeError as error:
            message = f"function {text}: expected results that can become tensors; {without_source(error)}"
            raise misuse(message, DTypeError) from None
        return _Result(leaf, graph.as_graph_element(tensor))


@final
class _Observer:
    """Provides the values that are known for the traced call of ``text``, and warns once per line.
    ``arguments``: the call's tensors by parameter; ``outer`` is the graph of the call.
    """

    def __init__(self, text: str, arguments: dict[Tensor, Any], outer: Graph) -> None:
        around = getattr(outer, "observe", None)
        self.arguments: dict[Tensor, Any] = dict(arguments)
        if isinstance(around, _Observer):
            self.arguments.update(around.arguments)
        self._text, self._values, self._warned = text, KnownValues(self.arguments), set[str]()

    def __call__(self, tensor: Tensor) -> Any:
        """The value of ``tensor`` as a Python scalar; None if known only at run time, if it is not a number,
        or if the user's line, two frames above, does not request it.
        """
        source = user_source_at(2)
        if source is None or not (
            tensor.dtype.is_bool or tensor.dtype.is_integer or tensor.dtype.is_floating
        ):
            return None
        value = self._values.find(tensor)
        if value is None or value.size != 1:
            return None
        if str(source) not in self._warned:
            self._warned.add(str(source))
            self._warn(str(source), tensor, value.item())
        return value.item()

    def _warn(self, line: str, tensor: Tensor, value: Any) -> None:
        warnings.warn(
            f"({line}): function {self._text}: tensor {tensor.name!r} is {value!r} in the traced call. The"
            " trace contains only the Python path for that value, also for calls with other values: use"
            " flowrt.cond() or while_loop(), or flowrt.functions.function(autograph=True), to keep all paths",
            TracerWarning,
            stacklevel=4,
        )


def trace(
    func: Callable[..., Any],
    name: str,
    signature: Signature,
    arguments: Arguments,
    specs: Sequence[TensorSpec],
    observes: bool = False,
    is_converted: bool = False,
) -> ConcreteFunction:
    """Trace ``func`` as a function of the default graph; the tensors among ``arguments`` have ``specs``.
    ``observes``: Python may read the values of tensors that are known for this call. ``is_converted``:
    autograph has converted ``func``.
    """
    outer = get_default_graph()
    graph = FuncGraph(outer, f"function {name!r}")
    graph.must_run = in_order
    with graph:
        parameters = [graph.parameter(s, n) for s, n in zip(specs, arguments.tensor_names(), strict=True)]
        graph.observe, graph.is_converted = None, is_converted
        if observes:
            graph.observe = _Observer(
                signature.text, dict(zip(parameters, arguments.tensors, strict=True)), outer
            )
        result = signature.call(func, arguments.with_tensors(parameters))
        results = [_Result.of(graph, leaf, signature.text) for leaf in flatten(result)]
    graph.observe = None
    return ConcreteFunction(name, signature, graph, arguments, result, results)


@final
class ConcreteFunction:
    """One trace of a `Function`: ``inputs`` and ``outputs`` are tensors of its ``graph``, ``specs`` the
    inputs' types, ``captured_inputs`` the outer tensors that it reads, ``home`` the graph that contains them.
    ``function`` is the trace as data.
    """

    def __init__(
        self,
        name: str,
        signature: Signature,
        graph: FuncGraph,
        arguments: Arguments,
        result: Any,
        results: Sequence[_Result],
    ) -> None:
        self.name, self.graph, self._signature = name, graph, signature
        self._key, self._result, self._results = arguments.key, result, results
        captured = graph.captured()
        self.inputs = graph.parameters[: len(graph.parameters) - len(captured)]
        self.outputs = [r.tensor for r in results if r.tensor is not None]
        self.specs = tuple(tensor.spec for tensor in self.inputs)
        operations = [r.leaf for r in results if isinstance(r.leaf, Operation)]
        self.function: Subgraph = without_placeholders(graph, graph.subgraph(self.outputs, operations))
        graph.finalize()
        self.captured_inputs = [_origin(tensor) for tensor in captured]
        self._waits_for = list(graph.control_captures)
        self.home = _innermost(
            graph.root, [t.graph for t in self.captured_inputs] + [op.graph for op in self._waits_for]
        )

    @property
    def structured_outputs(self) -> Any:
        """``outputs`` as the Python function returned them."""
        return self._packed(self.outputs, None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call like `Function.__call__`, without retracing. Raises `InvalidArgumentError` for arguments that
        do not match this trace.
        """
        arguments = self._signature.bind(args, kwargs)
        if arguments.key != self._key or not self.accepts(arguments.specs):
            expected = ", ".join(map(str, self.specs))
            got = ", ".join(map(str, arguments.specs))
            raise misuse(
                f"function {self._signature.text}: expected the arguments that it was traced with,"
                f" tensors {expected or 'none'}; got tensors {got or 'none'}, or different Python values"
            )
        return self.call(arguments.tensors)

    def accepts(self, specs: Sequence[TensorSpec]) -> bool:
        """Whether tensors of ``specs`` can be its arguments."""
        return all(is_within(spec, own) for spec, own in zip(specs, self.specs, strict=True))

    def call(self, tensors: Sequence[Tensor], **attrs: Any) -> Any:
        """Add the operation, with ``tensors`` for ``inputs`` and more ``attrs``. Its outputs, as the Python
        function returned them.
        """
        graph = get_default_graph()
        kinds = tuple(t.dtype for t in self.outputs)
        with graph.control_dependencies(self._waits_for), graph.name_scope(self.name) as scope:
            inputs = [*tensors, *self.captured_inputs]
            call_op(inputs, f=self.function, Tout=kinds, name=scope, **attrs)
        op = graph.get_operation_by_name(scope[:-1])
        return op if self._result is None else self._packed(op.outputs, op)

    def _packed(self, tensors: Sequence[Tensor], op: Operation | None) -> Any:
        rest = iter(tensors)
        leaves = [
            with_flow(r.leaf, next(rest)) if r.tensor is not None else None if r.leaf is None else op
            for r in self._results
        ]
        return pack_as(self._result, leaves)

    def __repr__(self) -> str:
        return f"<flowrt.ConcreteFunction {self._signature.text} of {', '.join(map(str, self.specs))}>"


def _origin(tensor: Tensor) -> Tensor:
    """The outermost tensor that ``tensor`` captures."""
    graph = tensor.graph
    while isinstance(graph, FuncGraph):
        outside = next((outer for outer, inner in graph.captures.items() if inner is tensor), None)
        if outside is None:
            break
        tensor, graph = outside, outside.graph
    return tensor


def _innermost(root: Graph, graphs: Sequence[Graph]) -> Graph:
    """The one of ``graphs``, each inside the next or the other way round, that is inside all others."""
    found = root
    for graph in graphs:
        if graph.is_inside(found):
            found = graph
    return found


def in_order(graph: FuncGraph) -> list[Operation]:
    """The operations of ``graph`` with effects, each with control inputs from its predecessors (rule 2)."""
    found: list[Operation] = []
    fence: Operation | None = None
    since: list[Operation] = []
    for op in graph.get_operations():
        if not is_stateful(op.node):
            continue
        found.append(op)
        is_fence = op.op_def.effect is not Effect.WRITE
        for before in [*([fence] if fence else []), *(since if is_fence else [])]:
            if not depends_on(op, before):
                op.add_control_input(before)
        if is_fence:
            fence, since = op, []
        else:
            since.append(op)
    return found
