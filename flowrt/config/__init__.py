"""``flowrt.config``: settings of the process, under TensorFlow's names. A session's are in `ConfigProto`."""

from typing import Any

from flowrt.config import experimental as experimental
from flowrt.config.physical_devices import PhysicalDevice as PhysicalDevice
from flowrt.config.physical_devices import list_physical_devices as list_physical_devices
from flowrt.missing_names import missing_name


def __getattr__(name: str) -> Any:
    raise missing_name("config", name, globals())
