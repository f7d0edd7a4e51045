"""`Inspection`: what a task tells observers of the cluster: its metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import flowrt.version
from flowrt.device.device import Device
from flowrt.distribute.collectives.call_totals import TOTALS
from flowrt.distribute.connection_manager import ConnectionManager
from flowrt.distribute.observe.exposition import exposition
from flowrt.distribute.observe.metrics import Counts, Sample, short_task
from flowrt.distribute.observe.metrics_page import MetricsPage
from flowrt.distribute.observe.process_facts import process_samples
from flowrt.rendezvous.channel.security import Security


class WorkerFacts(NamedTuple):
    sessions: int
    is_draining: bool


@final
class Inspection:
    """The observers' view of ``task``, with its ``devices``. ``facts()`` is the state of its worker."""

    def __init__(
        self,
        task: str,
        counts: Counts,
        connections: ConnectionManager,
        devices: Sequence[Device],
        facts: Callable[[], WorkerFacts],
    ) -> None:
        self._task, self._counts, self._connections = task, counts, connections
        self._devices, self._facts = devices, facts
        self._page: MetricsPage | None = None

    @property
    def url(self) -> str | None:
        """Address of the metrics by HTTP, None if they are not served."""
        return None if self._page is None else self._page.url

    def serve(self, address: str, security: Security) -> None:
        """Serve the metrics by HTTP, until `close`. Raises as `MetricsPage`."""
        self._page = MetricsPage(address, security, self.text)

    def close(self) -> None:
        """Idempotent."""
        if self._page is not None:
            self._page.close()

    def text(self) -> str:
        """The metrics of now, as Prometheus reads them."""
        return exposition(self.samples(), short_task(self._task))

    def samples(self) -> Iterator[Sample]:
        """The metrics of now."""
        yield Sample("flowrt_info", 1, (("version", flowrt.version.VERSION),))
        yield from self._counts.read()
        totals, facts = TOTALS.read(), self._facts()
        yield Sample("flowrt_collectives_total", totals.calls)
        yield Sample("flowrt_collective_seconds_total", totals.seconds)
        yield Sample("flowrt_collective_bytes_total", totals.nbytes)
        yield Sample("flowrt_sessions", facts.sessions)
        yield Sample("flowrt_draining", facts.is_draining)
        yield Sample("flowrt_peers", self._connections.num_peers)
        yield Sample("flowrt_lost_peers_total", self._connections.num_lost)
        for device in self._devices:
            label, stats = (("device", device.name.rpartition("device:")[2]),), device.pool.stats()
            yield Sample("flowrt_device_memory_bytes", stats.bytes_in_use, label)
            yield Sample("flowrt_device_memory_peak_bytes", stats.peak_bytes_in_use, label)
            yield Sample("flowrt_device_memory_limit_bytes", stats.bytes_limit or 0, label)
        yield from process_samples()
