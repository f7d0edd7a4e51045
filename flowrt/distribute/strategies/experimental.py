"""``flowrt.distribute.experimental``: the strategies that TensorFlow has under this name."""

from typing import Any

from flowrt.distribute.strategies import multi_worker
from flowrt.distribute.strategies.central_storage import CentralStorageStrategy
from flowrt.distribute.strategies.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from flowrt.distribute.strategies.parameter_server import ParameterServerStrategy
from flowrt.missing_names import missing_name

CollectiveCommunication = CommunicationImplementation
"""Its earlier name."""


def CollectiveHints(bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> CommunicationOptions:
    """The earlier name of what `CommunicationOptions` say."""
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


def __getattr__(name: str) -> Any:
    raise missing_name("distribute.experimental", name, __all__)


def __dir__() -> list[str]:
    return __all__
