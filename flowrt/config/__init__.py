"""``flowrt.config``: settings of the process, under TensorFlow's names. A session's are in `ConfigProto`.

physical_devices   the devices of the machine
device_listing     ``device_lib.list_local_devices``
experimental       ``flowrt.config.experimental``
"""

from typing import Any

from flowrt.config import experimental as experimental
from flowrt.config.physical_devices import PhysicalDevice as PhysicalDevice
from flowrt.config.physical_devices import list_physical_devices as list_physical_devices
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("config")
