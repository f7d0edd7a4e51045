"""The table of a step: the seconds of each distinct operation, in the programs of which it is a part.

    DevicePart -> its program, with nobody else in its group -> seconds of each node -> of each `signature`

A device's whole program is run, step after step, but for the others' part in what travels: so operations find
their operands where a step leaves them, in the caches or not, and write to the step's own memory. Seconds are
those of the program's thread, on a core: others on the machine count only by what they do to its caches and
to memory. So as many processes run programs at once as will train. What a program runs inside of loops and
branches has no entry: `Costs` estimates it.

Tables are kept in the folder of ``FLOWRT_CACHE_DIR``, a file for each device, number of processes and set of
versions.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
from threadpoolctl import threadpool_limits

from flowrt.cli.machine import library_versions, processor_name
from flowrt.device.device import Device
from flowrt.device.llvm.code_cache import cache_folder
from flowrt.device.llvm.host_pool import num_threads, set_num_threads
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.dtypes import string
from flowrt.executor.bind.bind import Binder, compile_partition
from flowrt.executor.bind.bind_transfer import new_ends
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.plan.plan import raise_error
from flowrt.executor.program.runner import Running, StepControl, run_inline
from flowrt.executor.session.session_variables import new_resource
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.iterators import IteratorResource, iterator_get_next_op
from flowrt.graph.resources.step_context import step_scope
from flowrt.graph.resources.variables import VariableResource
from flowrt.plan.step.copies import beside
from flowrt.plan.step.costs import Costs, Demand, Fitted, Timed, demand, fit_rates, is_free, signature
from flowrt.plan.step.device_parts import DevicePart
from flowrt.plan.step.emitted import THERE, TRAVELS
from flowrt.plan.step.lone_member import LoneMember, joined_alone
from flowrt.rendezvous import InlineRendezvous
from flowrt.version import VERSION

_log = logging.getLogger("flowrt")

WARM_RUNS, RUNS = 3, 20
LIMIT_S, WAIT_S = 30.0, 60.0
"""Limits for all programs, and for a run of one, which may be slow at first but should not wait for long."""
SCALE = 0.05
"""The largest value of a variable."""
LEAST_S = 1e-9
"""Seconds of a node that runs as a part of another."""
LOW = 0.25
"""The quantile of a node's times that counts: others on the machine make the rest longer."""


class Table(NamedTuple):
    """Measured nodes by their signatures."""

    rows: Mapping[str, Timed]

    def costs(self) -> Costs:
        """The seconds of these nodes, and of others by rates fitted to them. Raises as `fit_rates`."""
        return Costs(self.fitted().rates, {key: row.seconds for key, row in self.rows.items()})

    def fitted(self) -> Fitted:
        return fit_rates(row for row in self.rows.values() if row.seconds > LEAST_S)


def measure(
    parts: Iterable[DevicePart], known: Table | None = None, limit_s: float = LIMIT_S, processes: int = 1
) -> Table:
    """``known`` with the nodes of ``parts`` that it does not have, in ``limit_s`` or a few runs of each part.
    The process computes on one thread meanwhile, and so do its copies: as many ``processes`` as will train.

    Raises the errors of steps, such as `DeadlineExceededError` for one that waits for what others enqueue.
    """
    rows = dict(known.rows) if known is not None else {}
    wanted = [part for part in parts if any(key not in rows for key in _nodes_by_signature(part))]
    if known is not None and not wanted:
        return known
    (device,) = local_devices(DeviceRequest(counts={"CPU": 1}))
    with closing(device), _one_thread():
        programs = [_Program(part, device) for part in wanted]
        for program in programs:
            program.warm_up()
        with beside([program.run for program in programs], processes - 1):
            for part, program in zip(wanted, programs, strict=True):
                for key, timed in _rows_of(part, program, limit_s / len(wanted)).items():
                    rows.setdefault(key, timed)
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


def _nodes_by_signature(part: DevicePart) -> dict[str, list[Node]]:
    """The nodes of ``part`` that take time of their own, by what is equal in those that take the same."""
    subgraph, places = part.partition.subgraph, part.partition.buffers
    found: dict[str, list[Node]] = {}
    for node in part.partition.schedule.order:
        if node.op in TRAVELS or is_free(node) or node.op.effect is Effect.NESTED:
            continue
        if places.storage.get(node.name) not in THERE:
            found.setdefault(signature(subgraph, node), []).append(node)
    return found


def _rows_of(part: DevicePart, program: _Program, limit_s: float) -> dict[str, Timed]:
    """Run the program of ``part``, and return its nodes by signature. Together they take as long as it does
    when nobody watches: what it does for messages and for itself is divided among them, if there is nothing
    else in it that has no entry.
    """
    times, whole = _times(program, limit_s)
    nodes_of = _nodes_by_signature(part)
    sums = {key: math.fsum(times.get(node.name, 0.0) for node in nodes) for key, nodes in nodes_of.items()}
    is_flat = all(node.op.effect is not Effect.NESTED for node in part.partition.schedule.order)
    scale = whole / math.fsum(sums.values()) if is_flat and sums else 1.0
    rows = {}
    for key, nodes in nodes_of.items():
        seconds = max(scale * sums[key] / len(nodes), LEAST_S)
        rows[key] = Timed(demand(part.partition.subgraph, nodes[0]), seconds)
    return rows


def _times(program: _Program, limit_s: float) -> tuple[dict[str, float], float]:
    """The seconds of each node of ``program`` in a step, by name; and those of a step."""
    end = time.monotonic() + limit_s
    watched: list[dict[str, float]] = []
    whole: list[float] = []
    while len(whole) < RUNS and not (whole and time.monotonic() > end):
        watched.append(program.watch())
        whole.append(program.run())
    return {name: _low([run.get(name, 0.0) for run in watched]) for name in watched[0]}, _low(whole)


def _low(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * LOW)]


# --- one program


@final
class _Program:
    """The program of ``part`` on ``device``, with variables and feeds of made-up values."""

    def __init__(self, part: DevicePart, device: Device) -> None:
        self._part, self._device = part, device
        self._rng = np.random.default_rng(0)
        self._resources: dict[str, Any] = {}
        self._rendezvous = InlineRendezvous()
        subgraph, schedule = part.partition.subgraph, part.partition.schedule
        partition = compile_partition(subgraph, schedule, device, self._resource, has_loops=True)
        ends = new_ends(self._rendezvous.send, self._rendezvous.take, raise_error)
        self._programs = Binder(partition, self._resource, ends).bind()
        self._fed = [self._values(subgraph.nodes[name].outputs[0]) for name in subgraph.feeds]

    def warm_up(self) -> None:
        for _ in range(WARM_RUNS):
            self.run(timeout_s=WAIT_S)

    def run(self, timeout_s: float | None = None) -> float:
        """One step: the seconds of its thread, but for those in which it does what others would."""
        member = LoneMember(self._part)
        start = time.thread_time()
        self._run([each.run() for each in self._programs], member, timeout_s)
        return time.thread_time() - start - member.filling_s

    def watch(self) -> dict[str, float]:
        """One step: the seconds of each of its nodes, by name."""
        recorder = StepRecorder(is_thorough=False)
        traced = [each.run_traced(time.thread_time_ns, recorder) for each in self._programs]
        self._run(traced, LoneMember(self._part))
        seconds: dict[str, float] = {}
        for node, start, end, *_ in recorder.slices:
            seconds[node.name] = seconds.get(node.name, 0.0) + (end - start) * 1e-9
        return seconds

    def _run(self, running: Sequence[Running], member: LoneMember, timeout_s: float | None = None) -> None:
        first, control = self._programs[0], StepControl(timeout_s)
        with joined_alone(self._part, member), np.errstate(all="ignore"), step_scope(control):
            for feed, value in zip(first.feeds, self._fed, strict=True):
                feed.put(value)
            run_inline(running, control)
            for fetch in first.fetches:
                fetch()
        for each in self._programs:
            each.reset()

    def _resource(self, node: Node) -> Any:
        if node.name not in self._resources:
            resource = self._resources[node.name] = new_resource(
                self._device, node, lambda _, other: self._resource(other)
            )
            if isinstance(resource, VariableResource) and resource.is_pinned:
                resource.array[...] = self._values(TensorSpec(node.attrs["dtype"], node.attrs["shape"]))
                resource.is_initialized = True
            elif isinstance(resource, IteratorResource):
                resource.initialize(_Repeated(self._elements(node)))
        return self._resources[node.name]

    def _elements(self, iterator: Node) -> tuple[Any, ...]:
        """An element of ``iterator``."""
        subgraph = self._part.partition.subgraph
        readers = (subgraph.nodes[name] for name in subgraph.consumers()[iterator.name])
        specs = next((node.outputs for node in readers if node.op is iterator_get_next_op), ())
        return tuple(map(self._values, specs))

    def _values(self, spec: TensorSpec) -> Any:
        """Values that every operation takes: small numbers above 0, indices of the first element."""
        shape, dtype = static_shape(spec), spec.dtype.np
        if dtype.kind in "biu":
            return np.zeros(shape, dtype)
        if spec.dtype is string:
            return np.full(shape, b"", object)
        return (self._rng.random(shape, np.float32) * SCALE).astype(dtype)


class _Repeated:
    """A dataset of one element again and again."""

    def __init__(self, element: tuple[Any, ...]) -> None:
        self._element = element

    def __next__(self) -> tuple[Any, ...]:
        return self._element

    def close(self) -> None:
        """Nothing is open."""


# --- kept tables


def device_key() -> dict[str, str]:
    """The device and the versions that a table is for."""
    return {"cpu": processor_name(), "flowrt": VERSION, **library_versions()}


def table_path(processes: int = 1) -> Path | None:
    """The file of the table of so many processes on this device; None if nothing is kept."""
    try:
        folder = cache_folder()
    except RuntimeError:  # there is no home
        return None
    key = {**device_key(), "processes": processes}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
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
