"""`ClusterMachine`: a described cluster as the search sees it, and the rates of its devices."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from flowrt.executor.analysis.cost import CALL_SECONDS
from flowrt.plan.cluster.cluster_file import Cluster, DeviceKind
from flowrt.plan.cluster.cluster_links import ClusterLinks
from flowrt.plan.replay.played import Meeting, Message
from flowrt.plan.step.costs import Rates

_FLOPS = {"float32": 60e9, "float64": 30e9, "bfloat16": 20e9, "float16": 20e9}
CORE = DeviceKind("core", _FLOPS, 4 << 30, 10e9, dict.fromkeys(_FLOPS, 0.7))
"""A core of a host, unless it is measured: one that computes 16 bits as float32, with conversions."""


def rates_of(kind: DeviceKind) -> Rates:
    """The rates that a device of ``kind`` reaches; operations of other dtypes wait for memory."""
    return Rates({dtype: kind.flops_reached(dtype) for dtype in kind.flops}, kind.bandwidth, CALL_SECONDS)


@final
class ClusterMachine:
    """All devices of ``cluster``; groups of them are evenly spaced."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.devices = cluster, cluster.num_devices
        self.devices_per_host, self.memory = cluster.host.devices, cluster.host.kind.memory
        self.collective = lru_cache(maxsize=None)(self._collective)
        self.message = lru_cache(maxsize=None)(self._message)

    def _collective(self, kind: str, size: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of ``size`` devices, ``stride`` apart, of ``nbytes`` in all."""
        shape = {"outer": self.devices // (size * stride), "group": size, "inner": stride}
        links = ClusterLinks(self.cluster, shape)
        return float(links.meeting(0, Meeting(kind, ("group",), int(nbytes))).max())

    def _message(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the device that is ``stride`` further."""
        links = ClusterLinks(self.cluster, {"inner": stride})
        return float(links.message(0, Message(1, "", int(nbytes), is_sent=True)).max())
