"""``flowrt.contrib.distribute``: the strategies under the names that they had here before
``flowrt.distribute``.
"""

from typing import Any

from flowrt.distribute.strategies import (
    AllReduceCrossDeviceOps,
    CrossDeviceOps,
    MirroredStrategy,
    OneDeviceStrategy,
    get_loss_reduction,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from flowrt.distribute.strategies import MultiWorkerMirroredStrategy as CollectiveAllReduceStrategy
from flowrt.distribute.strategies import ReductionToOneDevice as ReductionToOneDeviceCrossDeviceOps
from flowrt.distribute.strategies import Strategy as DistributionStrategy
from flowrt.distribute.strategies.experimental import ParameterServerStrategy
from flowrt.missing_names import missing_name

get_distribution_strategy, has_distribution_strategy = get_strategy, has_strategy

__all__ = [
    "AllReduceCrossDeviceOps",
    "CollectiveAllReduceStrategy",
    "CrossDeviceOps",
    "DistributionStrategy",
    "MirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReductionToOneDeviceCrossDeviceOps",
    "get_distribution_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "has_distribution_strategy",
    "in_cross_replica_context",
]


def __getattr__(name: str) -> Any:
    raise missing_name("contrib.distribute", name, __all__)
