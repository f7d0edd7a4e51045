"""`CentralStorageStrategy`: replicas on several devices of one process, and a single copy of each variable.

Replicas read the variables in place. Gradients are summed there before a single update, so variables and
optimizer slots are stored once; the cost is traffic at one device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.kinds.mirrored import canonical_devices, default_devices
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice
from flowrt.distribute.strategies.replicas.replica_threads import call_for_each_replica
from flowrt.distribute.strategies.variables.distributed_variables import distributed_variable
from flowrt.variables.variable import Variable, VariableSynchronization


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


class _CentralStorageExtended(StrategyExtended):
    def __init__(self, strategy: Strategy, compute_devices: Sequence[str], parameter_device: str) -> None:
        super().__init__(strategy, compute_devices, ReductionToOneDevice())
        self._parameter_device = parameter_device

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return (self._parameter_device,)

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        is_on_read = arguments["synchronization"] is VariableSynchronization.ON_READ
        devices = self.worker_devices if is_on_read else self.parameter_devices
        return distributed_variable(self._strategy, devices, next_creator, **arguments)

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        return call_for_each_replica(self._strategy, fn, args, kwargs)
