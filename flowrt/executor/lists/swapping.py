"""List elements swapped to host memory: ``while_loop(swap_memory=True)`` on a device with separate memory.

Values that such a loop saves for its gradient are copied to the host when pushed, concurrently with the
computation, and their device memory is freed after the copy. The gradient's loop pops the elements in reverse
and prefetches the next one during each iteration. A loop of any length thus keeps only a few elements on the
device.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np

from flowrt.device.device import ArrivingArray, Device
from flowrt.graph.resources.tensor_list import AwayElement

MIN_SWAPPED = 2048
"""Minimum size in bytes of a swapped element, as in TensorFlow: else copying costs more than it saves."""


@final
class SwappedElement(AwayElement):
    """An array of ``device`` that is, or will soon be, in host memory only. Nobody writes ``array``."""

    __slots__ = ("_copy", "_device")

    def __init__(self, device: Device, array: Any) -> None:
        super().__init__(np.dtype(array.dtype), array.shape)
        self._device, self._copy = device, device.swap_out(array)

    def begin(self) -> ArrivingArray:
        """Begin to copy it back."""
        return self._device.swap_in(self._copy)

    def bring(self) -> Any:
        return self.begin().take()


def swapped(device: Device, array: Any) -> Any:
    """``array``, or its `SwappedElement` if it is large."""
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
