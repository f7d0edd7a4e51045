"""`MirroredStrategy`: a replica on each of several devices of one process, each with a copy of every
variable.

Synchronous data-parallel training: the replicas' gradients are summed on all devices, and each updates its
copies in the same way. Dean et al. 2012 have the idea in the large; with all-reduce instead of servers it is
that of Goyal et al. 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure
from flowrt.config import list_physical_devices
from flowrt.device.spec import format_device, parse_device
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.reduce.cross_device_ops import CrossDeviceOps, ReductionToEachDevice
from flowrt.distribute.strategies.replicas.replica_threads import call_for_each_replica
from flowrt.distribute.strategies.variables.distributed_variables import distributed_variable
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.variables.variable import Variable


class MirroredStrategy(Strategy):
    """A replica on each of ``devices``: names like ``"/gpu:0"`` or ``"/cpu:1"``, by default all GPUs, or the
    CPU if there are none.

    ``cross_device_ops`` reduces values, by default `ReductionToEachDevice`. Several CPU devices or parts of a
    GPU require ``ConfigProto(device_count={"CPU": 2})`` or ``GPUOptions.experimental.virtual_devices``.
    Raises `InvalidArgumentError` for no devices or a duplicate, `DTypeError` for ``cross_device_ops`` of
    another type.
    """

    def __init__(
        self, devices: Sequence[str] | None = None, cross_device_ops: CrossDeviceOps | None = None
    ) -> None:
        chosen = default_devices() if devices is None else canonical_devices(devices, "MirroredStrategy")
        ops = ReductionToEachDevice() if cross_device_ops is None else cross_device_ops
        if not isinstance(ops, CrossDeviceOps):
            raise DTypeError(
                "MirroredStrategy: expected a CrossDeviceOps as cross_device_ops: NcclAllReduce(), "
                "HierarchicalCopyAllReduce(), ReductionToOneDevice() or ReductionToEachDevice(); got "
                f"{ops!r}"
            )
        super().__init__(MirroredExtended(self, chosen, ops))


class MirroredExtended(StrategyExtended):
    """Variables have a copy on each worker device."""

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        return distributed_variable(self._strategy, self.worker_devices, next_creator, **arguments)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        return call_for_each_replica(self._strategy, fn, args, kwargs)


def default_devices() -> tuple[str, ...]:
    """All GPUs of this machine, or its CPU."""
    gpus = list_physical_devices("GPU")
    return tuple(f"/device:GPU:{i}" for i in range(len(gpus))) or ("/device:CPU:0",)


def canonical_devices(devices: Sequence[str], what: str) -> tuple[str, ...]:
    """``devices`` in their full form. Raises `DTypeError` for anything but a list of names,
    `InvalidArgumentError` for an empty one, for a name without a type and for duplicates.
    """
    given: Any = devices
    are_names = isinstance(given, Iterable) and all(isinstance(device, str) for device in given)
    if isinstance(given, str) or not are_names:
        raise DTypeError(f"{what}: expected a list of device names; got {devices!r}")
    names = tuple(_canonical(device, what) for device in devices)
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError(f"{what}: expected devices, each once; got {list(devices)}")
    return names


def _canonical(device: str, what: str) -> str:
    spec = parse_device(device)
    if spec.device_type is None:
        raise InvalidArgumentError(f"{what}: expected devices with a type, such as '/gpu:0'; got {device!r}")
    return format_device(spec.replace(device_index=spec.device_index or 0))
