"""Arguments and results of the self-test's sections."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from flowrt.device.cuda.cuda import why_no_gpu
from flowrt.device.device import Device
from flowrt.device.device_kinds import KINDS
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.device.spec import DeviceSpec
from flowrt.errors import NotFoundError, OpError
from flowrt.executor.ends.config import ConfigProto, GPUOptions, GraphOptions, OptimizerOptions
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph

MAX_DEVICES = 1024
"""Maximum number of devices: a CPU or simulated device requires all with lower indices; these take 0.1 s."""


class Result(NamedTuple):
    """The result of a section: one line, and one line per failure."""

    summary: str
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The device under test: ``name`` is for device scopes, ``device`` is a `Device` outside of sessions."""

    name: str
    device: Device

    @property
    def computes(self) -> bool:
        """Whether bytes and times on it are real."""
        return self.device.executor.platform != "null"

    def session(self, graph: Graph, *, soft: bool = False, captures: bool = True) -> Session:
        """A session that has the device and runs the script's graph unoptimised. ``captures``: a step that
        allows it is captured and launched as one, if the device supports that.
        """
        count = {self.device.device_type: (self.device.spec.device_index or 0) + 1}
        as_written = GraphOptions(optimizer_options=OptimizerOptions(opt_level=OptimizerOptions.L0))
        gpu = GPUOptions(experimental=GPUOptions.Experimental(capture_steps=captures))
        config = ConfigProto(
            device_count=count, graph_options=as_written, allow_soft_placement=soft, gpu_options=gpu
        )
        return Session(graph=graph, config=config)


@contextmanager
def open_target(spec: DeviceSpec) -> Iterator[Target]:
    """The device that ``spec`` names (with missing parts, the first CPU), closed at the end.

    Raises `NotFoundError`, with the reason, if there is none in this process.
    """
    wanted = DeviceSpec(device_type=spec.device_type or "CPU", device_index=spec.device_index or 0)
    if not spec.matches(wanted.replace(job="localhost", replica=0, task=0)):
        raise NotFoundError(f"expected a device of this process, /job:localhost/replica:0/task:0; got {spec}")
    devices = local_devices(_request(wanted))
    try:
        found = next((device for device in devices if wanted.matches(device.spec)), None)
        if found is None:
            raise NotFoundError(f"expected a device of this machine; got {wanted}. {_what_is_there(devices)}")
        yield Target(wanted.to_string(), found)
    finally:
        for device in devices:
            device.pool.close()
            device.executor.close()


def _what_is_there(devices: list[Device]) -> str:
    count = sum(device.device_type == "GPU" for device in devices)
    return f"There are {count} GPUs" if count else f"There is no GPU: {why_no_gpu()}"


def _request(wanted: DeviceSpec) -> DeviceRequest:
    """A request for the fewest devices that include ``wanted``."""
    count = (wanted.device_index or 0) + 1
    if count > MAX_DEVICES:
        raise NotFoundError(f"expected a device with a number below {MAX_DEVICES}; got {wanted}")
    kind = wanted.device_type or ""
    if kind not in KINDS:
        *types, last = KINDS
        raise NotFoundError(f"expected a device of type {', '.join(types)} or {last}; got {wanted}")
    return DeviceRequest({"GPU": 0, kind: count})


def describe_error(error: Exception) -> str:
    """Describe ``error`` in one line, with the place of the raise unless its message has a location."""
    text = f"{type(error).__name__}: {error}".partition("\n")[0]
    if isinstance(error, OpError):
        return text
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({place.filename}:{place.lineno})"


def median_s(function: Callable[[], Any], repeats: int) -> float:
    """The median time of one call in seconds; a first call is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
