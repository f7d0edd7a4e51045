"""A user's function of tensors inside a dataset (``map_func``, ``predicate``), traced to a small graph.

The function is called once, with placeholders for the components of an element, in a new graph with the outer
graph's seed. Tensors of the outer graph that it reads have the values of when the iterator began, and tables
their entries of then. Each run of an iterator compiles that graph in a new session, which ends with the run;
so random ops draw new values for each element, and equal seeds draw the same ones in the next run.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.data.node import Element, Node, bind
from flowrt.errors import ForeignElementError, UnimplementedError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.effects import draws, draws_anew
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.lookup import (
    hash_table_op,
    initialize_table,
    lookup_table_export,
    mutable_hash_table_op,
)
from flowrt.graph.topology import reachable


class _FreshSeed:
    """See `FRESH_SEED`."""


FRESH_SEED: Final = _FreshSeed()
"""A leaf of a dataset tree that is replaced by a new random number each time the dataset is opened."""


class Traced(ABC):
    """A leaf of a dataset tree that is a function, compiled when the tree is opened."""

    @property
    @abstractmethod
    def captured(self) -> tuple[Tensor, ...]:
        """The tensors of the outer graph that it reads."""

    @property
    @abstractmethod
    def draws_anew(self) -> bool:
        """Whether it draws random numbers without a seed: others each time it is opened."""

    @abstractmethod
    def given(self, values: dict[Tensor, Any]) -> Traced:
        """The function with values for what it captured."""

    @abstractmethod
    def open(self, stack: ExitStack) -> Callable[..., Any]:
        """The function of arrays; it works until ``stack`` is closed, from any number of threads."""


@final
class _TracedGraph(Graph):
    """The graph of a traced function: a placeholder for each tensor of ``outer`` that it reads, a table for
    each of its tables.
    """

    def __init__(self, outer: Graph) -> None:
        super().__init__()
        self.seed = outer.seed
        self._outer = outer
        self.captures: dict[Tensor, Tensor] = {}
        """Tensors of ``outer``, and what has their values."""
        self.setup: list[Operation] = []
        """Operations that run first, once."""
        self._tables: dict[Tensor, Tensor] = {}

    def is_inside(self, graph: Graph) -> bool:
        return graph is self._outer

    def adopt(self, tensor: Tensor) -> Tensor | None:
        if tensor.graph is not self._outer or isinstance(self._outer, _TracedGraph):
            return None  # of what a function computes for each element nothing can be captured
        if tensor.op.op_def in (hash_table_op, mutable_hash_table_op):
            if tensor not in self._tables:
                self._tables[tensor] = self._table(tensor)
            return self._tables[tensor]
        if tensor.dtype is dtypes.resource:
            return None
        if tensor not in self.captures:
            with self.as_default(), self.control_dependencies(None):
                self.captures[tensor] = placeholder(tensor.dtype, tensor.shape, name="captured")
        return self.captures[tensor]

    def _table(self, handle: Tensor) -> Tensor:
        """A table with the entries of that of ``handle``."""
        kinds = {name: handle.op.get_attr(name) for name in ("key_dtype", "value_dtype")}
        with self._outer.as_default(), self._outer.control_dependencies(None):
            entries = lookup_table_export(handle, Tkeys=kinds["key_dtype"], Tvalues=kinds["value_dtype"])
        with self.as_default(), self.control_dependencies(None):
            copied: Tensor = hash_table_op(**kinds)
            self.setup.append(initialize_table(copied, *entries))
        return copied


@final
@dataclass(frozen=True, eq=False)
class TracedFunction(Traced):
    """A graph from ``inputs``, placeholders, to ``outputs``, one per output component; ``values`` of what it
    captured.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    values: tuple[Any, ...] = ()

    @property
    def _graph(self) -> _TracedGraph:
        graph = self.inputs[0].graph
        assert isinstance(graph, _TracedGraph)
        return graph

    @property
    def captured(self) -> tuple[Tensor, ...]:
        return tuple(self._graph.captures)

    @property
    def is_pure(self) -> bool:
        """Whether a call has no effect on the next ones: it draws no random numbers and calls no Python."""
        return all(op.op_def.effect in (Effect.PURE, Effect.SOURCE) for op in self._graph.get_operations())

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, with a seed or without."""
        return any(draws(op.node) for op in self._graph.get_operations())

    @property
    def draws_anew(self) -> bool:
        drawn = any(draws_anew(op.node) for op in self._graph.get_operations())
        return drawn or any(map(is_drawn_anew, self.captured))

    def given(self, values: dict[Tensor, Any]) -> TracedFunction:
        return replace(self, values=tuple(values[tensor] for tensor in self.captured))

    def open(self, stack: ExitStack) -> Callable[..., Element]:
        graph, values = self._graph, self.values
        session = Session(graph=graph)
        stack.callback(session.close)
        places = list(graph.captures.values())
        if graph.setup:
            session.run(graph.setup, dict(zip(places, values, strict=True)))
        run = session.make_callable(list(self.outputs), [*self.inputs, *places])
        if any(output.dtype is dtypes.string for output in self.outputs):
            return lambda *components: tuple([_component(value) for value in run(*components, *values)])
        return lambda *components: tuple(run(*components, *values))


def _component(value: Any) -> Any:
    return np.array(value, object) if isinstance(value, bytes) else value


@final
@dataclass(frozen=True, eq=False)
class TracedPredicate(Traced):
    """A function with a bool scalar as its only output."""

    function: TracedFunction

    @property
    def captured(self) -> tuple[Tensor, ...]:
        return self.function.captured

    @property
    def draws_anew(self) -> bool:
        return self.function.draws_anew

    def given(self, values: dict[Tensor, Any]) -> TracedPredicate:
        return TracedPredicate(self.function.given(values))

    def open(self, stack: ExitStack) -> Callable[..., Any]:
        decide = self.function.open(stack)
        return lambda *components: decide(*components)[0]


@final
@dataclass(frozen=True, eq=False)
class TracedDataset(Traced):
    """A function from an element's components to a dataset: a tree with tensors of its graph as leaves."""

    tensors: TracedFunction
    node: Node

    @property
    def captured(self) -> tuple[Tensor, ...]:
        return self.tensors.captured

    @property
    def draws_anew(self) -> bool:
        return self.tensors.draws_anew

    def given(self, values: dict[Tensor, Any]) -> TracedDataset:
        return TracedDataset(self.tensors.given(values), self.node)

    def open(self, stack: ExitStack) -> Callable[..., Node]:
        compute, leaves = self.tensors.open(stack), tensors_in(self.node)
        node = bind(self.node, partial(_open_function, stack=stack))
        return lambda *components: bind_values(node, dict(zip(leaves, compute(*components), strict=True)))


def _open_function(leaf: Any, stack: ExitStack) -> Any:
    return leaf.open(stack) if isinstance(leaf, Traced) else leaf


def bind_values(node: Node, values: dict[Tensor, Any]) -> Node:
    """The tree with values in place of its tensors, and fresh numbers in place of each `FRESH_SEED`."""

    def value_of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return values[leaf]
        if isinstance(leaf, Traced) and leaf.captured:
            return leaf.given(values)
        return secrets.randbits(63) if leaf is FRESH_SEED else leaf

    return bind(node, value_of)


def open_tree(node: Node, values: dict[Tensor, Any], stack: ExitStack) -> Node:
    """The tree ready to be opened: values bound, functions compiled. What it needs ends with ``stack``."""
    return bind(bind_values(node, values), partial(_open_function, stack=stack))


def is_drawn_anew(tensor: Tensor) -> bool:
    """Whether ``tensor`` depends on random numbers that are drawn without a seed."""
    return any(draws_anew(op.node) for op in operations_before(tensor))


def operations_before(tensor: Tensor) -> Iterable[Operation]:
    """The operations on which the value of ``tensor`` depends, with its own."""
    return reachable([tensor.op], lambda op: [each.op for each in op.inputs])


def tensors_in(node: Node) -> tuple[Tensor, ...]:
    """The distinct tensors among the leaves of the tree, and those that its functions capture."""
    found: dict[Tensor, None] = {}

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            found[leaf] = None
        if isinstance(leaf, Traced):
            found.update(dict.fromkeys(leaf.captured))
        return leaf

    bind(node, note)
    return tuple(found)


def trace(
    what: str,
    func: Callable[..., Any],
    spec: Structure,
    convert: Callable[[Any], tuple[Sequence[Tensor], Any]],
) -> tuple[TracedFunction, Any]:
    """The graph of ``func``, called with placeholders for an element of ``spec``.

    ``convert`` runs in that graph too: it maps the result of ``func`` to the output tensors and any other
    value, which is returned along with the function. Raises the errors of ``func``, and `UnimplementedError`
    if it reads a variable or other state of the enclosing graph, except for its tables.
    """
    graph = _TracedGraph(get_default_graph())
    with graph:
        inputs = [placeholder(leaf.dtype, leaf.shape, name=f"arg{i}") for i, leaf in enumerate(flatten(spec))]
        arguments = pack_as(spec, inputs)
        try:
            # a plain tuple is an argument list; other structures are one argument
            result = func(*arguments) if type(arguments) is tuple else func(arguments)
            outputs, other = convert(result)
        except ForeignElementError as error:
            raise _captured(what, error.message) from error
    own = list[Tensor]()
    for output in outputs:
        adopted = output if output.graph is graph else graph.adopt(output)
        if adopted is None:
            raise _captured(what, output.name)
        own.append(adopted)
    return TracedFunction(tuple(inputs), tuple(own)), other


def _captured(what: str, found: str) -> UnimplementedError:
    return UnimplementedError(
        f"{what}: expected a function of its arguments, and of tensors and Python values around it; it reads "
        f"a variable, or what another function computes ({found}). Make that a component of the dataset: "
        "Dataset.zip((dataset, Dataset.from_tensors(x).repeat()))"
    )
