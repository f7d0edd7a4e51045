"""`ClusterLinks`: seconds of collectives and messages between the devices of a cluster, for whole classes.

Rules of this file:
  1. The devices of a mesh are those of the cluster, in order: those of position 0 of a pipeline come first,
     and those of a position are in row-major order of its coordinates.
  2. A device sends one message at a time and receives one, as in `flowrt.graph.collectives.cost`. A step of a
     collective ends with its last message.
  3. All groups of a meeting begin together, so messages of a step that leave a host share its uplink, and
     those that leave a rack share the rack's: each has passed when the bytes of all have. The same holds at
     their ends, and for messages between two positions. Meetings of different works share nothing.
  4. The cheapest algorithm is taken, one for all groups: flat, of `flowrt.graph.collectives.algorithms`, or
     hierarchical: in each host, then between hosts with what is left, then between racks. There is none of
     these where groups are not spread alike over hosts and racks.

A flat step is what `schedule_of` gives. Only rings, with p - 1 equal steps, and exchanges of all with all,
where each pair of devices meets once, are closed forms: these schedules grow as the square of the group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.collectives.algorithms import Group, algorithms_for
from flowrt.graph.collectives.cost import schedule_of
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.replay.played import Meeting, Message

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

KINDS = {
    "all_reduce": "AllReduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_to_all": "AllToAll",
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "gather": "Gather",
    "scatter": "Scatter",
}
"""Kinds of meetings, and their names in `flowrt.graph.collectives`."""


class Traffic(NamedTuple):
    """Bytes that are sent in hosts, between hosts of a rack, and between racks."""

    in_hosts: float
    in_racks: float
    between_racks: float


@final
class ClusterLinks:
    """Seconds of meetings and messages of a mesh with these sizes of axes, without that of the stages, on the
    first devices of ``cluster``.

    Results have the mesh's shape, with 1 for the axes of a meeting, so they broadcast over its coordinates.

    >>> links = ClusterLinks(read_cluster("examples/clusters/gpus_64.toml"), {"dp": 8, "tp": 8})
    >>> links.meeting(0, Meeting("all_reduce", ("tp",), 1 << 20)).shape
    (8, 1)

    Raises `InvalidArgumentError` for a position with devices that the cluster does not have, an unknown axis
    and an unknown kind.
    """

    def __init__(self, cluster: Cluster, mesh_shape: Mapping[str, int]) -> None:
        self.cluster, self.mesh_shape = cluster, dict(mesh_shape)
        self._algorithms: dict[tuple[int, str, tuple[str, ...]], dict[str, _Algorithm]] = {}
        self._meetings: dict[tuple[int, Meeting], Floats] = {}
        self._messages: dict[tuple[int, int], _Timed] = {}

    @property
    def size(self) -> int:
        """The number of devices of a position."""
        return math.prod(self.mesh_shape.values())

    def meeting(self, position: int, meeting: Meeting) -> Floats:
        """Seconds of ``meeting`` in each group of devices at ``position``, by the cheapest algorithm."""
        found = self._meetings.get((position, meeting))
        if found is None:
            found = self.algorithms(position, meeting)[self.cheapest(position, meeting)]
            found.setflags(write=False)
            self._meetings[position, meeting] = found
        return found

    def message(self, position: int, message: Message) -> Floats:
        """Seconds of ``message`` between each device at ``position`` and that at the other position."""
        ends = (position, message.position) if message.is_sent else (message.position, position)
        timed = self._messages.get(ends)
        if timed is None:
            pairs = np.stack([self._devices(end) for end in ends], axis=-1)[:, None]
            timed = self._messages[ends] = _timed(self.cluster, pairs, [_MESSAGE])
        return timed.seconds(message.nbytes).reshape(tuple(self.mesh_shape.values()))

    def cheapest(self, position: int, meeting: Meeting) -> str:
        """The algorithm with the least time of the slowest group, the first of equals."""
        found = self.algorithms(position, meeting)
        return min(found, key=lambda name: float(found[name].max()))

    def algorithms(self, position: int, meeting: Meeting) -> dict[str, Floats]:
        """Seconds of ``meeting`` in each group, by algorithm: ``ring``, ``hierarchical 8x2`` and so on."""
        shape = [1 if axis in meeting.axes else size for axis, size in self.mesh_shape.items()]
        return {
            name: np.sum([phase.seconds(meeting.nbytes) for phase in phases], axis=0).reshape(shape)
            for name, phases in self._phases(position, meeting).items()
        }

    def traffic(self, position: int, meeting: Meeting) -> Traffic:
        """Bytes that all groups at ``position`` send, by the cheapest algorithm."""
        phases = self._phases(position, meeting)[self.cheapest(position, meeting)]
        sent = np.sum([phase.bytes_sent(meeting.nbytes) for phase in phases], axis=0)
        return Traffic(*sent.tolist())

    def _phases(self, position: int, meeting: Meeting) -> dict[str, _Algorithm]:
        key = (position, meeting.kind, meeting.axes)
        if key not in self._algorithms:
            self._algorithms[key] = self._found(*key)
        return self._algorithms[key]

    def _found(self, position: int, kind: str, axes: tuple[str, ...]) -> dict[str, _Algorithm]:
        for name, known in [(kind, [*KINDS]), *[(axis, [*self.mesh_shape]) for axis in axes]]:
            if name not in known:
                raise InvalidArgumentError(
                    f"{kind} along {', '.join(axes)}: expected one of {', '.join(known)}; got {name!r}."
                    f"{nearest(name, known)}"
                )
        groups = self._groups(position, axes)
        size = groups.shape[1]
        if size == 1:
            return {"none": (_Phase(0.0, (_timed(self.cluster, groups[:, None], []),)),)}
        found: dict[str, _Algorithm] = {
            name: (_Phase(1.0, (each,)),) for name, each in _flat(self.cluster, kind, groups[:, None])
        }
        for parts in _splits(_levels(self.cluster, groups)):
            name = f"hierarchical {'x'.join(map(str, parts))}"
            if phases := tuple(_hierarchical(self.cluster, kind, groups, parts)):
                found[name] = phases
        return found

    def _devices(self, position: int) -> Ints:
        first, end = position * self.size, (position + 1) * self.size
        if not 0 <= first < end <= self.cluster.num_devices:
            raise InvalidArgumentError(
                f"position {position}: expected a cluster of at least {end} devices; got one of "
                f"{self.cluster.num_devices}"
            )
        return np.arange(first, end)

    def _groups(self, position: int, axes: tuple[str, ...]) -> Ints:
        """Devices of each group, shape [groups, size], in order."""
        devices = self._devices(position).reshape(tuple(self.mesh_shape.values()))
        along = [number for number, name in enumerate(self.mesh_shape) if name in axes]
        size = math.prod(devices.shape[number] for number in along)
        return np.moveaxis(devices, along, range(-len(along), 0)).reshape(-1, size)


# --- steps of flat algorithms


class _Step(NamedTuple):
    """Messages from ranks ``sources`` to ``targets``, with a share of the payload each, ``times`` times."""

    sources: Ints
    targets: Ints
    shares: Floats
    times: int = 1


_MESSAGE = _Step(np.array([0]), np.array([1]), np.array([1.0]))


@lru_cache(maxsize=256)
def _steps(kind: str, lowering: str, size: int) -> tuple[_Step, ...]:
    """The steps of a flat algorithm among ``size`` ranks."""
    if lowering == "ring":
        ranks = np.arange(size)
        times = (size - 1) * (2 if kind == "all_reduce" else 1)
        return (_Step(ranks, (ranks + 1) % size, np.full(size, 1 / size), times),)
    schedule = schedule_of(KINDS[kind], lowering, Group(tuple(range(size))))
    found = [np.array([transfer[:4] for transfer in step]).T for step in schedule.steps]
    return tuple(_Step(s, t, (end - first) / schedule.chunks) for s, t, first, end in found)


def _flat(cluster: Cluster, kind: str, groups: Ints) -> Iterator[tuple[str, _Timed]]:
    """The flat algorithms among ``groups``, as `_timed`."""
    size = groups.shape[-1]
    for name in algorithms_for(KINDS[kind], Group(tuple(range(size)))):
        if name == "pairwise":
            yield name, _timed_pairwise(cluster, groups)
        elif name != "hierarchical":  # that of the tasks of a session
            yield name, _timed(cluster, groups, _steps(kind, name, size))


# --- hierarchies


def _levels(cluster: Cluster, groups: Ints) -> list[int]:
    """The number of devices of each host, of hosts of each rack, and of racks, of all groups of the shape
    [groups, size]; without those that are 1. One level if groups are not spread alike.
    """
    places = groups
    found = []
    for inner in (cluster.host.devices, cluster.rack.hosts):
        outer = places // inner
        run = int(np.argmax(np.append(outer[0] != outer[0, 0], True)))
        if outer.shape[1] % run:
            return [groups.shape[1]]
        runs = outer.reshape(len(outer), -1, run)
        if (runs != runs[:, :, :1]).any() or (runs[:, 1:, 0] == runs[:, :-1, 0]).any():
            return [groups.shape[1]]
        found.append(run)
        places = runs[:, :, 0]
    return [size for size in (*found, places.shape[1]) if size > 1]


def _splits(levels: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The levels, and all ways to join neighbours, as long as there are at least two."""
    for cuts in itertools.product((True, False), repeat=len(levels) - 1):
        parts = [levels[0]]
        for is_cut, size in zip(cuts, levels[1:], strict=True):
            parts = [*parts, size] if is_cut else [*parts[:-1], parts[-1] * size]
        if len(parts) > 1:
            yield tuple(parts)


def _hierarchical(cluster: Cluster, kind: str, groups: Ints, parts: tuple[int, ...]) -> Iterator[_Phase]:
    """The phases of a hierarchical algorithm, none if the kind has none. ``parts`` are the sizes of its
    levels, from the innermost.
    """

    def phase(kind: str, level: int, share: float) -> _Phase:
        spread = groups.reshape(len(groups), *reversed(parts))
        inside = np.moveaxis(spread, -1 - level, -1).reshape(len(groups), -1, parts[level])
        return _Phase(share, tuple(each for _, each in _flat(cluster, kind, inside)))

    levels = range(len(parts))
    left = [1 / math.prod(parts[:level]) for level in levels]
    if kind == "all_reduce":
        yield from (phase("reduce_scatter", level, left[level]) for level in levels[:-1])
        yield phase("all_reduce", levels[-1], left[-1])
        yield from (phase("all_gather", level, left[level]) for level in levels[-2::-1])
    elif kind in ("all_gather", "reduce_scatter"):
        yield from (phase(kind, level, left[level]) for level in levels)
    elif kind == "all_to_all":
        yield from (phase(kind, level, parts[level] / groups.shape[1]) for level in levels)


# --- time


class _Timed(NamedTuple):
    """Steps among groups, by tier: in hosts, in racks, between racks. Latencies are -inf where a group sends
    nothing.
    """

    times: Floats
    """Shape [steps]."""
    latency: Floats
    """Latency of a step, shape [steps, groups, tiers]."""
    seconds_per_byte: Floats
    """Seconds of the slowest message of a step per byte of the payload, shape [steps, groups, tiers]."""
    sent: Floats
    """Bytes sent by all, per byte of the payload, shape [tiers]."""

    def seconds(self, nbytes: float) -> Floats:
        """Seconds of each group."""
        return self.times @ (self.latency + self.seconds_per_byte * nbytes).max(axis=-1)


class _Phase(NamedTuple):
    """Collectives on a share of a meeting's bytes, by the cheapest of the ``options``."""

    share: float
    options: tuple[_Timed, ...]

    def _cheapest(self, nbytes: float) -> tuple[_Timed, Floats]:
        found = [(option, option.seconds(self.share * nbytes)) for option in self.options]
        return min(found, key=lambda pair: float(pair[1].max()))

    def seconds(self, nbytes: float) -> Floats:
        return self._cheapest(nbytes)[1]

    def bytes_sent(self, nbytes: float) -> Floats:
        return self._cheapest(nbytes)[0].sent * self.share * nbytes


_Algorithm: TypeAlias = tuple[_Phase, ...]
_TIERS = range(3)


def _timed(cluster: Cluster, groups: Ints, steps: Sequence[_Step]) -> _Timed:
    """The steps among all ``groups`` at a time, shape [groups, parts, ranks]: a group has parts that each do
    the steps among its ranks.
    """
    tiers = (len(steps), len(groups), len(_TIERS))
    latency, slowest, sent = np.full(tiers, -np.inf), np.zeros(tiers), np.zeros(len(_TIERS))
    for number, step in enumerate(steps):
        tier, per_byte = _messages(cluster, groups[..., step.sources], groups[..., step.targets], step.shares)
        for each in _TIERS:
            here = tier == each
            some = here.any(axis=(1, 2))
            latency[number, some, each] = _latency(cluster, each)
            slowest[number, :, each] = np.where(here, per_byte, 0).max(axis=(1, 2))
            sent[each] += step.times * (here * step.shares).sum()
    return _Timed(np.array([float(step.times) for step in steps]), latency, slowest, sent)


def _latency(cluster: Cluster, tier: int) -> float:
    link = cluster.rack.uplink if tier else cluster.host.link
    return link.latency if link is not None else 0.0


def _messages(cluster: Cluster, sources: Ints, targets: Ints, shares: Floats) -> tuple[Ints, Floats]:
    """The tier of each message, and its seconds per byte of the payload, if all are sent at a time."""
    shares = np.broadcast_to(shares, sources.shape)
    hosts = [ends // cluster.host.devices for ends in (sources, targets)]
    racks = [ends // cluster.rack.hosts for ends in hosts]
    tier = (hosts[0] != hosts[1]).astype(np.int64) + (racks[0] != racks[1])
    link = cluster.host.link
    found = shares / link.bandwidth if link is not None else np.zeros(shares.shape)
    if not tier.any():
        return tier, found
    out = np.where(tier > 0, shares, 0)
    far = np.where(tier > 1, shares, 0)
    by_host = np.maximum(*[_load(ends, out) for ends in hosts])
    by_rack = np.where(tier > 1, np.maximum(*[_load(ends, far) for ends in racks]), 0)
    outside = _uplink_seconds(cluster, out, by_host, by_rack)
    return tier, np.where(tier > 0, np.maximum(found, outside), found)


def _load(places: Ints, shares: Floats) -> Floats:
    """The sum of the shares at the same place, for each place."""
    return np.asarray(np.bincount(places.ravel(), shares.ravel())[places], np.float64)


def _uplink_seconds(cluster: Cluster, own: Floats, by_host: Floats, by_rack: Floats) -> Floats:
    """Seconds of the bytes ``own``, in order through one port, with all that leave its host and its rack."""
    uplink = cluster.rack.uplink
    assert uplink is not None, "a cluster of several hosts has uplinks"
    crowded = np.maximum(by_host, by_rack * uplink.oversubscription / cluster.rack.hosts)
    return np.maximum(own * uplink.ports, crowded) / uplink.bandwidth


def _timed_pairwise(cluster: Cluster, groups: Ints) -> _Timed:
    """Each rank sends a chunk to each other in p - 1 steps: every link is busy with its bytes of all steps.

    Exact if the busiest link is so in each step. In a group of several hosts at least one message per step
    leaves its host: a step has that latency.
    """
    count, _, size = groups.shape
    flat = groups.reshape(-1, size)
    hosts = flat // cluster.host.devices
    in_host, in_rack = _members(hosts), _members(hosts // cluster.rack.hosts)
    near, far = size - in_host, size - in_rack  # others of another host, and of another rack
    chunk = 1 / size**2
    sent = np.array([(in_host - 1).sum(), (in_rack - in_host).sum(), far.sum()]) * chunk
    link = cluster.host.link
    busy = np.full(flat.shape, (size - 1) * chunk / link.bandwidth if link is not None else 0.0)
    tier = (near.max(axis=1) > 0).astype(np.int64) + (far.max(axis=1) > 0)
    if tier.any():
        by_host = np.where(near > 0, _load(hosts, near * chunk), 0)
        by_rack = np.where(far > 0, _load(hosts // cluster.rack.hosts, far * chunk), 0)
        busy = np.maximum(busy, _uplink_seconds(cluster, near * chunk, by_host, by_rack))
    seconds = busy.max(axis=1).reshape(count, -1).max(axis=1)
    tiers = tier.reshape(count, -1).max(axis=1)
    latency, slowest = np.full((1, count, len(_TIERS)), -np.inf), np.zeros((1, count, len(_TIERS)))
    latency[0, np.arange(count), tiers] = [(size - 1) * _latency(cluster, each) for each in tiers.tolist()]
    slowest[0, np.arange(count), tiers] = seconds
    return _Timed(np.ones(1), latency, slowest, sent)


def _members(places: Ints) -> Ints:
    """The number of ranks of the same group at the same place, for each rank; shape [groups, ranks]."""
    keys = places + (places.max() + 1) * np.arange(len(places))[:, None]
    _, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return counts[inverse].reshape(places.shape)
