"""Graphs that each have some ranks of a group: each with a session and a thread of its own, joined by real
connections.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.distribute import collectives
from flowrt.distribute.collectives import Group, JoinedGroup, join
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.errors import OpError
from tests.contracts.check_collectives import LATE_S, CollectiveCall, expected

SOON_S = 60.0
_keys = itertools.count()

Body = Callable[[JoinedGroup], Any]


@contextmanager
def parts_of(
    split: Sequence[tuple[int, ...]], kind: str = "grpc", timeout_s: float = SOON_S
) -> Iterator[list[JoinedGroup]]:
    """One group, joined once for each of ``split``, the ranks of one graph each."""
    size, key = sum(map(len, split)), f"group {next(_keys)}"
    with ReservedPorts(size) as reserved:
        addresses = [f"127.0.0.1:{port}" for port in reserved.ports]
        with ThreadPoolExecutor(len(split)) as pool:
            groups = [Group(key, size, ranks) for ranks in split]
            futures = [pool.submit(join, g, addresses, kind, timeout_s) for g in groups]
            joined = [future.result(SOON_S) for future in futures]
        try:
            yield joined
        finally:
            for part in joined:
                part.close()


def at_once(joined: Sequence[JoinedGroup], bodies: Sequence[Body]) -> list[Any]:
    """What the bodies return, or the `OpError` that they raise, each on a thread, one for each part."""

    def run(body: Body, part: JoinedGroup) -> Any:
        try:
            return body(part)
        except OpError as error:
            return error

    with ThreadPoolExecutor(len(joined)) as pool:
        return list(pool.map(run, bodies, joined, timeout=SOON_S))


def run_graph(group: Group, build: Callable[[list[str]], list[Any]], times: int = 1) -> list[Any]:
    """The results of what ``build`` makes on the devices of the group's ranks in a graph of its own."""
    devices = [f"/device:CPU:{i}" for i in range(len(group.ranks))]
    with tf.Graph():
        made = build(devices)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": len(devices)})) as session:
            for _ in range(times):
                results = session.run(made)
    return list(results)


def on(devices: Sequence[str], values: Sequence[Any]) -> list[Any]:
    """``values`` as tensors, each on its device, which the passes do not know before the step."""
    found = []
    for device, value in zip(devices, values, strict=True):
        with tf.device(device):
            found.append(tf.Variable(value, name="v").initialized_value())
    return found


def meet(p: int, lowering: str) -> list[tuple[float, float]]:
    """See `tests.contracts.check_collectives.Meet`. Each rank is in a graph of its own: those of one graph
    begin together.
    """

    def body(part: JoinedGroup) -> Any:
        def build(devices: list[str]) -> list[Any]:
            came = _clock(LATE_S if part.group.ranks == (p - 1,) else 0.0)
            with tf.control_dependencies([came]):
                done = collectives.barrier(devices, part.group, lowering)
            with tf.control_dependencies(done):
                return [came, _clock(0.0)]

        return tuple(run_graph(part.group, build))

    with parts_of([(rank,) for rank in range(p)]) as joined:
        return at_once(joined, [body] * p)


def _clock(late_s: float) -> Any:
    def read() -> float:
        time.sleep(late_s)
        return time.monotonic()

    return tf.py_func(read, [], tf.float64)


def build_call(call: CollectiveCall, group: Group, devices: list[str], lowering: str) -> list[Any]:
    """The results of this graph's ranks."""
    attrs, ranks = dict(call.attrs), group.ranks
    options = {"group": group, "lowering": lowering, **attrs}
    if call.kind in ("Broadcast", "Scatter"):
        root = attrs["root"]
        value: Any = (call.values[0].dtype, call.values[0].shape)
        if root in ranks:
            (value,) = on([devices[ranks.index(root)]], call.values)
        function = collectives.broadcast if call.kind == "Broadcast" else collectives.scatter
        return function(value, devices, **options)
    values = on(devices, [call.values[rank] for rank in ranks])
    match call.kind:
        case "Reduce" | "Gather":
            function = collectives.reduce if call.kind == "Reduce" else collectives.gather
            return [function(values, **options)]
        case "AllReduce":
            return collectives.all_reduce(values, **options)
        case "AllGather":
            return collectives.all_gather(values, **options)
        case "ReduceScatter":
            return collectives.reduce_scatter(values, **options)
    return collectives.all_to_all(values, **options)


def expected_here(call: CollectiveCall, group: Group) -> list[Any]:
    """What `build_call` gives: nothing in the place of what only the root of another graph gets."""
    wanted = expected(group.size, call)
    if call.kind not in ("Reduce", "Gather"):
        return [wanted[rank] for rank in group.ranks]
    root = call.attrs.get("root", 0)
    return [wanted[root] if root in group.ranks else np.empty(0, call.values[0].dtype)]
