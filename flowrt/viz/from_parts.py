"""Conversion of a graph's parts to a `GraphView`: scopes by names, edges by inputs, transfers by pairs.

{"": subgraph}                 no boxes of devices: the graph as it was built, or placed
{device: its subgraph, ...}    one box per device; a transfer from each _Send to its _Recv
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.errors import OpError
from flowrt.graph.messages.attr_values import attr_kind
from flowrt.graph.messages.graph_def import SOURCE
from flowrt.graph.node import Node, Subgraph, TensorSpec, site_of
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.fusion.group import Group
from flowrt.graph.shapes import num_elements
from flowrt.graph.source import Source
from flowrt.graph.text.graph_text import labelled_functions
from flowrt.graph.text.text_literals import format_value
from flowrt.viz.roles import NO_ROLES, Roles
from flowrt.viz.view import (
    MAX_EMBEDDED,
    EdgeKind,
    EdgeView,
    GraphView,
    GroupKind,
    GroupView,
    NodeView,
    Role,
    TensorView,
    held_groups,
)

Parts: TypeAlias = Mapping[str, Subgraph]
"""The subgraph of each device, or the whole graph under ""."""

_ADDED = re.compile(r"(.)/_(copy|control)/[^/:]+(:0)?")
"""The end of the name of a node that `flowrt.graph.passes.placement.partition` adds for another device."""

_CONTROL = "/_control/"
"""Part of the name of the empty tensor that takes the place of a control edge between devices."""

_FIRST = re.compile(r"(.+)/first/\1/")
"""The prefix of a loop's first condition, created by `flowrt.graph.passes.prepare.lower`."""

MAX_TEXT = 200
"""Characters of an attribute's text; a longer one ends in "…"."""

GRAPH = "_graph"
"""Attribute of a _Send and a _Recv: the scope of their graph, if several are shown."""

PAIR = ("tensor_name", "send_device", "recv_device")
"""The attributes that a _Send and its _Recv have in common."""


def view_of(parts: Parts, texts: AttrTexts | None = None, roles: Roles = NO_ROLES) -> GraphView:
    """All nodes of ``parts``, those of functions too. Those with one of ``roles`` are in a group of it.
    Several views of one graph have ``texts`` in common.
    """
    builder = _Builder(texts or AttrTexts(), roles)
    for device, part in parts.items():
        if device:
            builder.add_group(device, device, GroupKind.DEVICE, "")
        builder.add(part, device, device, "")
    builder.connect_pairs()
    view = GraphView(builder.nodes, builder.edges, builder.groups)
    return view._replace(groups=held_groups(view))


@final
class _Builder:
    """A view under construction."""

    def __init__(self, texts: AttrTexts, roles: Roles) -> None:
        self._texts, self._roles = texts, roles
        self.nodes: dict[str, NodeView] = {}
        self.edges: list[EdgeView] = []
        self.groups: dict[str, GroupView] = {}
        self._sends: dict[tuple[Any, ...], list[str]] = {}
        self._receives: dict[tuple[Any, ...], list[str]] = {}

    def add_group(self, name: str, label: str, kind: GroupKind, parent: str) -> None:
        self.groups[name] = GroupView(name, label, kind, parent, 0)

    def add(self, subgraph: Subgraph, base: str, device: str, owner: str) -> dict[str, str]:
        """Put the nodes of ``subgraph`` into the group ``base``. Returns their names in the view. ``owner``
        is the name of the operation that owns this function.
        """
        names = names_in_view(subgraph, base if owner else "", owner)
        roles = {} if owner else self._roles
        local = {node.name: _place(node, owner) for node in subgraph}
        by_role: dict[Role | None, list[str]] = {}
        for node in subgraph:
            by_role.setdefault(roles.get(node.name), []).append(local[node.name])
        scopes = {role: _scopes(inner) for role, inner in by_role.items()}
        shared = {role: _shared_scope(inner) for role, inner in by_role.items() if role is not None}
        for node in subgraph:
            name, inner, role = names[node.name], local[node.name], roles.get(node.name)
            scope = inner if inner in scopes[role] else inner.rpartition("/")[0]
            inside = base if role is None else self._role(base, role)
            if node.op.name == "_Recv" and _CONTROL in node.attrs["tensor_name"]:
                group = self._controls(inside, node.attrs["send_device"], node.attrs["recv_device"])
            elif role is None:
                group = self._scope(base, scope)
            else:
                group = self._scope(inside, scope.removeprefix(shared[role]).strip("/"))
            label = inner.rpartition("/")[2]
            line = line_of(node)
            made = tuple([_tensor(spec) for spec in node.outputs])
            where = node.device or device
            self.nodes[name] = NodeView(
                name, label, node.op.name, group, where, self._texts.of(node), made, line
            )
            self._add_edges(subgraph, node, names)
            if node.op.name in ("_Send", "_Recv"):
                ends = self._sends if node.op.name == "_Send" else self._receives
                ends.setdefault(tuple([node.attrs[key] for key in PAIR]), []).append(name)
            if node.op.effect is Effect.NESTED:
                self._add_functions(node, name, label, group, where)
        return names

    def _scope(self, base: str, scope: str) -> str:
        """The name of the group for ``scope``, made with those around it if it is new."""
        if not scope:
            return base
        name = f"{base}/{scope}" if base else scope
        if name not in self.groups:
            outer, _, label = scope.rpartition("/")
            self.add_group(name, label.removeprefix("_"), GroupKind.SCOPE, self._scope(base, outer))
        return name

    def _role(self, base: str, role: Role) -> str:
        """The name of the group of ``role``: with brackets, which no scope has."""
        name = f"{base}/[{role}]" if base else f"[{role}]"
        if name not in self.groups:
            self.add_group(name, role.capitalize(), GroupKind.ROLE, base)
        return name

    def _controls(self, base: str, sender: str, receiver: str) -> str:
        """The name of the group of all that ``base`` waits for from another device, and no more."""
        (task, _, local), (own, _, _) = (device.partition("/device:") for device in (sender, receiver))
        label = f"control from {local if task == own else short_device(sender)}"
        name = f"{base}/[{label}]" if base else f"[{label}]"
        if name not in self.groups:
            self.add_group(name, label, GroupKind.SERIES, base)
        return name

    def _add_functions(self, node: Node, name: str, node_label: str, group: str, device: str) -> None:
        for label, function in labelled_functions(node):
            base = f"{name}:{label}"
            self.add_group(base, f"{node_label} {label}", GroupKind.FUNCTION, group)
            names = self.add(function, base, device, site_of(node))
            self.edges += [
                EdgeView(name, names[feed], EdgeKind.DATA, "", _tensor(function.nodes[feed].outputs[0]))
                for feed in function.feeds
            ]

    def _add_edges(self, subgraph: Subgraph, node: Node, names: Mapping[str, str]) -> None:
        target = names[node.name]
        for producer, index in node.inputs:
            made_by = subgraph.nodes[producer]
            facts = _tensor(made_by.outputs[index])
            crosses = made_by.device != node.device and is_full(made_by.device) and is_full(node.device)
            kind = EdgeKind.TRANSFER if crosses else EdgeKind.DATA
            how = transport(made_by.device, node.device) if crosses else ""
            source = names[producer]
            tensor = f"{source}:{index}"
            self.edges.append(EdgeView(source, target, kind, tensor, facts, facts.nbytes or 0, how))
        for producer in node.controls:
            self.edges.append(EdgeView(names[producer], target, EdgeKind.CONTROL))

    def connect_pairs(self) -> None:
        """Draw the transfers. Loops that send tensors of the same name are matched in execution order. If one
        end is in another task, a node represents that task.
        """
        for key in dict.fromkeys([*self._sends, *self._receives]):
            sends, receives = self._sends.get(key, []), self._receives.get(key, [])
            for send, receive in zip_longest(sends, receives):
                self._connect(key, send, receive)

    def _connect(self, key: tuple[Any, ...], send: str | None, receive: str | None) -> None:
        tensor, sender, receiver = key
        known = None if receive is None else self.nodes[receive].outputs[0]
        ends = send or self._elsewhere(sender), receive or self._elsewhere(receiver)
        nbytes = known.nbytes or 0 if known is not None else 0
        how = transport(sender, receiver)
        self.edges.append(EdgeView(*ends, EdgeKind.TRANSFER, plain_name(tensor), known, nbytes, how))

    def _elsewhere(self, device: str) -> str:
        """The node that represents a device with no part shown."""
        name = f"elsewhere:{device}"
        if name not in self.nodes:
            self.nodes[name] = NodeView(name, short_device(device), "elsewhere", "", "", {}, (), "")
        return name


def names_in_view(subgraph: Subgraph, base: str, owner: str) -> dict[str, str]:
    """The names of its nodes in a view; in a function, the group ``base``, the owner's name appears only
    once.
    """
    if not owner:
        return {name: name for name in subgraph.nodes}
    inner = {name: name.removeprefix(f"{owner}/") for name in subgraph.nodes}
    return {
        name: f"{base}/{name if short != name and short in subgraph.nodes else short}"
        for name, short in inner.items()
    }


def _place(node: Node, owner: str) -> str:
    """The drawn name of a node in a function of ``owner``. A loop's parts on several devices are adjacent."""
    if node.op.name in ("_Send", "_Recv"):
        name = _end_of_transfer(node)
    else:
        name, site = plain_name(node.name), site_of(node)
        name = name.replace(f"{site}/", f"{site} (", 1) + ")" if name.startswith(f"{site}/") else name
    return name.removeprefix(f"{owner}/")


def _end_of_transfer(node: Node) -> str:
    """The place of a _Send next to its producer; of a _Recv, outside all scopes but a collective's."""
    scope, slash, tensor = plain_name(node.attrs["tensor_name"]).rpartition("/")
    if node.op.name == "_Send":
        return f"{scope}{slash}send {tensor}"
    return f"{scope}/receive {tensor}" if "/_" in scope else f"{node.attrs.get(GRAPH, '')}receive {tensor}"


def short_device(device: str) -> str:
    """``worker/0/CPU:0`` of a full name in replica 0."""
    words = device.replace("/replica:0", "").replace("/device:", "/").split("/")
    return "/".join([word.removeprefix("job:").removeprefix("task:") for word in words if word])


def plain_name(name: str) -> str:
    """``x/_copy/a_0_CPU_1`` is ``x (copy)``, ``while/first/while/Less`` is ``while/first/Less``."""
    name = _ADDED.sub(r"\1 (\2)", name) if "/_" in name else name
    return _FIRST.sub(r"\1/first/", name) if "/first/" in name else name


def is_full(device: str) -> bool:
    """Whether ``device`` names one device, as after placement, and is not a request."""
    return device.startswith("/job:") and "/device:" in device


def _scopes(names: Iterable[str]) -> set[str]:
    """All scopes in ``names``."""
    found: set[str] = set()
    for name in names:
        scope = name.rpartition("/")[0]
        while scope and scope not in found:
            found.add(scope)
            scope = scope.rpartition("/")[0]
    return found


def _shared_scope(names: Sequence[str]) -> str:
    """The outermost scope, if all of ``names`` are in one; else ""."""
    scopes = {name.partition("/")[0] for name in names}
    return scopes.pop() if len(scopes) == 1 and all("/" in name for name in names) else ""


def transport(send_device: str, recv_device: str) -> str:
    """The transport of a tensor from one device to the other, as far as the device names determine it."""
    (sender, _, source), (receiver, _, target) = (
        device.partition("/device:") for device in (send_device, recv_device)
    )
    if sender != receiver:
        return "network"  # shared memory where both tasks are on one host
    return "shared memory" if source[:3] == target[:3] == "CPU" else "device copy"


@lru_cache(maxsize=4096)
def _tensor(spec: TensorSpec) -> TensorView:
    dtype, shape = spec
    count = num_elements(shape)
    has_size = count is not None and dtype.np.kind != "O"
    return TensorView(dtype.name, shape, count * dtype.size if has_size and count is not None else None)


def line_of(node: Node) -> str:
    """The user's ``file:line`` that made ``node``, or that a file names for it; else ""."""
    return _source(node.source) or str(node.attrs.get(SOURCE, ""))


@lru_cache(maxsize=65536)
def _source(source: Source | None) -> str:
    return "" if source is None else str(source)


# --- attributes


@final
class AttrTexts:
    """The attributes of nodes as texts, each once: passes share those of nodes that they leave unchanged or
    only move.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], tuple[Mapping[str, Any], dict[str, str]]] = {}

    def of(self, node: Node) -> dict[str, str]:
        """See `short_attrs`."""
        key = id(node.attrs), node.op.name
        if key not in self._known:
            self._known[key] = node.attrs, short_attrs(node)  # a kept dict keeps its id
        return self._known[key][1]


def short_attrs(node: Node) -> dict[str, str]:
    """The attributes of ``node`` as texts; functions, which are drawn, are left out."""
    is_owner = node.op.effect is Effect.NESTED
    functions = {label.partition("[")[0] for label, _ in labelled_functions(node)} if is_owner else ()
    return {
        key: _short(node, key, value)
        for key, value in node.attrs.items()
        if key not in functions and value is not None
    }


def _short(node: Node, key: str, value: Any) -> str:
    if isinstance(value, np.ndarray):
        if value.nbytes <= MAX_EMBEDDED and value.dtype != object:
            return _clipped(format_value("tensor", value))
        return f"{value.dtype.name}[{', '.join(map(str, value.shape))}], {value.nbytes} bytes"
    if isinstance(value, Group):
        return _clipped(str(value))
    kind = attr_kind(node.op, key)
    try:
        return _clipped(str(value) if kind is None else format_value(kind, value))
    except (OpError, KeyError):  # without a text form: a Python function, a dtype that flowrt lacks
        return _clipped(str(value))


def _clipped(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
