"""Host memory: anonymous mappings, and NumPy arrays over addresses.

Rules of this file:

  1. A mapping is never closed explicitly. It is unmapped with its last holder, and every array view of it is
     one: an array that outlives `HostMemory.unmap` reads stale bytes, never another owner's, and does not
     fault.
  2. An array holds its `DeviceMemory`, so pool memory is freed with its last array.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from bisect import bisect_right
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.device.stream_executor import DeviceMemory, StreamExecutor
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError

Array: TypeAlias = np.ndarray[Any, Any]

FOR_ALL_USE = mmap.PROT_READ | mmap.PROT_WRITE
ONLY_ZEROS = mmap.PROT_READ
"""Pages that are never written are all the kernel's one page of zeros: any number of them costs nothing."""

MADV_POPULATE_WRITE = 23
"""Linux's constant, which `mmap` has not, since 5.14."""


@final
class HostMemory:
    """The mappings of one executor. Any thread may call anything."""

    def __init__(self, name: str, protection: int = FOR_ALL_USE) -> None:
        self._name, self._protection = name, protection
        self._lock = threading.Lock()
        self._mapped: tuple[list[int], list[Array]] = ([], [])
        """Addresses in order, and the bytes at each. Replaced, never changed, so readers need no lock."""

    def map(self, nbytes: int) -> int:
        """The address of ``nbytes`` new bytes of zeros, aligned to a page.

        Raises `ResourceExhaustedError` if they cannot be allocated.
        """
        try:  # private: a forked child writes to its own copy
            mapping = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, self._protection)
        except (OSError, OverflowError, ValueError) as error:
            raise ResourceExhaustedError(
                f"{self._name}: expected room for {nbytes} bytes; the system refused: {error}"
            ) from error
        region = np.frombuffer(mapping, np.uint8)
        address = address_of(region)
        with self._lock:
            addresses, regions = self._mapped
            at = bisect_right(addresses, address)
            self._mapped = (
                [*addresses[:at], address, *addresses[at:]],
                [*regions[:at], region, *regions[at:]],
            )
        return address

    def unmap(self, address: int) -> None:
        """Release the mapping at ``address``; arrays over it keep it until they are freed."""
        with self._lock:
            addresses, regions = self._mapped
            at = addresses.index(address)
            self._mapped = addresses[:at] + addresses[at + 1 :], regions[:at] + regions[at + 1 :]

    def region(self, address: int) -> Array | None:
        """The bytes of the mapping that ``address`` is in, or None."""
        addresses, regions = self._mapped
        at = bisect_right(addresses, address) - 1
        if at < 0 or address >= addresses[at] + regions[at].nbytes:
            return None
        return regions[at]

    def array(self, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any, offset: int) -> Array:
        """An array in C order over ``memory``, which is in a mapping or is the memory of another array. It
        can be written if those can.
        """
        # 1.7 us (Python 3.11, NumPy 2.4): the span and its bytes 1.0, the array 0.4, the search 0.2.
        return np.ndarray(shape, dtype, np.asarray(_Span(memory, self.region(memory.address))), offset)


@final
class _Span:
    """Array interface over an address; it becomes the base of the array and keeps the memory alive."""

    __slots__ = ("__array_interface__", "memory", "region")

    def __init__(self, memory: DeviceMemory, region: Array | None) -> None:
        self.memory, self.region = memory, region
        owner = memory.whole.keep if region is None else region
        is_read_only = isinstance(owner, np.ndarray) and not owner.flags.writeable
        self.__array_interface__ = {
            "version": 3,
            "data": (memory.address, is_read_only),
            "shape": (memory.nbytes,),
            "typestr": "|u1",
        }


def memory_of(executor: StreamExecutor, array: Any) -> DeviceMemory:
    """The memory of a C-contiguous NumPy array. Raises `InvalidArgumentError` for anything else."""
    if not isinstance(array, np.ndarray):
        raise InvalidArgumentError(
            f"{executor.name}: memory_of: expected a NumPy array; got {type(array).__name__}"
        )
    if not array.flags.c_contiguous:
        raise InvalidArgumentError(
            f"{executor.name}: memory_of: expected a C-contiguous array; got strides {array.strides} for "
            f"shape {array.shape}. np.ascontiguousarray makes a contiguous copy"
        )
    return DeviceMemory(executor, address_of(array), array.nbytes, keep=array)


def populate(address: int, nbytes: int) -> None:
    """Have the kernel populate the pages of ``nbytes`` bytes at ``address``, without the GIL. What is stored
    there stays, so others may write there meanwhile, or unmap it. Where the kernel cannot, nothing happens:
    pages are populated when they are written.
    """
    if sys.platform == "linux":
        first = address & -mmap.PAGESIZE
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(address + nbytes - first), MADV_POPULATE_WRITE
        )


def address_of(array: Array) -> int:
    """Address of the array's first element."""
    return array.__array_interface__["data"][0]  # half the time of array.ctypes.data


def bytes_of(array: Array) -> Array:
    """The bytes of a C-contiguous array, as an array without a copy."""
    return array.reshape(-1).view(np.uint8)
