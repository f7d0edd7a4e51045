"""Strategies of one process: `OneDeviceStrategy`, and two with a replica on each of several devices.

    MirroredStrategy        each device has a copy of every variable
    CentralStorageStrategy  variables and optimizer slots are stored once, where gradients are summed before a
                            single update, and read in place; the cost is traffic at one device

Synchronous data-parallel training: with mirrored variables the replicas' gradients are summed on all
devices, and each updates its copies in the same way. Dean et al. 2012 have the idea in the large; with
all-reduce instead of servers it is that of Goyal et al. 2017.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure
from flowrt.config import list_physical_devices
from flowrt.device.spec import format_device, parse_device
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.reduce.cross_device_ops import (
    CrossDeviceOps,
    ReductionToEachDevice,
    ReductionToOneDevice,
)
from flowrt.distribute.strategies.replicas.replica_context import InlineReplica
from flowrt.distribute.strategies.replicas.replica_threads import call_for_each_replica
from flowrt.distribute.strategies.variables.distributed_variables import distributed_variable
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.variables.distribution_context import DistributionContext, entered_context
from flowrt.variables.variable import Variable, VariableSynchronization


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
        return distributed_variable(self.strategy, self.worker_devices, next_creator, **arguments)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        return call_for_each_replica(self.strategy, fn, args, kwargs)


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


class OneDeviceStrategy(Strategy):
    """Variables and the only replica are on ``device``. Raises `DTypeError` unless it is a name, also for a
    list, and `InvalidArgumentError` for an invalid device name.
    """

    def __init__(self, device: str) -> None:
        if not isinstance(device, str):
            raise DTypeError(
                f"OneDeviceStrategy: expected the name of one device, such as '/gpu:0'; got {device!r}. Use "
                "MirroredStrategy for several"
            )
        super().__init__(_OneDeviceExtended(self, canonical_devices([device], "OneDeviceStrategy")))


class _OneDeviceExtended(MirroredExtended):
    def __init__(self, strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(strategy, devices, ReductionToOneDevice())

    @contextlib.contextmanager
    def opened_scope(self) -> Iterator[None]:
        with super().opened_scope(), get_default_graph().device(self.worker_devices[0]):
            yield

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        replica = InlineReplica(self.strategy)
        with (
            entered_context(DistributionContext(self.strategy, replica=replica)),
            get_default_graph().device(self.worker_devices[0]),
        ):
            return fn(*args, **kwargs)


class CentralStorageStrategy(Strategy):
    """A replica on each of ``compute_devices`` (as those of `MirroredStrategy`), all variables on
    ``parameter_device``: by default the CPU, or the compute device if there is only one.

    Variables with synchronization ON_READ have a copy on each compute device, since each replica writes its
    own. Raises `InvalidArgumentError` for no compute devices or one that is named twice.
    """

    def __init__(
        self, compute_devices: Sequence[str] | None = None, parameter_device: str | None = None
    ) -> None:
        what = "CentralStorageStrategy"
        computing = default_devices() if compute_devices is None else canonical_devices(compute_devices, what)
        central = computing[0] if len(computing) == 1 else "/device:CPU:0"
        if parameter_device is not None:
            (central,) = canonical_devices([parameter_device], what)
        super().__init__(_CentralStorageExtended(self, computing, central))


class _CentralStorageExtended(MirroredExtended):
    def __init__(self, strategy: Strategy, compute_devices: Sequence[str], parameter_device: str) -> None:
        super().__init__(strategy, compute_devices, ReductionToOneDevice())
        self._parameter_device = parameter_device

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._parameter_device,)

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        is_on_read = arguments["synchronization"] is VariableSynchronization.ON_READ
        devices = self.worker_devices if is_on_read else self.parameter_devices
        return distributed_variable(self.strategy, devices, next_creator, **arguments)
