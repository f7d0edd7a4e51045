"""Placement: every node gets the full name of one device.

  1. Group. Nodes with a ``_class`` entry in common, and a resource with all its users, share a device.
  2. Choose. A group is allowed on the devices that its members' requests, their kernels and earlier placement
     all permit. The best of these is chosen: a GPU before a CPU, then the task of the default device (the
     caller's first), then the lowest index.
  3. Follow. Nodes without a request go to the cheapest device: a reader of metadata (a shape) to the
     tensor it describes, a constant to its consumers if they are together, a feed to its first consumer.

A set of devices is a bit mask over the caller's list: a group's mask is the ``&`` of its members', and zero
is a conflict. Soft placement drops type and index from unsatisfiable requests of a group, never job or task.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, reduce
from itertools import combinations
from operator import is_
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

from flowrt import dtypes
from flowrt.device.device_kinds import KINDS, rank_of
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.node import COLOCATION, Node, Subgraph, with_functions
from flowrt.graph.op_def import Effect, OpDef

LOCAL_JOB = "localhost"
"""Job name of the devices of a session without a cluster."""

WhyNone: TypeAlias = Mapping[str, Callable[[], str | None]]
"""Map from a device type to a function that explains why there is no such device; called for errors only: it
may take a second.
"""

NO_REASONS: WhyNone = MappingProxyType({})


def place(
    subgraph: Subgraph,
    devices: Sequence[DeviceSpec],
    *,
    assigned: Mapping[str, str],
    soft: bool,
    why_none: WhyNone = NO_REASONS,
) -> Subgraph:
    """``subgraph`` with one of ``devices`` (full names, the default device first) on every node.

    ``assigned`` maps nodes with state to their earlier devices, which they keep. Raises
    `InvalidArgumentError`, which names a smallest set of operations that cannot be placed, their requests and
    their source lines, and explains by ``why_none`` why a requested device type is missing.
    """
    placed = _Placer(subgraph, devices, assigned, soft, why_none).run()
    place_function = partial(place, devices=devices, soft=soft, why_none=why_none)

    def at_home(node: Node) -> Node:
        if node.op.effect is Effect.NESTED:
            homes = [placed[name] for name, _ in node.inputs]
            node = with_functions(node, lambda f: place_function(f, assigned=_at_handles(f, homes)))
        return node if node.device == placed[node.name] else node.replace(device=placed[node.name])

    others = [n for n in subgraph if n.device != placed[n.name] or n.op.effect is Effect.NESTED]
    moved = {node.name: at_home(node) for node in others}
    if all(map(is_, moved.values(), others)):
        return subgraph
    return subgraph.replace(nodes={**subgraph.nodes, **moved})


def _at_handles(function: Subgraph, homes: Sequence[str]) -> dict[str, str]:
    """The handle parameters of ``function``, with the devices of their arguments, among the devices ``homes``
    of its owner's inputs.
    """
    arguments = homes[len(homes) - len(function.feeds) :]  # follow a predicate or an index
    return {
        name: home
        for name, home in zip(function.feeds, arguments, strict=True)
        if function.nodes[name].outputs[0].dtype is dtypes.resource
    }


HOST_DTYPES = dtypes.NARROW | {dtypes.string}
"""Dtypes with CPU kernels only."""


def supports(node: Node, device_type: str) -> bool:
    """Whether a device of this type can run ``node``: strings, Python and I/O run on the host."""
    if device_type == "CPU":
        return True
    return not (
        _is_for_host(node.op)
        or any(spec[0] in HOST_DTYPES for spec in node.outputs)
        or any(_is_of_host(value) for value in node.attrs.values())
    )


@cache
def _is_for_host(op: OpDef) -> bool:
    """Whether ``op`` runs only on the host, whatever the types of a call."""
    if op.effect is Effect.STATEFUL or (op.is_pure and op.state is not None):
        return True
    return any(argument.dtype in HOST_DTYPES for argument in (*op.inputs, *op.outputs))


def _is_of_host(value: Any) -> bool:
    """Whether an attr is, or lists, a dtype that only the host supports."""
    if isinstance(value, DType):
        return value in HOST_DTYPES
    return isinstance(value, (list, tuple)) and any(isinstance(v, DType) and v in HOST_DTYPES for v in value)


class _Constraint(NamedTuple):
    """The devices that one requirement allows."""

    mask: int
    name: str
    fact: str


class _Placer:
    def __init__(
        self,
        subgraph: Subgraph,
        devices: Sequence[DeviceSpec],
        assigned: Mapping[str, str],
        soft: bool,
        why_none: WhyNone,
    ) -> None:
        self._subgraph, self._assigned, self._soft, self._why_none = subgraph, assigned, soft, why_none
        self._devices, self._names = devices, [d.to_string() for d in devices]
        self._ranked = sorted(range(len(devices)), key=lambda i: device_rank(devices[i], devices[0]))
        self._all = (1 << len(devices)) - 1
        self._types: dict[str, int] = {}
        """The devices of each type."""
        for i, device in enumerate(devices):
            kind = device.device_type or ""
            self._types[kind] = self._types.get(kind, 0) | 1 << i
        self._requests: dict[tuple[str, bool], int] = {}
        self._best: dict[int, str] = {}
        self._alone: dict[str, str] = {}
        """The device of a node alone by its request, if all devices have all kernels."""

    def run(self) -> Mapping[str, str]:
        """The device of each node, by name."""
        placed: dict[str, str] = {}
        for group in colocated_groups(self._subgraph):
            placed.update(dict.fromkeys(group, self._choose(group)))
        sources: dict[str, Node] = {}
        readers: list[Node] = []
        for node in self._subgraph:
            name = node.name
            if name in placed:
                continue
            if not node.device and name not in self._assigned:
                if is_metadata(node):
                    readers.append(node)
                    continue
                if not node.inputs and node.op.effect in (Effect.PURE, Effect.SOURCE):
                    sources[name] = node
            known = None if name in self._assigned else self._alone.get(node.device)
            placed[name] = known or self._choose_for(node)
        self._move_sources(sources, placed)
        for node in readers:
            placed[node.name] = self._follow(node, placed[node.inputs[0][0]])
        return placed

    def _move_sources(self, sources: Mapping[str, Node], placed: dict[str, str]) -> None:
        """Move ``sources`` to those of their consumers that are placed."""
        if not sources or len(set(placed.values())) < 2:
            return
        first: dict[str, str] = {}
        scattered: set[str] = set()
        for node in self._subgraph:
            device = placed.get(node.name)
            if device is None:
                continue
            for name, _ in node.inputs:
                if name in sources and first.setdefault(name, device) != device:
                    scattered.add(name)
        for name, device in first.items():
            if name not in scattered or sources[name].op.effect is Effect.SOURCE:
                placed[name] = self._follow(sources[name], device)

    def _follow(self, node: Node, device: str) -> str:
        """``device``, if the node's kernel allows it; otherwise the best."""
        if self._kernels(node) >> self._names.index(device) & 1:
            return device
        return self._choose_for(node)

    def _choose_for(self, node: Node) -> str:
        """The best device for ``node`` alone."""
        mask = self._request(node.device, False) & self._kernels(node)
        if not mask or node.name in self._assigned:
            return self._choose((node.name,))
        best = self._best_of(mask)
        if self._types.keys() == {"CPU"}:
            self._alone[node.device] = best
        return best

    # --- groups

    def _choose(self, names: Sequence[str]) -> str:
        """The best device for ``names`` together (some may not be in the subgraph)."""
        mask = self._mask(names)
        if not mask and self._soft:
            mask = self._intersection(self._constraints(names, relaxed=True))
        if not mask:
            raise self._conflict(names)
        return self._best_of(mask)

    def _mask(self, names: Sequence[str]) -> int:
        """The devices that all `_constraints` allow, each asked about once."""
        nodes, assigned = self._subgraph.nodes, self._assigned
        there = [nodes[name] for name in names if name in nodes]
        requests = {node.device for node in there if node.name not in assigned} - {""}
        requests |= {assigned[name] for name in names if name in assigned}
        masks = [self._request(request, False) for request in requests]
        if self._types.keys() != {"CPU"}:
            masks += [self._kernels(node) for node in there]
        return reduce(operator.and_, masks, self._all)

    def _constraints(self, names: Iterable[str], relaxed: bool) -> Iterator[_Constraint]:
        for name in names:
            node = self._subgraph.nodes.get(name)
            if name in self._assigned:
                device = self._assigned[name]
                yield _Constraint(
                    self._request(device, False), name, f"was placed on {device} by an earlier step"
                )
            elif node is not None and node.device:
                yield _Constraint(self._request(node.device, relaxed), name, f"requests {node.device}")
            if node is not None and (kernels := self._kernels(node)) != self._all:
                supported = [t for t in self._types if supports(node, t)] or ["none of them"]
                yield _Constraint(kernels, name, f"has kernels for {', '.join(supported)} only")

    def _best_of(self, mask: int) -> str:
        if mask not in self._best:
            self._best[mask] = next(self._names[i] for i in self._ranked if mask >> i & 1)
        return self._best[mask]

    # --- masks

    def _request(self, request: str, relaxed: bool) -> int:
        """The devices that satisfy a request; with ``relaxed``, ignoring its type and index."""
        key = (request, relaxed)
        if key not in self._requests:
            spec = parse_device(request)
            if relaxed:
                spec = spec.replace(device_type=None, device_index=None)
            self._requests[key] = sum([1 << i for i, d in enumerate(self._devices) if spec.matches(d)])
        return self._requests[key]

    def _kernels(self, node: Node) -> int:
        """The devices that can run ``node``."""
        mask = self._all
        for device_type, devices in self._types.items():
            if device_type != "CPU" and not supports(node, device_type):
                mask &= ~devices
        return mask

    # --- errors

    def _conflict(self, names: Sequence[str]) -> OpError:
        """The error for ``names``, naming a smallest set of requirements that leaves no device."""
        constraints = list(self._constraints(names, relaxed=self._soft))
        first_with = {c.mask: c for c in reversed(constraints)}
        distinct = [first_with[mask] for mask in dict.fromkeys(c.mask for c in constraints)]
        sets = (s for n in range(1, len(distinct) + 1) for s in combinations(distinct, n))
        smallest = next(s for s in sets if not self._intersection(s))
        ending = f"The devices are {', '.join(self._names)}.{self._reasons(c.name for c in smallest)}"
        if not self._soft and self._intersection(self._constraints(names, relaxed=True)):
            ending += " allow_soft_placement=True moves it to an existing device."
        facts = " and ".join(c.fact for c in smallest)
        node = self._subgraph.nodes.get(smallest[0].name)
        if len({c.name for c in smallest}) > 1:
            facts = "".join([f"\n  {self._describe(c.name)} {c.fact}" for c in smallest])
            message = (
                f"expected one device for operations that share a resource or are colocated; got{facts}\n"
            )
        elif len(smallest) == 1:
            message = f"expected a device that exists; the operation {facts}. "
        else:
            message = f"expected a device that has a kernel for the operation; it {facts}. "
        if node is None:
            return InvalidArgumentError(message + ending)
        source = None if node.source is None else str(node.source)
        return InvalidArgumentError(message + ending, op=node.name, op_type=_built_type(node), source=source)

    def _reasons(self, names: Iterable[str]) -> str:
        """Advice on each missing device that ``names`` request: how to configure it, or why there is none of
        its type, if the caller knows.
        """
        nodes = [self._subgraph.nodes[name] for name in names if name in self._subgraph.nodes]
        asked = {parse_device(node.device) for node in nodes}
        missing = {spec.device_type for spec in asked} - self._types.keys()
        reasons = [(kind, why()) for kind, why in self._why_none.items() if kind in missing]
        told = [f" There is no {kind}: {reason}." for kind, reason in reasons if reason]
        return "".join(told + [self._how_to_have(spec) for spec in asked])

    def _how_to_have(self, spec: DeviceSpec) -> str:
        """Advice for adding a device; empty for one that exists or cannot be added."""
        if spec.job not in (None, LOCAL_JOB) and all(device.job == LOCAL_JOB for device in self._devices):
            return (
                f" Job {spec.job!r} exists in a session of its cluster: Session(server.target), or"
                ' Session("grpc://host:port").'
            )
        task = spec.replace(device_type=None, device_index=None)
        kind, index = spec.device_type or "", spec.device_index or 0
        near = [device for device in self._devices if task.matches(device)]
        is_there = any((d.device_type, d.device_index) == (kind, index) for d in near)
        if kind not in KINDS or not KINDS[kind].is_made_by_count or is_there or not near:
            return ""
        is_local = any(device.job == LOCAL_JOB for device in near)
        whose = "of the session, or of its Server," if is_local else "of the task's Server"
        return f" ConfigProto(device_count={{{kind!r}: {index + 1}}}) {whose} creates it."

    def _intersection(self, constraints: Iterable[_Constraint]) -> int:
        return reduce(operator.and_, [constraint.mask for constraint in constraints], self._all)

    def _describe(self, name: str) -> str:
        node = self._subgraph.nodes.get(name)
        if node is None:
            return repr(name)
        return " ".join(filter(None, (_built_type(node), repr(name), node.source and f"({node.source})")))


def _built_type(node: Node) -> str | None:
    """The type of the operation that the user built; None if unknown: a Const may be a folded operation."""
    return None if node.op.name == "Const" else node.op.name


def device_rank(device: DeviceSpec, default: DeviceSpec) -> tuple[int, bool, str, int, int]:
    is_far = (device.job, device.replica, device.task) != (default.job, default.replica, default.task)
    return (
        rank_of(device.device_type or ""),
        is_far,
        device.job or "",
        device.task or 0,
        device.device_index or 0,
    )


def is_metadata(node: Node) -> bool:
    """Whether the node does shape arithmetic on one tensor: it is cheapest on that tensor's device."""
    if node.op.value is None or len(node.inputs) != 1 or len(node.outputs) != 1:
        return False
    return node.outputs[0].dtype.is_integer


# --- groups


def colocated_groups(subgraph: Subgraph) -> list[list[str]]:
    """The sets of names that must share a device, by union-find; some may name nodes outside the subgraph."""
    parent: dict[str, str] = {}
    find = partial(_find, parent)
    resources: set[str] = set()
    for node in subgraph:
        name = node.name
        for spec in node.outputs:
            if spec[0] is dtypes.resource:
                resources.add(name)
        if resources and node.op.effect is not Effect.NESTED:  # owned functions follow theirs
            for producer, index in node.inputs:
                if producer in resources and subgraph.nodes[producer].outputs[index][0] is dtypes.resource:
                    parent[find(name)] = find(producer)
        if COLOCATION in node.attrs:
            for entry in node.attrs[COLOCATION]:
                text = entry.decode() if isinstance(entry, bytes) else entry
                parent[find(name)] = find(text.removeprefix("loc:@"))  # any other is itself a group's name
    groups: dict[str, list[str]] = {}
    for name in parent:
        groups.setdefault(find(name), []).append(name)
    return list(groups.values())


def _find(parent: dict[str, str], name: str) -> str:
    """The representative of ``name``'s set; halves the path to it on the way."""
    parent.setdefault(name, name)
    while parent[name] != name:
        parent[name] = parent[parent[name]]
        name = parent[name]
    return name
