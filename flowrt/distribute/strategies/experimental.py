"""``flowrt.distribute.experimental``: the strategies that TensorFlow has under this name."""

from typing import Any

from flowrt.distribute.strategies.central_storage import CentralStorageStrategy
from flowrt.distribute.strategies.communication_options import (
    CommunicationImplementation,
    CommunicationOptions,
)
from flowrt.distribute.strategies.multi_worker import MultiWorkerMirroredStrategy
from flowrt.distribute.strategies.parameter_server import ParameterServerStrategy
from flowrt.missing_names import missing_name

__all__ = [
    "CentralStorageStrategy",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
]


def __getattr__(name: str) -> Any:
    raise missing_name("distribute.experimental", name, __all__)
