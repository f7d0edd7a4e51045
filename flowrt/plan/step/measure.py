"""The table of a step: the seconds of each distinct operation, each run alone on this device.

    DeviceParts -> one node for each `signature`, the dearest first -> a program of copies of it -> seconds

A program has several copies of the node, each with operands of its own, so that they come from memory and not
from the nearest cache, as a step's weights do. Fused groups are measured as groups, on one thread, as the
ranks of a step run. What cannot run alone, such as a loop, has no entry: `Costs` estimates it.

Tables are kept in the folder of ``FLOWRT_CACHE_DIR``, a file for each device and set of versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from flowrt import dtypes
from flowrt.cli.machine import library_versions, processor_name
from flowrt.device.device import Device
from flowrt.device.llvm.code_cache import cache_folder
from flowrt.device.llvm.host_pool import num_threads, set_num_threads
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.errors import OpError
from flowrt.executor.analysis.streams import one_stream
from flowrt.executor.bind.bind import Binder, compile_partition
from flowrt.executor.bind.bind_transfer import new_ends
from flowrt.executor.buffers.buffer_assignment import Storage
from flowrt.executor.plan.instance import Instance
from flowrt.executor.plan.plan import raise_error
from flowrt.executor.program.runner import StepControl
from flowrt.executor.session.session_variables import new_resource
from flowrt.graph.construction.constant import const
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, static_shape
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.variable_ops import var_handle_op
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.shapes import is_static
from flowrt.plan.step.costs import Costs, Demand, Fitted, Timed, demand, fit_rates, is_free, signature
from flowrt.plan.step.device_parts import DevicePart
from flowrt.plan.step.emitted import TRAVELS
from flowrt.rendezvous import InlineRendezvous
from flowrt.version import VERSION

_log = logging.getLogger("flowrt")

COLD_BYTES = 8 << 20
"""Bytes of operands of a program's copies together: more than a core's own caches hold."""
MAX_COPIES = 32
RUNS = 5
LIMIT_S = 30.0

_MEASURABLE = (Effect.PURE, Effect.READ, Effect.WRITE)


class Table(NamedTuple):
    """Measured nodes by their signatures."""

    rows: Mapping[str, Timed]

    def costs(self) -> Costs:
        """The seconds of these nodes, and of others by rates fitted to them. Raises as `fit_rates`."""
        return Costs(self.fitted().rates, {key: row.seconds for key, row in self.rows.items()})

    def fitted(self) -> Fitted:
        return fit_rates(self.rows.values())


def measure(parts: Iterable[DevicePart], known: Table | None = None, limit_s: float = LIMIT_S) -> Table:
    """``known`` with the nodes of ``parts`` that it does not have, as many as can be measured in ``limit_s``:
    first those that take most of a step by estimate. The process computes on one thread meanwhile.
    """
    rows = dict(known.rows) if known is not None else {}
    (device,) = local_devices(DeviceRequest(counts={"CPU": 1}))
    end = time.monotonic() + limit_s
    with closing(device), _one_thread():
        for key, (part, node) in _dearest_first(parts).items():
            if time.monotonic() > end:
                break
            seconds = None if key in rows else _seconds_alone(part, node, device)
            if seconds is not None:
                rows[key] = Timed(demand(part.partition.subgraph, node), seconds)
    return Table(rows)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Products and loops on one thread, as if a session had set it."""
    before = num_threads()
    set_num_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        set_num_threads(before)


def _dearest_first(parts: Iterable[DevicePart]) -> dict[str, tuple[DevicePart, Node]]:
    """A node for each signature, by what all of them may take together."""
    found: dict[str, tuple[DevicePart, Node]] = {}
    weights: dict[str, float] = defaultdict(float)
    for part in parts:
        subgraph, places = part.partition.subgraph, part.partition.buffers
        for node in part.partition.schedule.order:
            if node.op in TRAVELS or is_free(node) or node.op.effect not in _MEASURABLE:
                continue
            if places.storage.get(node.name) is Storage.VIEW:
                continue
            key, asks = signature(subgraph, node), demand(subgraph, node)
            found.setdefault(key, (part, node))
            weights[key] += asks.flops / 10 + asks.nbytes + 1000
    return {key: found[key] for key in sorted(found, key=lambda key: -weights[key])}


# --- one node alone


def _seconds_alone(part: DevicePart, node: Node, device: Device) -> float | None:
    """The least seconds of ``node``; None if it cannot run alone."""
    try:
        program = _Alone(part, node, device)
        run = _run_of(program.instance())
        run()
    except (OpError, _CannotRunAlone) as error:
        _log.debug("%s is not measured: %s", node.name, error)
        return None
    return min(_seconds_of(run) for _ in range(RUNS)) / program.copies


def _run_of(instance: Instance) -> Callable[[], object]:
    """One run of ``instance``, without pauses if it has none."""
    return instance.run_straight if instance.is_straight else lambda: instance.run(StepControl(), None, None)


def _seconds_of(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


class _CannotRunAlone(Exception):
    """A node has operands that cannot be made up."""


class _Alone:
    """A program of ``copies`` of a node, each with its own operands."""

    def __init__(self, part: DevicePart, node: Node, device: Device) -> None:
        self._whole, self._places, self._device = part.partition.subgraph, part.partition.buffers, device
        self._rng = np.random.default_rng(0)
        self._nodes: dict[str, Node] = {}
        nbytes = demand(self._whole, node).nbytes
        self.copies = max(2, min(MAX_COPIES, math.ceil(COLD_BYTES / max(nbytes, 1))))
        targets = [self._copy(node, number) for number in range(self.copies)]
        self._subgraph = Subgraph(self._nodes, (), (), tuple(targets))

    def instance(self) -> Instance:
        subgraph, schedule = self._subgraph, one_stream(self._subgraph)
        resources: dict[str, Any] = {}

        def resource(node: Node) -> Any:
            if node.name not in resources:
                resources[node.name] = self._variable(node)
            return resources[node.name]

        partition = compile_partition(subgraph, schedule, self._device, resource, has_loops=True)
        rendezvous = InlineRendezvous()
        ends = new_ends(rendezvous.send, rendezvous.take, raise_error)
        return Instance(Binder(partition, resource, ends).bind(), rendezvous, [], [])

    def _variable(self, node: Node) -> VariableResource:
        resource = new_resource(self._device, node)
        if resource.is_pinned:
            resource.array[...] = self._values(TensorSpec(node.attrs["dtype"], node.attrs["shape"]))
            resource.is_initialized = True
        return resource

    def _copy(self, node: Node, number: int) -> str:
        """Add a copy of ``node`` with its operands, and return its name."""
        name = f"{node.name}#{number}"
        if name not in self._nodes:
            inputs = tuple(self._operand(ref, number) for ref in node.inputs)
            self._nodes[name] = node.replace(name=name, inputs=inputs, controls=())
        return name

    def _operand(self, ref: Ref, number: int) -> Ref:
        node, spec = self._whole.nodes[ref[0]], self._whole.spec(ref)
        if node.op.name == "Const":
            self._nodes[node.name] = node.replace(controls=())
            return ref
        if node.op is var_handle_op or self._places.storage.get(node.name) is Storage.VIEW:
            return self._copy(node, number), ref[1]
        if spec.dtype in (dtypes.resource, dtypes.variant, dtypes.string) or not is_static(spec.shape):
            raise _CannotRunAlone
        name = f"{ref[0]}:{ref[1]}#{number}"
        if name not in self._nodes:
            value = self._device.empty(static_shape(spec), spec.dtype.np)
            value[...] = self._values(spec)
            attrs = {"value": value, "dtype": spec.dtype}
            self._nodes[name] = Node(name, const, (), (), attrs, node.device, node.source, (spec,))
        return name, 0

    def _values(self, spec: TensorSpec) -> Any:
        """Values that every operation takes: numbers from 0.5 to 1.5, indices of the first element."""
        shape = static_shape(spec)
        if spec.dtype.np.kind in "biu":
            return np.zeros(shape, spec.dtype.np)
        return (self._rng.random(shape, np.float32) + 0.5).astype(spec.dtype.np)


# --- kept tables


def device_key() -> dict[str, str]:
    """The device and the versions that a table is for."""
    return {"cpu": processor_name(), "flowrt": VERSION, **library_versions()}


def table_path() -> Path | None:
    """The file of this device's table; None if nothing is kept."""
    try:
        folder = cache_folder()
    except RuntimeError:  # there is no home
        return None
    digest = hashlib.sha256(json.dumps(device_key(), sort_keys=True).encode()).hexdigest()[:16]
    return None if folder is None else folder / "costs" / f"{digest}.json"


def load_table(path: Path | None) -> Table:
    """The table in the file ``path``: an empty one if there is none, or it is damaged, of which a log line
    tells.
    """
    if path is None or not path.exists():
        return Table({})
    try:
        rows = json.loads(path.read_text("utf-8"))["rows"]
        return Table({key: _timed_of(*row) for key, row in rows.items()})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        _log.warning("measured costs are not used: %s: %s. They are measured again", path, error)
        return Table({})


def _timed_of(seconds: Any, flops: Any, nbytes: Any, rate: Any) -> Timed:
    found = Timed(Demand(float(flops), int(nbytes), str(rate)), float(seconds))
    if not 0 < found.seconds < math.inf:
        raise ValueError(f"expected seconds above 0; got {seconds!r}")
    return found


def save_table(table: Table, path: Path | None) -> None:
    """Write ``table`` to ``path``, unless that is None. Readers see the old one or the new one."""
    if path is None:
        return
    rows = {key: [row.seconds, *row.demand] for key, row in table.rows.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, delete=False) as file:
        json.dump({"device": device_key(), "rows": rows}, file, indent=1)
    os.replace(file.name, path)
