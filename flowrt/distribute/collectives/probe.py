"""``flowrt-worker --probe``: message latency and bandwidth between the tasks of a cluster.

    all tasks      form a mesh, each listening at its address
    task by task   exchange arrays with each other task, one after the other; the others only answer
    each task      fits seconds = a + b * bytes, per peer
    all tasks      exchange results: the median link of all is used to choose algorithms

The linear model is Hockney's, "The communication challenge for MPP" (1994). The fitted time is half a round
trip. The choice of algorithms (`flowrt.graph.collectives.cost`) reads a and b from the environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, final

import numpy as np

from flowrt.distribute.collectives.membership import Membership
from flowrt.distribute.collectives.mesh import Mesh
from flowrt.distribute.collectives.mesh_forming import form_mesh
from flowrt.distribute.resolvers import ResolvedCluster
from flowrt.errors import DataLossError, InvalidArgumentError
from flowrt.graph.collectives.cost import Link
from flowrt.rendezvous.channel.channel import Transport

PROBE_S = 30.0
"""Timeout for the others to arrive, and for an answer."""
ROUND_TRIPS = {64: 40, 4 << 10: 40, 64 << 10: 20, 256 << 10: 12, 1 << 20: 8, 4 << 20: 6, 16 << 20: 4}
"""Number of round trips by array size in bytes; as many warm-up rounds are not counted."""

_PING, _DONE = b"ping", b"done"


class Fit(NamedTuple):
    """``r_squared``: which share of the times' variance the line explains."""

    link: Link
    r_squared: float


@final
@dataclass(frozen=True, slots=True)
class Probed:
    """Measurements of one task to another; ``kind`` is that of the link, as `Connection.kind`."""

    job: str
    index: int
    address: str
    kind: str
    fit: Fit

    def __str__(self) -> str:
        latency_s, seconds_per_byte = self.fit.link
        return (
            f"{self.job} {self.index} at {self.address}: a {latency_s * 1e6:.1f} us, b "
            f"{seconds_per_byte * 1e9:.3f} ns per byte ({1e-9 / max(seconds_per_byte, 1e-15):.2f} GB/s), "
            f"R^2 {self.fit.r_squared:.4f}, by {self.kind}"
        )


def fit_line(seconds: Mapping[int, float]) -> Fit:
    """The least-squares line through ``seconds``, by bytes, in relative terms: 10 % count equally for small
    and large messages. Neither a nor b is negative.

    Raises `InvalidArgumentError` for fewer than two sizes.
    """
    if len(seconds) < 2:
        raise InvalidArgumentError(f"fit: expected the times of two sizes or more; got {len(seconds)}")
    sizes, times = np.array(list(seconds), float), np.array(list(seconds.values()))
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    a, b = np.linalg.lstsq(rows, np.ones_like(times), rcond=None)[0]
    a, b = max(float(a), 0.0), max(float(b), 0.0)
    residual = np.sum((times - a - b * sizes) ** 2)
    total = np.sum((times - times.mean()) ** 2)
    return Fit(Link(a, b), 1.0 - float(residual / total) if total else 1.0)


def probe_cluster(
    cluster: ResolvedCluster, transport: Transport, bind: str | None, seen: Callable[[Probed], object]
) -> Link | None:
    """Take part in a probe of all tasks of ``cluster``, which start within `PROBE_S` of each other. Returns
    the median link between two of them, equal for all; None if there is only one task.

    ``seen`` is called for each other task, on this thread. Raises the errors of `form_mesh`, and
    `DeadlineExceededError` or `UnavailableError` if a task is lost meanwhile.
    """
    tasks = list(cluster.spec.tasks())
    addresses = [address for _, _, address in tasks]
    rank = [each[:2] for each in tasks].index((cluster.job, cluster.task))
    if bind is not None:
        addresses[rank] = bind
    mesh = form_mesh(Membership("probe", rank, len(tasks), tuple(addresses), PROBE_S), transport)
    links = list[Link]()
    try:
        for prober in range(len(tasks)):
            if prober != rank:
                links += _answer(mesh, prober)
                continue
            own = []
            for other in mesh.membership.others:
                probed = Probed(*tasks[other], mesh.kind_of(other), fit_line(_ping(mesh, other)))
                own.append(probed.fit.link)
                seen(probed)
            for other in mesh.membership.others:
                mesh.send(other, _DONE, np.array(own).ravel())
            links += own
        mesh.flush("a probe")
    finally:
        mesh.close()
    return Link(*np.median(links, axis=0).tolist()) if links else None


def _ping(mesh: Mesh, rank: int) -> dict[int, float]:
    """Seconds that arrays take to ``rank``, by their bytes."""
    found = {}
    for nbytes, count in ROUND_TRIPS.items():
        array = np.ones(nbytes, np.uint8)
        times = []
        for _ in range(2 * count):
            start = time.perf_counter()
            mesh.send(rank, _PING, array)
            mesh.receive(rank, "a probe")
            times.append(time.perf_counter() - start)
        mesh.flush("a probe")
        found[nbytes] = median(times[count:]) / 2
    return found


def _answer(mesh: Mesh, prober: int) -> list[Link]:
    """Send back the arrays of ``prober``, until it has finished. Returns the links that it measured."""
    while True:
        arrived = mesh.receive(prober, "a probe")
        text, payload = arrived.text, arrived.payload
        if text == _DONE and payload is not None:
            mesh.flush("a probe")
            return [Link(*row) for row in payload.view(np.float64).reshape(-1, 2).tolist()]
        if text != _PING or payload is None:
            raise DataLossError(f"{mesh.membership}: expected a ping of rank {prober}; got {text!r}")
        mesh.send(prober, _PING, payload)
