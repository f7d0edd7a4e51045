"""`Inspection`: what a task tells watchers of the cluster: its metrics, and profiles of its next steps.

    GET /metrics          --> text for Prometheus
    GetMetrics            --> Metrics            ``flowrt top``
    ProfileSteps(n)       --> StepProfiles       ``flowrt profile``, when n steps have ended

A watcher is a client without a session. It asks each task itself, so tasks connect to no other for it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import final

import numpy as np

import flowrt.version
from flowrt.device.device import Device
from flowrt.distribute.cluster.metrics_address import is_asked_for
from flowrt.distribute.cluster.threads import Threads
from flowrt.distribute.collectives.call_totals import TOTALS
from flowrt.distribute.connection_manager import ConnectionManager
from flowrt.distribute.observe.exposition import exposition
from flowrt.distribute.observe.metrics import Counts, Sample, short_task
from flowrt.distribute.observe.metrics_page import MetricsPage
from flowrt.distribute.observe.process_facts import process_samples
from flowrt.distribute.wire.clock import offset_of
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.worker.local_steps import LocalSteps
from flowrt.distribute.worker.step_profiles import TracedStep
from flowrt.distribute.worker.steps import Steps
from flowrt.distribute.worker.worker import Worker
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.executor.observe.step_watch import step_watch, watch_steps
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.security import Security

MAX_STEPS = 1000
MAX_PROFILE_S = 3600.0


@final
class Inspection:
    """The watchers' view of ``task``, with its ``worker`` and ``devices``, in a cluster of ``addresses``."""

    def __init__(
        self,
        task: str,
        addresses: Mapping[str, str],
        worker: Worker,
        steps: Steps,
        counts: Counts,
        connections: ConnectionManager,
        devices: Sequence[Device],
        threads: Threads,
    ) -> None:
        self._task, self._addresses, self._worker, self._steps = task, addresses, worker, steps
        self._counts, self._connections = counts, connections
        self._devices, self._threads = devices, threads
        self._began = time.monotonic()
        self._page: MetricsPage | None = None
        self._local_steps: LocalSteps | None = None

    @property
    def url(self) -> str | None:
        """Address of the metrics by HTTP, None if they are not served."""
        return None if self._page is None else self._page.url

    def is_serving(self) -> bool:
        """Whether the task takes work."""
        return not self._worker.is_draining

    def serve(self, address: str | None, security: Security) -> None:
        """Serve the metrics by HTTP at ``address``, until `close`; None: nowhere. If the user asked for them,
        count and profile the steps of the process's own sessions, too. Raises as `MetricsPage`.
        """
        if address is None:
            return
        self._page = MetricsPage(address, security, self.text)
        if is_asked_for():  # such steps take a little longer then, so not unasked
            self._local_steps = LocalSteps(self._task, self._counts, self._steps.profiles)
            watch_steps(self._local_steps)

    def close(self) -> None:
        """Idempotent."""
        if self._local_steps is not None and step_watch() is self._local_steps:
            watch_steps(None)
        if self._page is not None:
            self._page.close()

    def text(self) -> str:
        """The metrics of now, as Prometheus reads them."""
        return exposition(self.samples(), short_task(self._task))

    def samples(self) -> Iterator[Sample]:
        """The metrics of now."""
        yield Sample("flowrt_info", 1, (("version", flowrt.version.VERSION),))
        yield from self._counts.read()
        totals = TOTALS.read()
        yield Sample("flowrt_collectives_total", totals.calls)
        yield Sample("flowrt_collective_seconds_total", totals.seconds)
        yield Sample("flowrt_collective_bytes_total", totals.nbytes)
        yield Sample("flowrt_sessions", self._worker.num_sessions)
        yield Sample("flowrt_draining", self._worker.is_draining)
        yield Sample("flowrt_peers", self._connections.num_peers)
        yield Sample("flowrt_lost_peers_total", self._connections.num_lost)
        for device in self._devices:
            label, stats = (("device", device.name.rpartition("device:")[2]),), device.pool.stats()
            yield Sample("flowrt_device_memory_bytes", stats.bytes_in_use, label)
            yield Sample("flowrt_device_memory_peak_bytes", stats.peak_bytes_in_use, label)
            yield Sample("flowrt_device_memory_limit_bytes", stats.bytes_limit or 0, label)
        yield from process_samples()

    # --- requests of watchers

    def asked(self, token: str, request_id: int, message: Message) -> None:
        """Answer the peer ``token``: to `GetMetrics` now, to `ProfileSteps` when the steps have ended."""
        try:
            if type(message.body) is pb.GetMetrics:
                self._answer(token, request_id, Message(self._metrics()), None)
            else:
                self._profile(token, request_id, message.body)
        except OpError as error:
            self._answer(token, request_id, None, error)

    def _metrics(self) -> pb.Metrics:
        metrics = pb.Metrics(
            task=self._task,
            seconds=time.monotonic() - self._began,
            url=self.url or "",
            addresses=self._addresses,
        )
        for name, value, labels in self.samples():
            metrics.samples.add(name=name, value=value, labels=dict(labels))
        return metrics

    def _profile(self, token: str, request_id: int, asked: pb.ProfileSteps) -> None:
        timeout_s = asked.timeout_ms / 1000
        if not (1 <= asked.steps <= MAX_STEPS and 0 < timeout_s <= MAX_PROFILE_S):
            raise InvalidArgumentError(
                f"profile: expected 1 to {MAX_STEPS} steps within {MAX_PROFILE_S:g} s; got {asked.steps} "
                f"within {timeout_s:g} s"
            )

        def complete(steps: Sequence[TracedStep]) -> None:
            self._threads.submit(functools.partial(self._tell_profile, token, request_id, steps))

        self._steps.profiles.add(asked.steps, time.monotonic() + timeout_s, complete)

    def _tell_profile(self, token: str, request_id: int, steps: Sequence[TracedStep]) -> None:
        """Answer, by the peer's clock. Not on a thread that the peer's answers arrive on."""
        peer = self._connections.find(token)
        if peer is None:
            return
        shift_ns = offset_of(peer)
        stats = [np.frombuffer(trace.encode(shift_ns), np.uint8) for _, trace in steps]
        body = pb.StepProfiles(task=self._task, steps=[step for step, _ in steps])
        self._answer(token, request_id, Message(body, stats), None)

    def _answer(self, token: str, request_id: int, message: Message | None, error: OpError | None) -> None:
        peer = self._connections.find(token)
        if peer is not None:
            peer.answer(request_id, message, error)
