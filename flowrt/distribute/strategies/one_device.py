"""`OneDeviceStrategy`: one replica on one device, for scripts that are to run with any strategy."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flowrt.distribute.strategies.cross_device_ops import ReductionToOneDevice
from flowrt.distribute.strategies.extended import StrategyExtended
from flowrt.distribute.strategies.inline_replica import InlineReplica
from flowrt.distribute.strategies.mirrored import canonical_devices
from flowrt.distribute.strategies.strategy import Strategy
from flowrt.distribute.strategies.variables import distributed_variable
from flowrt.distribution_context import DistributionContext, entered_context
from flowrt.errors import DTypeError
from flowrt.graph.graph import get_default_graph
from flowrt.structure import Structure
from flowrt.variables import Variable


class OneDeviceStrategy(Strategy):
    """Variables and the only replica are on ``device``. Raises `DTypeError` for what is no name, a list of
    them too, and `InvalidArgumentError` for a name of no device.
    """

    def __init__(self, device: str) -> None:
        if not isinstance(device, str):
            raise DTypeError(
                f"OneDeviceStrategy: expected the name of one device, as '/gpu:0'; got {device!r}. Use "
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
