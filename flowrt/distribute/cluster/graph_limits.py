"""Limits on graphs from other processes: registered ops only, no privileges, bounded size.

Every limit is checked before the graph is compiled, in Python integers, on the graph and its inner functions.
The bytes of messages are checked by `flowrt.distribute.wire.messages`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flowrt.errors import (
    InternalError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    ResourceExhaustedError,
)
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Privilege
from flowrt.graph.passes.prepare.verify import verify_subgraph
from flowrt.graph.shapes import Shape

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>:@-]*")

_ALLOW = (
    "Place it on the task of its own program, or start the task with --allow-op {op}, in Python"
    " Server(allowed_ops=[{op!r}])"
)
_HINTS = {
    Privilege.PYTHON: (
        "The function exists only in the program that created it: place {op} on the task of that program, "
        "which needs a server and Session(server.target)"
    ),
    Privilege.FILES: _ALLOW,
    Privilege.READS_FILES: _ALLOW,
}
"""Advice in errors. Permission (``allowed_ops``) does not transfer a Python function to another process."""


@final
@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Limits of one graph with all its functions."""

    nodes: int = 100_000
    functions: int = 1000
    depth: int = 16
    """Functions inside one another."""
    name_length: int = 1024
    rank: int = 64
    elements: int = 2**40
    """Elements of one tensor; unknown dimensions count as 1."""
    constant_bytes: int = 2**31
    """Total size of constants, including the full size of repeated values, which are stored once."""


DEFAULT_LIMITS = GraphLimits()


def check_remote_graph(
    subgraph: Subgraph, allowed_ops: Collection[str] = (), limits: GraphLimits = DEFAULT_LIMITS
) -> None:
    """Check that this process may run ``subgraph`` for another. ``allowed_ops``: names of ops that are
    permitted although they call Python or access files.

    Raises `PermissionDeniedError` for another such op, `ResourceExhaustedError` over a limit and
    `InvalidArgumentError` for an invalid name and a graph that violates the rules of
    `flowrt.graph.passes.prepare.verify`; they name the node. Takes about 5 us per node.
    """
    _Check(allowed_ops, limits).check_subgraph(subgraph, 0)
    try:
        verify_subgraph(subgraph)
    except InternalError as error:  # not a bug of this process
        raise InvalidArgumentError(error.message) from None


@final
class _Check:
    """Accumulates the sizes of one graph during the traversal."""

    def __init__(self, allowed_ops: Collection[str], limits: GraphLimits) -> None:
        self._allowed_ops, self._limits = allowed_ops, limits
        self._nodes = self._functions = self._constant_bytes = 0

    def check_subgraph(self, subgraph: Subgraph, depth: int) -> None:
        self._nodes += len(subgraph)
        for node in subgraph:
            try:
                self._check_node(node, depth)
            except OpError as error:
                raise located(node, error) from None

    def _check_node(self, node: Node, depth: int) -> None:
        _check_limit(self._nodes, self._limits.nodes, "nodes in a graph")
        self._check_name(node.name)
        self._check_privilege(node)
        for _, shape in node.outputs:
            self._check_shape(shape)
        for tensor in _tensors(node.attrs.values()):
            self._check_shape(tensor.shape)
            self._constant_bytes += math.prod(tensor.shape) * tensor.dtype.itemsize
            _check_limit(self._constant_bytes, self._limits.constant_bytes, "bytes of constants in a graph")
        for function in owned_subgraphs(node.attrs):
            self._functions += 1
            _check_limit(self._functions, self._limits.functions, "functions in a graph")
            _check_limit(depth + 1, self._limits.depth, "nested functions")
            self.check_subgraph(function, depth + 1)

    def _check_name(self, name: str) -> None:
        _check_limit(len(name), self._limits.name_length, "characters in a name")
        if not _NAME.fullmatch(name):
            raise InvalidArgumentError("expected a name of letters, digits and ._\\/>:@-")

    def _check_privilege(self, node: Node) -> None:
        privilege = None if node.op.privilege is None else node.op.privilege(node.attrs)
        if privilege is not None and node.op.name not in self._allowed_ops:
            hint = _HINTS[privilege].format(op=node.op.name)
            raise PermissionDeniedError(f"it {privilege.value}, which a task does not allow others. {hint}")

    def _check_shape(self, shape: Shape) -> None:
        dims = shape or ()
        _check_limit(len(dims), self._limits.rank, "dimensions of a tensor")
        elements = math.prod(dim for dim in dims if dim is not None)
        _check_limit(elements, self._limits.elements, "elements of a tensor")


def _tensors(values: Collection[Any]) -> Iterator[np.ndarray[Any, Any]]:
    """The tensors among attributes and in their lists."""
    for value in values:
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, tuple):
            yield from _tensors(value)


def _check_limit(got: int, limit: int, what: str) -> None:
    if got > limit:
        raise ResourceExhaustedError(f"expected at most {limit} {what}; got {got}")
