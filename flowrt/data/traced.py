"""A user's function of tensors inside a dataset (``map_func``, ``predicate``), traced to a small graph.

The function is called once, with placeholders for the components of an element, in a new graph with the outer
graph's seed. Each run of an iterator compiles that graph in a new session, which ends with the run; so random
ops draw new values for each element, and equal seeds draw the same ones in the next run.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.data.node import Element, Node, bind
from flowrt.errors import ForeignElementError, UnimplementedError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.constant import placeholder
from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph


class _FreshSeed:
    """See `FRESH_SEED`."""


FRESH_SEED: Final = _FreshSeed()
"""A leaf of a dataset tree that is replaced by a new random number each time the dataset is opened."""


class Traced(ABC):
    """A leaf of a dataset tree that is a function, compiled when the tree is opened."""

    @abstractmethod
    def open(self, stack: ExitStack) -> Callable[..., Any]:
        """The function of arrays; it works until ``stack`` is closed, from any number of threads."""


@final
@dataclass(frozen=True, eq=False)
class TracedFunction(Traced):
    """A graph from ``inputs``, placeholders, to ``outputs``, one per output component."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def open(self, stack: ExitStack) -> Callable[..., Element]:
        session = Session(graph=self.inputs[0].graph)
        stack.callback(session.close)
        run = session.make_callable(list(self.outputs), list(self.inputs))
        if not any(output.dtype is dtypes.string for output in self.outputs):
            return lambda *components: tuple(run(*components))
        return lambda *components: tuple([_component(value) for value in run(*components)])


def _component(value: Any) -> Any:
    return np.array(value, object) if isinstance(value, bytes) else value


@final
@dataclass(frozen=True, eq=False)
class TracedPredicate(Traced):
    """A function with a bool scalar as its only output."""

    function: TracedFunction

    def open(self, stack: ExitStack) -> Callable[..., Any]:
        decide = self.function.open(stack)
        return lambda *components: decide(*components)[0]


@final
@dataclass(frozen=True, eq=False)
class TracedDataset(Traced):
    """A function from an element's components to a dataset: a tree with tensors of its graph as leaves."""

    tensors: TracedFunction
    node: Node

    def open(self, stack: ExitStack) -> Callable[..., Node]:
        compute, leaves = self.tensors.open(stack), self.tensors.outputs
        node = bind(self.node, partial(_open_function, stack=stack))
        return lambda *components: bind_values(node, dict(zip(leaves, compute(*components), strict=True)))


def _open_function(leaf: Any, stack: ExitStack) -> Any:
    return leaf.open(stack) if isinstance(leaf, Traced) else leaf


def bind_values(node: Node, values: dict[Tensor, Any]) -> Node:
    """The tree with values in place of its tensors, and fresh numbers in place of each `FRESH_SEED`."""

    def value_of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return values[leaf]
        return secrets.randbits(63) if leaf is FRESH_SEED else leaf

    return bind(node, value_of)


def open_tree(node: Node, values: dict[Tensor, Any], stack: ExitStack) -> Node:
    """The tree ready to be opened: values bound, functions compiled. What it needs ends with ``stack``."""
    return bind(bind_values(node, values), partial(_open_function, stack=stack))


def tensors_in(node: Node) -> tuple[Tensor, ...]:
    """The distinct tensors among the leaves of the tree."""
    found: dict[Tensor, None] = {}

    def note(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            found[leaf] = None
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
    if it reads a tensor or a variable of the enclosing graph.
    """
    graph = Graph()
    graph.seed = get_default_graph().seed
    with graph:
        inputs = [placeholder(leaf.dtype, leaf.shape, name=f"arg{i}") for i, leaf in enumerate(flatten(spec))]
        arguments = pack_as(spec, inputs)
        try:
            # a plain tuple is an argument list; other structures are one argument
            result = func(*arguments) if type(arguments) is tuple else func(arguments)
            outputs, other = convert(result)
        except ForeignElementError as error:
            raise _captured(what, error.message) from error
    for output in outputs:
        if output.graph is not graph:
            raise _captured(what, output.name)
    return TracedFunction(tuple(inputs), tuple(outputs)), other


def _captured(what: str, found: str) -> UnimplementedError:
    return UnimplementedError(
        f"{what}: expected a function of its arguments, NumPy arrays and Python values only; it reads a "
        f"tensor or variable of the graph around it ({found}). Make that a component of the dataset: "
        "Dataset.zip((dataset, Dataset.from_tensors(x).repeat()))"
    )
