"""The state of a graph: which layer made a tensor, masks, names that are taken, variables.

The state is in a collection of the graph, so it lives as long as the graph.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from flowrt.graph.construction.graph import Graph, Tensor, get_default_graph
from flowrt.graph.node import Ref
from flowrt.variables.variable import Variable

_STATE = object()  # a collection name that scripts cannot use


@dataclass
class GraphState:
    """``history``: tensor -> the call of a layer that made it. ``masks``: tensor -> its mask. ``variables``:
    those that Keras made, in order, which its sessions initialize.
    """

    history: dict[Ref, Any] = field(default_factory=dict)
    masks: dict[Ref, Any] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    uids: Counter[str] = field(default_factory=Counter)
    learning_phase: Tensor | int | None = None


def graph_state(graph: Graph | None = None) -> GraphState:
    """The state of ``graph``, or of the default one; functions and bodies share that of the graph around."""
    collection = (graph or get_default_graph()).root.get_collection_ref(_STATE)
    if not collection:
        collection.append(GraphState())
    found: GraphState = collection[0]
    return found


def get_uid(prefix: str = "") -> int:
    """A number that ``prefix`` did not have in the default graph: 1, 2, ..."""
    uids = graph_state().uids
    uids[prefix] += 1
    return uids[prefix]


def reset_uids() -> None:
    """Begin the numbers of all names anew."""
    graph_state().uids.clear()


def unique_layer_name(class_name: str) -> str:
    """``Conv2D`` -> ``conv2d``, then ``conv2d_1``, ``conv2d_2``, ..."""
    base = snake_case(class_name)
    uid = get_uid(base)
    return base if uid == 1 else f"{base}_{uid - 1}"


def snake_case(name: str) -> str:
    """``BatchNormalization`` -> ``batch_normalization``; a private class gets the prefix "private"."""
    parts = re.sub(r"(.)([A-Z][a-z0-9]+)", r"\1_\2", name)
    found = re.sub(r"([a-z])([A-Z])", r"\1_\2", parts).lower()
    return f"private{found}" if found.startswith("_") else found


def mask_of(tensor: Any) -> Any:
    """The mask of ``tensor``: a bool tensor without its last dimension; None without one."""
    return graph_state(tensor.graph).masks.get(tensor.ref) if isinstance(tensor, Tensor) else None


def set_mask(tensor: Tensor, mask: Any) -> None:
    graph_state(tensor.graph).masks[tensor.ref] = mask


def tracked(variable: Variable) -> Variable:
    """``variable``, which sessions of Keras initialize."""
    graph_state(variable.graph).variables.append(variable)
    return variable
