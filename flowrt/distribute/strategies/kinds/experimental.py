"""``flowrt.distribute.experimental``: the strategies that TensorFlow has under this name."""

from typing import Any

from flowrt.distribute.strategies.kinds import multi_worker
from flowrt.distribute.strategies.kinds.one_process import CentralStorageStrategy
from flowrt.distribute.strategies.parameter_server.parameter_server_strategy import ParameterServerStrategy
from flowrt.distribute.strategies.values.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from flowrt.tf1.missing_names import missing_from

CollectiveCommunication = CommunicationImplementation
"""Earlier name of `CommunicationImplementation`."""


def CollectiveHints(bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> CommunicationOptions:
    """`CommunicationOptions` under their earlier name."""
    return CommunicationOptions(bytes_per_pack, timeout_seconds)


class MultiWorkerMirroredStrategy(multi_worker.MultiWorkerMirroredStrategy):
    """`flowrt.distribute.MultiWorkerMirroredStrategy` with the arguments that it had here: ``communication``
    first, which counts unless ``communication_options`` are given.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        options = communication_options or CommunicationOptions(implementation=communication)
        super().__init__(cluster_resolver, options)


__all__ = [
    "CentralStorageStrategy",
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
]

__getattr__ = missing_from("distribute.experimental")


def __dir__() -> list[str]:
    return __all__
