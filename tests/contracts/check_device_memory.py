"""What memory, arrays over it and copies must do on every stream executor."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from flowrt.device.stream_executor import DeviceMemory, Stream, StreamExecutor
from flowrt.errors import DTypeError, InvalidArgumentError, ResourceExhaustedError
from tests.contracts.stream_executor_case import SOON_S, Case, fill, read

REGION_ALIGNMENT = 256
NO_DEVICE_HAS = 1 << 60


class DeviceMemoryContract:
    """The first half of `StreamExecutorContract`, which is what to subclass."""

    case: Case

    @pytest.fixture
    def executor(self) -> Iterator[StreamExecutor]:
        executor = self.case.make()
        yield executor
        executor.close()

    @pytest.fixture
    def stream(self, executor: StreamExecutor) -> Stream:
        return self.case.create_stream(executor, "compute")

    @pytest.fixture
    def other(self, executor: StreamExecutor) -> Stream:
        return self.case.create_stream(executor, "other")

    @pytest.fixture
    def memory(self, executor: StreamExecutor) -> DeviceMemory:
        return executor.allocate(1024)

    # --- memory

    def test_memory_has_the_size_that_was_asked_for(self, executor: StreamExecutor) -> None:
        assert [executor.allocate(nbytes).nbytes for nbytes in (1, 1000, 1 << 20)] == [1, 1000, 1 << 20]

    def test_memory_is_aligned(self, executor: StreamExecutor) -> None:
        for nbytes in (1, 100, 4097, 70000):
            assert executor.allocate(nbytes).address % REGION_ALIGNMENT == 0

    def test_memory_does_not_overlap(self, executor: StreamExecutor) -> None:
        taken = sorted((executor.allocate(nbytes) for nbytes in (1, 5000, 4096, 64)), key=lambda m: m.address)
        for first, second in itertools.pairwise(taken):
            assert first.address + first.nbytes <= second.address

    def test_memory_info_is_what_is_free_and_what_there_is(self, executor: StreamExecutor) -> None:
        free, total = executor.memory_info()
        assert 0 < free <= total

    @pytest.mark.parametrize("nbytes", [0, -1])
    def test_a_size_that_is_not_positive_is_refused(self, executor: StreamExecutor, nbytes: int) -> None:
        with pytest.raises(InvalidArgumentError, match="at least 1 byte"):
            executor.allocate(nbytes)

    def test_memory_that_is_not_there_is_refused(self, executor: StreamExecutor, stream: Stream) -> None:
        with pytest.raises(ResourceExhaustedError, match=str(NO_DEVICE_HAS)):
            executor.allocate(NO_DEVICE_HAS)
        fill(executor, stream, executor.allocate(64), 1)
        executor.block_host_until_done(stream, SOON_S)

    def test_memory_is_given_back_and_taken_again(self, executor: StreamExecutor) -> None:
        for _ in range(100):
            executor.deallocate(executor.allocate(1 << 20))

    def test_memory_is_given_back_once(self, executor: StreamExecutor, memory: DeviceMemory) -> None:
        executor.deallocate(memory)
        with pytest.raises(InvalidArgumentError, match="was deallocated"):
            executor.deallocate(memory)

    def test_a_part_of_memory_cannot_be_given_back(
        self, executor: StreamExecutor, memory: DeviceMemory
    ) -> None:
        for part in (memory.slice(0, 64), memory.slice(0, memory.nbytes)):
            with pytest.raises(InvalidArgumentError, match="a part of it"):
                executor.deallocate(part)
        executor.deallocate(memory)

    def test_memory_of_another_device_is_refused(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        stranger = self.case.make()
        foreign = stranger.allocate(memory.nbytes)
        for use in (
            lambda: executor.deallocate(foreign),
            lambda: executor.array(foreign, (1,), np.uint8),
            lambda: executor.memset(stream, foreign, 0),
            lambda: executor.memcpy(stream, memory, foreign),
            lambda: executor.memcpy(stream, foreign, memory),
        ):
            with pytest.raises(InvalidArgumentError, match="memory of this device"):
                use()
        stranger.deallocate(foreign)
        stranger.close()

    def test_memory_that_was_given_back_is_refused(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        part, host = memory.slice(0, 64), np.zeros(64, np.uint8)
        executor.deallocate(memory)
        for use in (
            lambda: executor.array(part, (1,), np.uint8),
            lambda: executor.memset(stream, part, 0),
            lambda: executor.memcpy(stream, part, part),
            lambda: executor.memcpy_to_device(stream, part, host),
            lambda: executor.memcpy_to_host(stream, host, part),
        ):
            with pytest.raises(InvalidArgumentError, match="was deallocated"):
                use()

    def test_a_slice_is_a_part(self, memory: DeviceMemory) -> None:
        part = memory.slice(100, 200).slice(50, 60)
        assert (part.address, part.nbytes) == (memory.address + 150, 60)
        assert part.whole is memory

    @pytest.mark.parametrize(("offset", "nbytes"), [(-1, 2), (0, 1025), (1024, 1), (5, -1)])
    def test_a_slice_is_inside(self, memory: DeviceMemory, offset: int, nbytes: int) -> None:
        with pytest.raises(InvalidArgumentError, match="a part of 1024 bytes"):
            memory.slice(offset, nbytes)

    # --- arrays over memory

    @pytest.mark.parametrize(
        ("shape", "dtype"),
        [
            ((3, 5), np.float32),
            ((), np.int64),
            ((7,), bool),
            ((0, 4), np.float64),
            ((2,), ml_dtypes.bfloat16),
        ],
    )
    def test_an_array_is_a_view_in_c_order(
        self, executor: StreamExecutor, memory: DeviceMemory, shape: tuple[int, ...], dtype: Any
    ) -> None:
        array = executor.array(memory, shape, dtype, 128)
        assert isinstance(array, executor.xp.ndarray)
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        assert array.flags.c_contiguous
        if array.size:
            assert executor.memory_of(array).address == memory.address + 128

    def test_an_array_shows_what_is_copied(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        fill(executor, stream, memory, 7)
        row = executor.array(memory, (4, 8), np.uint8, 64)[1]
        values = read(executor, stream, executor.memory_of(row))
        assert values == [7 if executor.computes else 0] * 8

    def test_an_array_has_to_fit(self, executor: StreamExecutor, memory: DeviceMemory) -> None:
        executor.array(memory, (256,), np.float32)
        for count, offset in ((257, 0), (1, 1021), (1, -4)):
            with pytest.raises(InvalidArgumentError, match="inside the memory"):
                executor.array(memory, (count,), np.float32, offset)

    @pytest.mark.parametrize(
        ("shape", "dtype", "kind", "message"),
        [
            ((-1,), np.float32, InvalidArgumentError, r"a shape of at least 0 .* got \(-1,\)"),
            ((2, -2, -2), np.uint8, InvalidArgumentError, r"got \(2, -2, -2\)"),
            ((1.5,), np.float32, DTypeError, r"a shape of integers; got \(1\.5,\)"),
            (4, np.float32, DTypeError, "a shape of integers; got 4"),
            ((4,), object, DTypeError, "a dtype of plain bytes; got object"),
            ((4,), "no dtype", DTypeError, "a dtype; got 'no dtype'"),
        ],
    )
    def test_an_array_has_a_shape_and_a_dtype_of_plain_bytes(
        self, executor: StreamExecutor, memory: DeviceMemory, shape: Any, dtype: Any, kind: Any, message: str
    ) -> None:
        with pytest.raises(kind, match=message):
            executor.array(memory, shape, dtype)

    def test_an_array_and_its_views_keep_the_memory_alive(
        self, executor: StreamExecutor, memory: DeviceMemory
    ) -> None:
        piece = DeviceMemory(executor, memory.address + 256, 256)
        returned = weakref.ref(piece)
        view = executor.array(piece, (8, 8), np.float32).T[2:, 1:]
        del piece
        gc.collect()
        assert returned() is not None
        del view
        assert returned() is None

    def test_the_memory_of_an_array_keeps_it_alive(
        self, executor: StreamExecutor, memory: DeviceMemory
    ) -> None:
        array = executor.array(memory, (4, 8), np.float32)
        found, gone = executor.memory_of(array), weakref.ref(array)
        assert (found.address, found.nbytes) == (memory.address, 128)
        del array
        gc.collect()
        assert gone() is not None
        del found
        assert gone() is None

    def test_memory_is_of_a_contiguous_array(self, executor: StreamExecutor, memory: DeviceMemory) -> None:
        array = executor.array(memory, (8, 8), np.float32)
        with pytest.raises(InvalidArgumentError, match="contiguous"):
            executor.memory_of(array.T)
        with pytest.raises(InvalidArgumentError, match="expected"):
            executor.memory_of([1.0, 2.0])

    # --- copies

    @pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128, bool, ml_dtypes.bfloat16])
    @pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
    def test_a_copy_there_and_back_is_the_same(
        self, executor: StreamExecutor, stream: Stream, shape: tuple[int, ...], dtype: Any
    ) -> None:
        source = (np.arange(np.prod(shape, dtype=int)) + 1).reshape(shape).astype(dtype)
        memory, target = executor.allocate(source.nbytes), np.ones(shape, dtype)
        executor.memcpy_to_device(stream, memory, source)
        executor.memcpy_to_host(stream, target, memory)
        executor.block_host_until_done(stream, SOON_S)
        np.testing.assert_array_equal(target, source if executor.computes else np.zeros(shape, dtype))

    def test_a_read_only_array_is_copied(self, executor: StreamExecutor, stream: Stream) -> None:
        executor.memcpy_to_device(stream, executor.allocate(5), np.frombuffer(b"bytes", np.uint8))
        executor.block_host_until_done(stream, SOON_S)

    def test_a_copy_on_the_device(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        executor.memset(stream, memory, 1)
        fill(executor, stream, memory.slice(0, 4), 9)
        executor.memcpy(stream, memory.slice(8, 4), memory.slice(0, 4))
        if executor.computes:
            expected = [9] * 4 + [1] * 4 + [9] * 4 + [1] * 4
            assert read(executor, stream, memory.slice(0, 16)) == expected

    def test_memset_sets_every_byte_of_a_part(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        executor.memset(stream, memory, 0)
        executor.memset(stream, memory.slice(3, 5), 255)
        if executor.computes:
            assert read(executor, stream, memory.slice(0, 10)) == [0] * 3 + [255] * 5 + [0] * 2

    def test_a_bad_copy_is_refused_and_nothing_is_lost(
        self, executor: StreamExecutor, stream: Stream, memory: DeviceMemory
    ) -> None:
        fill(executor, stream, memory, 3)
        good, small = memory.slice(0, 64), memory.slice(0, 60)
        strided, locked = np.ones((8, 16), np.uint8)[:, ::2], np.ones(64, np.uint8)
        locked.flags.writeable = False
        for bad, message in (
            (lambda: executor.memcpy(stream, good, small), "two equal sizes"),
            (lambda: executor.memcpy_to_device(stream, small, locked), "two equal sizes"),
            (lambda: executor.memcpy_to_host(stream, np.ones(64, np.uint8), small), "two equal sizes"),
            (lambda: executor.memcpy_to_device(stream, good, strided), "C-contiguous"),
            (lambda: executor.memcpy_to_host(stream, strided, good), "C-contiguous"),
            (lambda: executor.memcpy_to_host(stream, locked, good), "writable"),
            (lambda: executor.memset(stream, good, 256), "a byte"),
            (lambda: executor.memset(stream, good, -1), "a byte"),
            (lambda: executor.memset(stream, good, 1.5), "a byte"),
            (lambda: executor.memset(stream, good, "1"), "a byte"),
            (lambda: executor.memcpy_to_device(stream, good, [1] * 64), "a NumPy array; got list"),
            (lambda: executor.memcpy_to_host(stream, [1] * 64, good), "a NumPy array; got list"),
            (lambda: executor.memcpy_to_device(stream, good, np.array([None] * 8)), "bytes; got object"),
            (lambda: executor.memcpy_to_host(stream, np.array([None] * 8), good), "bytes; got object"),
        ):
            with pytest.raises(InvalidArgumentError, match=message):
                bad()
        assert stream.error is None
        assert read(executor, stream, good) == [3 if executor.computes else 0] * 64

    def test_copies_through_three_streams(self, executor: StreamExecutor) -> None:
        """In, across and out, each on its own stream, into the same memory again and again."""
        copy_in, compute, copy_out = (
            self.case.create_stream(executor, name) for name in ("in", "compute", "out")
        )
        first, second = executor.allocate(1 << 16), executor.allocate(1 << 16)
        sources = [np.full(1 << 16, value, np.uint8) for value in range(20)]
        targets = [np.zeros(1 << 16, np.uint8) for _ in sources]
        for source, target in zip(sources, targets, strict=True):
            executor.wait_for(copy_in, compute)
            executor.memcpy_to_device(copy_in, first, source)
            executor.wait_for(compute, copy_in)
            executor.wait_for(compute, copy_out)
            executor.memcpy(compute, second, first)
            executor.wait_for(copy_out, compute)
            executor.memcpy_to_host(copy_out, target, second)
        executor.block_host_until_done(copy_out, SOON_S)
        if executor.computes:
            for source, target in zip(sources, targets, strict=True):
                np.testing.assert_array_equal(target, source)
