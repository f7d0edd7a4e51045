"""`function`: a Python function as an operation of the graph.

A call traces the Python function (`flowrt.control_flow.trace`) and adds one PartitionedCall to the graph. A
trace serves every later call with equal arguments, except for tensor values
(`flowrt.control_flow.signatures`), so the Python code runs once for each kind of call and graph. The compiler
inlines the function's operations: so a function has no run-time overhead and may span devices.

The first trace in a graph creates the variables; all others reuse them, since scopes and layers without a
name get the same default names in each.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, final
from weakref import WeakKeyDictionary

from flowrt.autograph.conversion import convert
from flowrt.control_flow.signatures import Arguments, Signature
from flowrt.control_flow.trace import ConcreteFunction, trace
from flowrt.errors import DTypeError, InvalidArgumentError, OpError
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.node import TensorSpec
from flowrt.graph.shapes import relax
from flowrt.graph.source import misuse, user_line
from flowrt.variables.variable_scope import VariableScope, variable_scope, variable_store

RELAX_AFTER = 3
"""Traces that differ in shapes only; the next one leaves open the dimensions in which they differ."""

WARN_AFTER = 5
"""Number of traces in one graph at which a function warns: each takes as long as building its operations."""


def function(
    func: Callable[..., Any] | None = None,
    input_signature: Any = None,
    autograph: bool = False,
    name: str | None = None,
) -> Any:
    """Decorate ``func``: a call adds one operation, traced from it (see `Function`).

    ``input_signature``, a list of `TensorSpec`, makes one trace serve all calls. With ``autograph`` Python's
    ``if``, ``while`` and ``for`` over tensors become `cond` and `while_loop` (see `flowrt.autograph`).
    ``name`` is that of the operations, the function's by default.
    """
    if func is None:
        return functools.partial(function, input_signature=input_signature, autograph=autograph, name=name)
    if not callable(func):
        raise misuse(f"function: expected a callable; got {func!r:.80}", DTypeError)
    return Function(func, input_signature, autograph, name)


@final
class Function:
    """A Python function with calls as operations. As a method it is traced separately for each object.

    A call returns the Python function's result, with the operation's outputs as tensors: numbers and arrays
    become tensors, None stays None, operations become the call's operation, which is also the result of a
    function without one. Raises the errors of the Python function, `DTypeError` for arguments that do not
    match its parameters or results that cannot become tensors, and `InvalidArgumentError` for a recursive
    call and for variables created by a later trace. After an error the graph has no call, and no trace is
    kept.
    """

    def __init__(
        self, func: Callable[..., Any], input_signature: Any, autograph: bool, name: str | None
    ) -> None:
        functools.update_wrapper(self, func)
        self.python_function = func
        self._name = name or getattr(func, "__name__", "function").strip("<>_") or "function"
        self._input_signature, self._autograph = input_signature, autograph
        self._origin, self._instance = self, None
        self._signature = Signature(func, self._name, None if _is_method(func) else input_signature)

    def __get__(self, instance: Any, owner: type | None = None) -> Function:
        """The function as a method of ``instance``."""
        if instance is None:
            return self
        bound = copy.copy(self)
        bound._instance = instance
        bound.python_function = self.python_function.__get__(instance)
        bound._signature = Signature(bound.python_function, self._name, self._input_signature)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add one operation to the graph; returns the results of the Python function."""
        arguments = self._signature.bind(args, kwargs)
        return self._concrete(arguments).call(arguments.tensors)

    def get_concrete_function(self, *args: Any, **kwargs: Any) -> ConcreteFunction:
        """The trace for the given arguments; a `TensorSpec` may replace a tensor."""
        return self._concrete(self._signature.bind(args, kwargs))

    def experimental_get_tracing_count(self) -> int:
        """The number of traces in the default graph."""
        return self._traces().count

    def __repr__(self) -> str:
        return f"<flowrt.Function {self._signature.text}>"

    # --- traces

    def _traces(self) -> _Traces:
        """The traces in the default graph and the functions in it."""
        (table,) = _tables(get_default_graph().root)
        by_instance: dict[int, _Traces] = table.setdefault(self._origin, {})
        return by_instance.setdefault(id(self._instance), _Traces(self._instance))

    def _concrete(self, arguments: Arguments) -> ConcreteFunction:
        graph = get_default_graph()
        key = (arguments.key, graph.get_device_scope())
        traces = self._traces()
        with traces.lock:
            found = traces.find(key, arguments, graph) or self._trace(traces, key, arguments)
            traces.take_names()
        return found

    def _trace(self, traces: _Traces, key: Hashable, arguments: Arguments) -> ConcreteFunction:
        call = (self._origin, id(self._instance), key, arguments.specs)
        if call in _being_traced.calls:
            raise self._recursion()
        specs = traces.relaxed(key, arguments)
        _being_traced.calls.append(call)
        try:
            with traces.variables(self._signature.text):
                traced = trace(
                    self._python_function(), self._name, self._signature, arguments, specs,
                    observes=not self._autograph, is_converted=self._autograph,
                )  # fmt: skip
        except RecursionError:
            raise self._recursion() from None
        finally:
            _being_traced.calls.pop()
        if traces.add(key, arguments, traced) == WARN_AFTER:
            self._warn(traces)
        return traced

    def _python_function(self) -> Callable[..., Any]:
        return convert(self.python_function) if self._autograph else self.python_function

    def _recursion(self) -> OpError:
        return misuse(
            f"function {self._signature.text} calls itself: a graph has no recursion. Use while_loop, or a"
            " Python argument that ends it"
        )

    def _warn(self, traces: _Traces) -> None:
        *_, before, last = traces.history
        warnings.warn(
            f"function {self._signature.text} was traced {traces.count} times in one graph ({user_line()}):"
            f" {last.difference(before)}. Pass tensors for what changes, or give an input_signature",
            RuntimeWarning,
            stacklevel=5,
        )


def _is_method(func: Callable[..., Any]) -> bool:
    """Whether ``func`` was written in a class: it gets its object first, which no signature describes."""
    return "." in getattr(func, "__qualname__", "").rpartition("<locals>.")[2]


class _BeingTraced(threading.local):
    def __init__(self) -> None:
        self.calls: list[Any] = []


_being_traced = _BeingTraced()

_TABLE = object()  # a collection name that scripts cannot use


def _tables(root: Graph) -> list[Any]:
    """The graph's traces: by function (weakly), then by object."""
    found = root.get_collection_ref(_TABLE)
    if not found:
        found.append(WeakKeyDictionary())
    return found


@final
class _Traces:
    """The traces of one function, or of one object's method, in one graph."""

    def __init__(self, instance: Any) -> None:
        self.lock = threading.RLock()
        self.instance = instance  # kept, so that no other object gets its id
        self.count = 0
        self.history: list[Arguments] = []
        """The last two calls that were traced."""
        self._scope: VariableScope | None = None
        self._names: dict[str, int] = {}
        """The number of times each variable scope had been opened before the first trace."""
        self._taken: list[str] = []
        """The scopes that the first trace opened."""
        self._found: dict[Hashable, list[ConcreteFunction]] = {}

    def find(self, key: Hashable, arguments: Arguments, graph: Graph) -> ConcreteFunction | None:
        """A trace that can be called with ``arguments`` in ``graph``: preferably the one for exactly these
        shapes.
        """
        usable = [
            traced
            for traced in self._found.get(key, ())
            if (graph is traced.home or graph.is_inside(traced.home)) and traced.accepts(arguments.specs)
        ]
        return next((t for t in usable if t.specs == arguments.specs), usable[-1] if usable else None)

    def relaxed(self, key: Hashable, arguments: Arguments) -> tuple[TensorSpec, ...]:
        """The specs to trace: the shapes of ``arguments``, or relaxed to include all previous ones."""
        before = self._found.get(key, ())
        if len({traced.specs for traced in before}) < RELAX_AFTER:
            return arguments.specs
        columns = zip(arguments.specs, *[traced.specs for traced in before], strict=True)
        shapes = [functools.reduce(relax, [spec.shape for spec in column]) for column in columns]
        return tuple(TensorSpec(s.dtype, shape) for s, shape in zip(arguments.specs, shapes, strict=True))

    @contextlib.contextmanager
    def variables(self, text: str) -> Iterator[None]:
        """The scope of a trace: the first may make variables, later ones find these, wherever they are."""
        current = variable_store().current
        if self._scope is None:
            scope, names = current.scope, dict(current.counts)
            yield
            self._scope, self._names = scope, names
            self._taken = [name for name, count in current.counts.items() if count > names.get(name, 0)]
            return
        root = get_default_graph().root
        before = root.version
        with variable_scope(self._scope, reuse=True, auxiliary_name_scope=False):
            current.counts = dict(self._names)
            yield
        made = [op for op in root.get_operations()[before:] if op.type == "VarHandleOp"]
        if made:
            raise made[0].error(
                InvalidArgumentError,
                f"function {text}: expected no new variables after the first trace; got this one. Create it"
                " outside the function, or with get_variable, which reuses the variables of the first trace",
            )

    def take_names(self) -> None:
        """Mark the default names of the first trace as used in its scope: so a caller that is traced again
        assigns the same names as with the first trace.
        """
        current = variable_store().current
        for name in self._taken:
            if name.rpartition("/")[0] == current.scope.name:
                current.counts[name] = max(current.counts.get(name, 0), 1)

    def add(self, key: Hashable, arguments: Arguments, traced: ConcreteFunction) -> int:
        """Keep ``traced``. The number of traces up to now."""
        self._found.setdefault(key, []).append(traced)
        self.history = [*self.history[-1:], arguments]
        self.count += 1
        return self.count
