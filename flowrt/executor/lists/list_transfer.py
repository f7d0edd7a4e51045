"""Transfer of lists of tensors between devices, element by element.

A host and a device with separate memory share nothing, so a list is copied on each transfer: keep readers and
writers of a list on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.device.device import Device
from flowrt.device.memory_pool import Owner
from flowrt.graph.resources.tensor_list import TensorList


def list_to_host(device: Device, value: TensorList) -> TensorList:
    """``value``, a list of ``device``, with its arrays in host memory. Waits for the current stream."""
    return _mapped(value, device.to_host)


def list_to_device(device: Device, value: TensorList, owner: Owner) -> TensorList:
    """``value``, a host list, with its arrays copied to ``device``; its current stream may read them."""
    return _mapped(value, lambda array: device.put(array, owner))


def _mapped(value: TensorList, move: Callable[[Any], Any]) -> TensorList:
    def moved(element: Any) -> Any:
        if element is None:
            return None
        return _mapped(element, move) if isinstance(element, TensorList) else move(element)

    return TensorList(value.spec, [moved(element) for element in value.elements()])
