"""`ClusterMachine`: a described cluster as the search sees it."""

from __future__ import annotations

from functools import lru_cache
from typing import final

from flowrt.plan.cluster_file import Cluster
from flowrt.plan.cluster_links import ClusterLinks
from flowrt.plan.played import Meeting, Message


@final
class ClusterMachine:
    """All devices of ``cluster``; groups of them are evenly spaced."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.devices = cluster, cluster.num_devices
        self.devices_per_host, self.memory = cluster.host.devices, cluster.host.kind.memory
        self.collective = lru_cache(maxsize=None)(self._collective)

    def _collective(self, kind: str, size: int, stride: int, nbytes: float) -> float:
        """Seconds of a collective of ``size`` devices, ``stride`` apart, of ``nbytes`` in all."""
        shape = {"outer": self.devices // (size * stride), "group": size, "inner": stride}
        links = ClusterLinks(self.cluster, shape)
        return float(links.meeting(0, Meeting(kind, ("group",), int(nbytes))).max())

    def message(self, stride: int, nbytes: float) -> float:
        """Seconds of a message to the device that is ``stride`` further."""
        links = ClusterLinks(self.cluster, {"inner": stride})
        return float(links.message(0, Message(1, "", int(nbytes), is_sent=True)).max())
