"""``flowrt.contrib.distribute``: the strategies under the names that they had here before
``flowrt.distribute``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowrt.distribute import strategies
from flowrt.distribute.strategies import (
    CrossDeviceOps,
    OneDeviceStrategy,
    get_loss_reduction,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from flowrt.distribute.strategies import ReductionToOneDevice as ReductionToOneDeviceCrossDeviceOps
from flowrt.distribute.strategies import Strategy as DistributionStrategy
from flowrt.distribute.strategies.kinds.experimental import ParameterServerStrategy
from flowrt.errors import InvalidArgumentError
from flowrt.tf1.missing_names import missing_from


class MirroredStrategy(strategies.MirroredStrategy):
    """`flowrt.distribute.MirroredStrategy` with devices as a number of GPUs, 0 for the CPU.

    ``auto_shard_dataset`` is accepted: one process has nothing to shard. Raises `InvalidArgumentError` for a
    negative number and for more than one of ``devices``, ``num_gpus`` and ``num_gpus_per_worker``.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        num_gpus: int | None = None,
        num_gpus_per_worker: int | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
        auto_shard_dataset: bool = True,
    ) -> None:
        counts = [each for each in (num_gpus, num_gpus_per_worker) if each is not None]
        if len(counts) + (devices is not None) > 1:
            raise InvalidArgumentError(
                "contrib.distribute.MirroredStrategy: expected at most one of devices, num_gpus and "
                f"num_gpus_per_worker; got devices={devices}, num_gpus={num_gpus}, "
                f"num_gpus_per_worker={num_gpus_per_worker}"
            )
        super().__init__(_gpus(counts[0]) if counts else devices, cross_device_ops)


def _gpus(count: int) -> list[str]:
    if count < 0:
        raise InvalidArgumentError(
            f"contrib.distribute.MirroredStrategy: expected 0 GPUs or more; got {count}"
        )
    return [f"/gpu:{i}" for i in range(count)] or ["/cpu:0"]


class CollectiveAllReduceStrategy(strategies.MultiWorkerMirroredStrategy):
    """`flowrt.distribute.MultiWorkerMirroredStrategy`. ``num_gpus_per_worker`` must be the actual number or
    0: raises `InvalidArgumentError` for another one.
    """

    def __init__(self, num_gpus_per_worker: int = 0, cluster_resolver: Any = None) -> None:
        super().__init__(cluster_resolver)
        devices = self.extended.worker_devices
        if num_gpus_per_worker not in (0, len(devices)):
            raise InvalidArgumentError(
                f"contrib.distribute.CollectiveAllReduceStrategy: expected {num_gpus_per_worker} GPUs; got "
                f"{', '.join(devices)}. CUDA_VISIBLE_DEVICES selects the GPUs of a worker"
            )


class AllReduceCrossDeviceOps(strategies.AllReduceCrossDeviceOps):
    """`flowrt.distribute.AllReduceCrossDeviceOps` with its former names of algorithms."""

    def __init__(self, all_reduce_alg: str = "auto", num_packs: int = 1) -> None:
        renamed = {"nccl": "native", "hierarchical_copy": "hierarchical"}
        super().__init__(renamed.get(all_reduce_alg, all_reduce_alg), num_packs)


class DistributeConfig(NamedTuple):
    """The strategies that a script keeps for training and for evaluation."""

    train_distribute: DistributionStrategy | None = None
    eval_distribute: DistributionStrategy | None = None
    remote_cluster: Any = None


get_distribution_strategy, has_distribution_strategy = get_strategy, has_strategy

__all__ = [
    "AllReduceCrossDeviceOps", "CollectiveAllReduceStrategy", "CrossDeviceOps", "DistributeConfig",
    "DistributionStrategy", "MirroredStrategy", "OneDeviceStrategy", "ParameterServerStrategy",
    "ReductionToOneDeviceCrossDeviceOps", "get_distribution_strategy", "get_loss_reduction",
    "get_replica_context", "has_distribution_strategy", "in_cross_replica_context",
]  # fmt: skip

__getattr__ = missing_from("contrib.distribute")


def __dir__() -> list[str]:
    return __all__
