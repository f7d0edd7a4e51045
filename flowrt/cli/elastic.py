"""``flowrt-run`` with a range of workers: an elastic job. The flowrt-run of the first host coordinates it."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from flowrt.base.exit_codes import FAILURE
from flowrt.cli.options import positive
from flowrt.distribute.cluster.bind_policy import check_bind
from flowrt.distribute.cluster.cluster_spec import Address, ClusterSpec, parse_address
from flowrt.distribute.elastic.coordinator_client import ElasticPlace
from flowrt.distribute.elastic.coordinator_server import CoordinatorServer
from flowrt.distribute.launch.launcher import Task
from flowrt.distribute.launch.local_cluster import LOOPBACK, ReservedPorts, elastic_variables, expand_nodes
from flowrt.distribute.resolvers import ResolvedCluster
from flowrt.distribute.resolvers.source import workers
from flowrt.errors import UnavailableError
from flowrt.rendezvous.channel.security import load_security
from flowrt.rendezvous.transport import new_transport

_RANGE = re.compile(r"([0-9]{1,6})(?::([0-9]{1,6}))?")


class Range(NamedTuple):
    """A number that may change, from ``least`` to ``most``."""

    least: int
    most: int

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.may_change else str(self.most)

    @property
    def may_change(self) -> bool:
        return self.least != self.most


def positive_range(text: str) -> Range:
    """``N``, or ``MIN:MAX``, for argparse."""
    match = _RANGE.fullmatch(text)
    least, most = (match[1], match[2] or match[1]) if match else (text, text)
    found = Range(positive(least), positive(most))
    if found.least > found.most:
        raise argparse.ArgumentTypeError(f"expected MIN:MAX with MIN <= MAX; got {text}")
    return found


class ElasticHost(NamedTuple):
    """This host's part in an elastic job."""

    tasks: list[Task]
    coordinator: CoordinatorServer | None
    """The coordinator, on the first host."""
    has_others: bool
    """Whether there are other hosts."""

    def final_status(self, status: int, say: Callable[[str], object]) -> int:
        """The status for the shell, when this host's workers have ended with ``status``: that of the job,
        where that is known; ``say`` is told why it failed. Other hosts may go on without these workers, and
        with their coordinator.
        """
        if self.coordinator is None:
            return status
        self.coordinator.own_ended()
        while self.has_others and status <= 128 and not self.coordinator.is_over:
            self.coordinator.wait_until_over(1.0)
        if self.coordinator.why_failed is not None:
            say(f"the job failed: {self.coordinator.why_failed}")
            return status or FAILURE
        if not self.coordinator.is_over:
            if status == 0:
                say("all workers ended before the job did. Does the script train in train.run_elastic()?")
            return status or FAILURE
        return 0 if status <= 128 else status


def elastic_host(
    stack: ExitStack,
    nodes: ResolvedCluster,
    nnodes: Range,
    nproc: Range,
    spares: int,
    new_task: Callable[[int, Mapping[str, str]], Task],
    say: Callable[[str], object],
) -> ElasticHost:
    """The workers of this host, and the coordinator, which ``stack`` closes. ``new_task(number, variables)``
    makes a task. Raises as `CoordinatorServer` and `check_bind`, and `UnavailableError` for too few hosts.
    """
    count = nproc.most + spares
    if len(nodes.spec) == 1:
        ports = stack.enter_context(ReservedPorts(count + 1)).ports
        spec, coordinator, here = workers((LOOPBACK, port) for port in ports[1:]), f"{LOOPBACK}:{ports[0]}", 0
    else:
        spec, port = expand_nodes(nodes.spec, count)
        here = [task[:2] for task in nodes.spec.tasks()].index((nodes.job, nodes.task))
        coordinator = str(Address(parse_address(nodes.spec.task_address(*_first(nodes.spec))).host, port))
    server = None
    if here == 0:
        security = load_security(os.environ, Path.home())
        check_bind(coordinator, security)
        least, most = nnodes.least * nproc.least, nnodes.most * nproc.most
        server = CoordinatorServer(coordinator, new_transport(security), least, most, say)
        stack.callback(server.close)
    tasks, own = [], [*spec.tasks()][here * count : (here + 1) * count]
    for local, (_, index, address) in enumerate(own):
        place = ElasticPlace(
            coordinator, f"worker {index}", f"{here} ({parse_address(address).host})", address
        )
        tasks.append(new_task(index, elastic_variables(os.environ, place, local, nproc.most)))
    hosts = f"{nnodes} host{'s' if nnodes.most > 1 else ''}"
    each = f"{hosts}, {nproc} workers and {spares} spares on each"
    say(f"elastic: {each}; coordinator at {coordinator}, the first worker here at grpc://{own[0][2]}")
    return ElasticHost(tasks, server, len(nodes.spec) > 1)


def hosts_of(nodes: ResolvedCluster, nnodes: Range | None) -> Range:
    """The numbers of hosts that the job may have. Raises `UnavailableError` if fewer are described."""
    there = len(nodes.spec)
    nnodes = nnodes or Range(there, there)
    if there < nnodes.least:
        raise UnavailableError(
            f"expected {nnodes} hosts; got {there}, from {nodes.source}. See docs/cluster.md for how hosts "
            "are described"
        )
    return Range(nnodes.least, min(nnodes.most, there))


def _first(spec: ClusterSpec) -> tuple[str, int]:
    return next((job, index) for job, index, _ in spec.tasks())
