"""What a graph that came from another process may be: of registered ops, without privileges, not too large.

Every limit is checked before the graph is compiled, in Python integers, on the graph and on the functions
inside it. What the bytes of a message may be is `flowrt.distribute.messages`' business.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flowrt.errors import InvalidArgumentError, OpError, PermissionDeniedError, ResourceExhaustedError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.shapes import Shape

_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.\\/>:-]*")


@final
@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Of one graph with all its functions."""

    nodes: int = 100_000
    functions: int = 1000
    depth: int = 16
    """Functions inside one another."""
    name_length: int = 1024
    rank: int = 64
    elements: int = 2**40
    """Of one tensor; unknown dimensions count as 1."""
    constant_bytes: int = 2**31
    """Of all constants together, each counted whole: one repeated value too, which is stored once."""


DEFAULT_LIMITS = GraphLimits()


def check_remote_graph(
    subgraph: Subgraph, allowed_ops: Collection[str] = (), limits: GraphLimits = DEFAULT_LIMITS
) -> None:
    """Whether this process may run ``subgraph`` for another. ``allowed_ops``: names of ops that it runs
    although they call Python or touch files.

    Raises `PermissionDeniedError` for another such op, `ResourceExhaustedError` beyond a limit and
    `InvalidArgumentError` for a name that cannot be one; they name the node.
    """
    _Check(frozenset(allowed_ops), limits).subgraph(subgraph, 0)


@final
class _Check:
    """Counts what is in one graph while it goes through it."""

    def __init__(self, allowed_ops: frozenset[str], limits: GraphLimits) -> None:
        self._allowed_ops, self._limits = allowed_ops, limits
        self._nodes = self._functions = self._constant_bytes = 0

    def subgraph(self, subgraph: Subgraph, depth: int) -> None:
        self._nodes += len(subgraph)
        _check_limit(self._nodes, self._limits.nodes, "nodes in a graph")
        for node in subgraph:
            try:
                self._node(node, depth)
            except _Refusal as refusal:
                raise located(node, refusal.error) from None

    def _node(self, node: Node, depth: int) -> None:
        self._check_name(node.name)
        self._check_privilege(node)
        for spec in node.outputs:
            self._check_shape(spec.shape)
        for value in _tensors(node.attrs.values()):
            self._constant_bytes += math.prod(value.shape) * value.dtype.itemsize
            _refuse_beyond(self._constant_bytes, self._limits.constant_bytes, "bytes of constants in a graph")
