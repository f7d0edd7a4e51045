"""The kernels of a pretended CuPy: CUDA C that the host runs when the stream gets there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.loops.cuda_on_host import load_kernels

if TYPE_CHECKING:
    from tests.device.pretend_cupy import Cupy


class CompileException(Exception):
    """NVRTC's words."""


class RawModule:
    def __init__(self, cupy: Cupy, *, code: str) -> None:
        self._cupy, self._code = cupy, code

    def get_function(self, name: str) -> RawKernel:
        try:
            return RawKernel(self._cupy, load_kernels(self._code)[name])
        except ValueError as error:
            raise CompileException(str(error)) from None


class RawKernel:
    def __init__(self, cupy: Cupy, run: Callable[[int, int, list[int]], None]) -> None:
        self._cupy, self._run = cupy, run

    def compile(self) -> None:
        """It is."""

    def __call__(self, grid: tuple[int], block: tuple[int], arguments: tuple[Any, ...]) -> None:
        """On the current stream, with the addresses that the arrays have now."""
        for array in arguments:
            assert array.device.id == self._cupy.thread.device
        addresses = [array.data.ptr for array in arguments]
        self._cupy.launches += 1
        self._cupy.thread.stream.put(partial(self._run, grid[0], block[0], addresses))
