"""`Cluster`: devices, hosts, racks and links, described in ``cluster.toml``.

    [device.a100]                    # a kind of device: rates of one
    flops = { bfloat16 = 312e12, float32 = 19.5e12 }
    memory = "80GiB"
    bandwidth = "2.0TB/s"            # of its memory
    efficiency = 0.55                # share of flops that is reached; or a table by dtype, like flops

    [host]
    devices = "8 x a100"
    link = { latency = "3us", bandwidth = "300GB/s" }         # of each device to the others of its host

    [rack]                           # left out: one host
    hosts = 16
    uplink = { latency = "8us", bandwidth = "200GB/s", ports = 8, oversubscription = 2 }

    [cluster]                        # left out: one rack
    racks = 79

    [speed]                          # of unequal hosts, by number; 1 for all others
    3 = 0.8
    16-31 = 1.1

All hosts have equal devices and links. ``uplink`` is the link of each host to its rack's switch; a message
uses one of its ``ports``. A rack sends to the others as much as its hosts together, divided by
``oversubscription``. A message has the latency of ``link`` inside of a host, of ``uplink`` between hosts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError, nearest
from flowrt.graph.collectives.cost import LINKS_VARIABLE, Link, links_of
from flowrt.plan.cluster.toml_value import BYTE_RATES, BYTES, SECONDS, Value, format_quantity, parse_toml

MAX_DEVICES = 1_000_000
"""Limit for a cluster: a larger number is a typing error."""

_DTYPES = tuple(
    name
    for name in dtypes.__all__
    if isinstance(found := getattr(dtypes, name), dtypes.DType) and found.is_numeric
)


@final
@dataclass(frozen=True)
class DeviceKind:
    """Rates of a device: ``flops`` in operations per second by dtype; by the same dtypes the share of them
    that is reached, ``efficiency``; ``memory`` in bytes, and its ``bandwidth`` in bytes per second.
    """

    name: str
    flops: Mapping[str, float] = field(hash=False)
    memory: int
    bandwidth: float
    efficiency: Mapping[str, float] = field(hash=False)

    def flops_reached(self, dtype: str) -> float:
        """Operations per second in ``dtype``. Raises `InvalidArgumentError` if its rate is not known."""
        if dtype not in self.flops:
            raise InvalidArgumentError(
                f"device {self.name}: expected a dtype with known flops ({', '.join(self.flops)}); got "
                f"{dtype!r}.{nearest(dtype, self.flops)}"
            )
        return self.flops[dtype] * self.efficiency[dtype]


class Wire(NamedTuple):
    """A link of each device to the others of its host: seconds, and bytes per second in each direction."""

    latency: float
    bandwidth: float

    @property
    def link(self) -> Link:
        return Link(self.latency, 1 / self.bandwidth)


class Uplink(NamedTuple):
    """The link of each host to its rack's switch, of ``ports`` equal ports. A rack's link to the others has
    the bandwidth of its hosts' uplinks together, divided by ``oversubscription``.
    """

    latency: float
    bandwidth: float
    ports: int = 1
    oversubscription: float = 1.0


@final
@dataclass(frozen=True)
class Host:
    """``devices`` devices of a kind; ``link`` is None only for a single one."""

    kind: DeviceKind
    devices: int
    link: Wire | None = None


@final
@dataclass(frozen=True)
class Rack:
    """``hosts`` hosts; ``uplink`` is None only where there is no other host in the cluster."""

    hosts: int = 1
    uplink: Uplink | None = None


class Speed(NamedTuple):
    """Hosts ``first`` to ``last`` compute at ``factor`` times the speed of the others."""

    first: int
    last: int
    factor: float


@final
@dataclass(frozen=True)
class Cluster:
    """Racks of equal hosts with equal devices, which differ only in their ``speeds``. Devices, hosts and
    racks are numbered from 0: those of a host, and of a rack, follow each other.

    ``kinds`` are all that the file describes; the hosts have one of them. Raises `InvalidArgumentError` for
    devices or hosts without a link to each other.
    """

    kinds: tuple[DeviceKind, ...]
    host: Host
    rack: Rack = Rack()
    racks: int = 1
    speeds: tuple[Speed, ...] = ()

    def __post_init__(self) -> None:
        for count, link, name in (
            (self.host.devices, self.host.link, "devices of a host"),
            (self.num_hosts, self.rack.uplink, "hosts"),
        ):
            if count > 1 and link is None:
                raise InvalidArgumentError(f"cluster: expected a link between {count} {name}; got none")

    @property
    def num_hosts(self) -> int:
        return self.racks * self.rack.hosts

    @property
    def num_devices(self) -> int:
        return self.num_hosts * self.host.devices

    def device_speeds(self) -> npt.NDArray[np.float64]:
        """The speed of each device, 1 by default: computing takes the seconds divided by it."""
        found = np.ones(self.num_hosts)
        for first, last, factor in self.speeds:
            found[first : last + 1] = factor
        return found.repeat(self.host.devices)


def this_host(processes: int, kind: DeviceKind, environ: Mapping[str, str] = os.environ) -> Cluster:
    """The cluster of ``processes`` processes of this host, each a device of ``kind``, with the links between
    tasks that ``environ`` has (`links_of`).

    Raises `InvalidArgumentError` for fewer than one process, and as `links_of`.
    """
    if not 1 <= processes <= MAX_DEVICES:
        raise InvalidArgumentError(f"this_host: expected at least one process; got {processes}")
    latency, seconds_per_byte = links_of(environ).between
    if not seconds_per_byte:
        raise InvalidArgumentError(
            f"{LINKS_VARIABLE}: expected seconds per byte above 0 between tasks; got 0"
        )
    return Cluster((kind,), Host(kind, processes, Wire(latency, 1 / seconds_per_byte)))


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster described in the file ``path``. Raises `InvalidArgumentError`, with file and line, for
    anything but a readable file with a cluster.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:  # ValueError: no text, or no name of a file
        raise InvalidArgumentError(f"{path}: expected a readable file with a cluster; got {error}") from None
    return parse_cluster(text, os.fspath(path))


def parse_cluster(text: str, name: str = "cluster.toml") -> Cluster:
    """The cluster described in ``text``; ``name`` is that of the file in errors.

    >>> host = "devices = '2 x cpu'\\nlink = { latency = '3us', bandwidth = '100Gbit/s' }"
    >>> rates = "flops = { float32 = 1e11 }\\nmemory = '8GiB'\\nbandwidth = '20GB/s'\\nefficiency = 0.5"
    >>> parse_cluster(f"[device.cpu]\\n{rates}\\n[host]\\n{host}").host.link
    Wire(latency=3e-06, bandwidth=12500000000.0)

    Raises `InvalidArgumentError`, with file, line and the nearest known name, for a text that is not TOML, an
    unknown or missing table or key, a value of a wrong type, unit or size, and a missing link.
    """
    tables = parse_toml(text, name).table(("device", "host"), optional=("rack", "cluster", "speed"))
    kinds = {key: _kind(key, value) for key, value in tables["device"].entries().items()}
    racks = tables["cluster"].table(("racks",))["racks"].whole(MAX_DEVICES) if "cluster" in tables else 1
    rack = _rack(tables["rack"], racks) if "rack" in tables else Rack()
    if racks > 1 and "rack" not in tables:
        tables["cluster"].fail("expected a table [rack] as there are several; got none")
    cluster = Cluster(tuple(kinds.values()), _host(tables["host"], kinds), rack, racks)
    if cluster.num_devices > MAX_DEVICES:
        tables["host"].fail(f"expected at most {MAX_DEVICES:,} devices in all; got {cluster.num_devices:,}")
    speeds = _speeds(tables["speed"], cluster.num_hosts) if "speed" in tables else ()
    return Cluster(cluster.kinds, cluster.host, rack, racks, speeds)


def _kind(name: str, value: Value) -> DeviceKind:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        value.fail("expected a name of letters, digits, '-' and '_'")
    found = value.table(("flops", "memory", "bandwidth", "efficiency"))
    flops = {key: rate.number(1, 1e24) for key, rate in found["flops"].entries(_DTYPES).items()}
    efficiency = found["efficiency"]
    if isinstance(efficiency.found, dict):
        shares = {key: rate.number(1e-6, 1) for key, rate in efficiency.table(tuple(flops)).items()}
    else:
        shares = dict.fromkeys(flops, efficiency.number(1e-6, 1))
    memory = round(found["memory"].quantity(BYTES, 1))
    return DeviceKind(
        name,
        MappingProxyType(flops),
        memory,
        found["bandwidth"].quantity(BYTE_RATES, 1),
        MappingProxyType({key: shares[key] for key in flops}),
    )


def _host(value: Value, kinds: Mapping[str, DeviceKind]) -> Host:
    found = value.table(("devices",), optional=("link",))
    devices = found["devices"]
    match = re.fullmatch(r"([1-9]\d{0,6}) x (.+)", devices.text("a number and a kind, such as '8 x a100'"))
    if match is None:
        devices.fail(f"expected a number and a kind, such as '8 x a100'; got {devices}")
    number, name = int(match[1]), match[2]
    if name not in kinds:
        devices.fail(f"expected a kind with a table [device.{name[:40]}]; got none.{nearest(name, kinds)}")
    if "link" in found:
        link = found["link"].table(("latency", "bandwidth"))
        wire = Wire(link["latency"].quantity(SECONDS, 0), link["bandwidth"].quantity(BYTE_RATES, 1))
        return Host(kinds[name], number, wire)
    if number > 1:
        value.fail("expected a link, as there are several devices; got none")
    return Host(kinds[name], number)


def _rack(value: Value, racks: int) -> Rack:
    found = value.table(("hosts",), optional=("uplink",))
    hosts = found["hosts"].whole(MAX_DEVICES)
    if "uplink" in found:
        link = found["uplink"].table(("latency", "bandwidth"), optional=("ports", "oversubscription"))
        latency, bandwidth = link["latency"].quantity(SECONDS, 0), link["bandwidth"].quantity(BYTE_RATES, 1)
        ports = link["ports"].whole(MAX_DEVICES) if "ports" in link else 1
        ratio = link["oversubscription"].number(1, 1e6) if "oversubscription" in link else 1.0
        return Rack(hosts, Uplink(latency, bandwidth, ports, ratio))
    if hosts * racks > 1:
        value.fail("expected an uplink, as there are several hosts; got none")
    return Rack(hosts)


def _speeds(value: Value, hosts: int) -> tuple[Speed, ...]:
    speeds = list[Speed]()
    for key, factor in value.entries().items():
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7}))?", key, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if not first <= last < hosts:
            factor.fail(
                f"expected the numbers of hosts from 0 to {hosts - 1}, such as 3 or 4-7; got {key!r:.40}"
            )
        if any(first <= other.last and other.first <= last for other in speeds):
            factor.fail("expected one speed for each host; got a second")
        speeds.append(Speed(first, last, factor.number(1e-6, 1e6)))
    return tuple(speeds)


def format_cluster(cluster: Cluster) -> str:
    """The text of ``cluster``, which `parse_cluster` reads back."""
    tables = {f"device.{kind.name}": _kind_lines(kind) for kind in cluster.kinds}
    host, rack = cluster.host, cluster.rack
    tables["host"] = {"devices": f'"{host.devices} x {host.kind.name}"'}
    if host.link is not None:
        tables["host"]["link"] = _inline(_wire_lines(*host.link))
    tables["rack"] = {"hosts": str(rack.hosts)}
    if rack.uplink is not None:
        latency, bandwidth, ports, ratio = rack.uplink
        more = {"ports": str(ports), "oversubscription": repr(ratio)}
        tables["rack"]["uplink"] = _inline(_wire_lines(latency, bandwidth) | more)
    tables["cluster"] = {"racks": str(cluster.racks)}
    if cluster.speeds:
        tables["speed"] = {f"{first}-{last}": repr(factor) for first, last, factor in cluster.speeds}
    return "\n".join(
        "".join([f"[{table}]\n", *[f"{key} = {text}\n" for key, text in lines.items()]])
        for table, lines in tables.items()
    )


def _kind_lines(kind: DeviceKind) -> dict[str, str]:
    shares = set(kind.efficiency.values())
    table = _inline({dtype: repr(share) for dtype, share in kind.efficiency.items()})
    return {
        "flops": _inline({dtype: repr(rate) for dtype, rate in kind.flops.items()}),
        "memory": format_quantity(kind.memory, BYTES),
        "bandwidth": format_quantity(kind.bandwidth, BYTE_RATES),
        "efficiency": repr(shares.pop()) if len(shares) == 1 else table,
    }


def _wire_lines(latency: float, bandwidth: float) -> dict[str, str]:
    return {"latency": format_quantity(latency, SECONDS), "bandwidth": format_quantity(bandwidth, BYTE_RATES)}


def _inline(lines: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {text}" for key, text in lines.items()) + " }"
