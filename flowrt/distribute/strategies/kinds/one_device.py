"""`OneDeviceStrategy`: one replica on one device, for scripts that are to run with any strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.kinds.mirrored import canonical_devices
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice
from flowrt.distribute.strategies.replicas.inline_replica import InlineReplica
from flowrt.distribute.strategies.variables.distributed_variables import distributed_variable
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.variables.distribution_context import DistributionContext, entered_context
from flowrt.variables.variable import Variable


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


class _OneDeviceExtended(StrategyExtended):
    def __init__(self, strategy: Strategy, devices: Sequence[str]) -> None:
        super().__init__(strategy, devices, ReductionToOneDevice())

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        return distributed_variable(self._strategy, self.worker_devices, next_creator, **arguments)

    @contextlib.contextmanager
    def opened_scope(self) -> Iterator[None]:
        with super().opened_scope(), get_default_graph().device(self.worker_devices[0]):
            yield

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        replica = InlineReplica(self._strategy)
        with (
            entered_context(DistributionContext(self._strategy, replica=replica)),
            get_default_graph().device(self.worker_devices[0]),
        ):
            return fn(*args, **kwargs)
