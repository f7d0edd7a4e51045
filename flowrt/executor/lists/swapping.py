"""Elements of lists that wait in host memory: ``while_loop(swap_memory=True)`` on a device of its own memory.

What such a loop keeps for its gradient is copied to the host when it is pushed, beside the computation, and
its device memory is free when the copy has ended. The gradient's loop takes the elements in reverse: with
each it begins to bring the next, which arrives while the iteration computes. So a loop of any length holds a
few elements on the device.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt.device.device import ArrivingArray, Device
from flowrt.graph.resources.tensor_list import AwayElement

MIN_SWAPPED = 2048
"""Bytes: a smaller element stays where it is, as in TensorFlow: its copies cost more than it takes."""


@final
class SwappedElement(AwayElement):
    """An array of ``device`` that is, or will soon be, in host memory only. Nobody writes ``array``."""

    __slots__ = ("_copy", "_device")

    def __init__(self, device: Device, array: Any) -> None:
        super().__init__(np.dtype(array.dtype), array.shape)
        self._device, self._copy = device, device.swap_out(array)

    def begin(self) -> ArrivingArray:
        """Begin to bring it back."""
        return self._device.swap_in(self._copy)

    def bring(self) -> Any:
        return self.begin().take()


def swapped(device: Device, array: Any) -> Any:
    """``array``, or what stands for it in a list when it is large."""
    return SwappedElement(device, array) if array.nbytes >= MIN_SWAPPED else array


@final
class Arrivals:
    """Takes elements off a list, with the next one on its way."""

    __slots__ = ("_array", "_element")

    def __init__(self) -> None:
        self._element: SwappedElement | None = None
        """The one on its way."""
        self._array: ArrivingArray | None = None

    def pop(self, elements: list[Any]) -> Any:
        """The last of ``elements``, which loses it; None if it was not set."""
        value = elements.pop()
        if isinstance(value, SwappedElement):
            arriving = self._array if value is self._element else value.begin()
            assert arriving is not None
            value = arriving.take()
        self._expect(elements[-1] if elements else None)
        return value

    def _expect(self, value: Any) -> None:
        self._element = value if isinstance(value, SwappedElement) else None
        self._array = None if self._element is None else self._element.begin()
