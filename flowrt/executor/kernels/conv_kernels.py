"""Kernels of the host that compiled loops compute: convolution of channels-last float32 images.

What they do not have the operation's own kernel does: other dtypes and layouts, groups, filters that do not
fill vectors, and the gradient of the images where windows have strides. Results differ from the operations'
own in the order of additions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.llvm.host_jit import CompiledLoop, compile_loop, vector_registers
from flowrt.device.llvm.host_pool import PARALLEL_NS, run_in_parallel
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.nn.conv import (
    check_gradient,
    conv2d_backprop_filter_op,
    conv2d_backprop_input_op,
    conv2d_op,
    conv_axes,
    turned_axes,
    turned_filter,
)
from flowrt.graph.ops.nn.windows import Axis, New, begin
from flowrt.loops.llvm_convolution import Sizes, Tile, filter_function, forward_function

Array: TypeAlias = np.ndarray[Any, Any]
Kernel: TypeAlias = Callable[..., Any]

RESERVED = 4
"""Vector registers that hold no sums: the vectors that are multiplied, and the number."""

MIN_SUMS = 4
"""Vectors of a tile; with fewer, each multiplication waits for the one before."""

MULTIPLICATIONS_PER_NS = 75
"""Throughput of one thread, with AVX-512."""

FIRST_CACHE, MIN_BLOCK = 32 << 10, 64
"""Size in bytes of a block of rows, and its minimum number of columns: each streams the whole filter."""

SECOND_CACHE = 512 << 10
"""Size in bytes of a filter for one tile's width, streamed for each tile of outputs."""

MAX_LOOPS = 256


def _convolve(
    op: OpDef, xp: Any, input: Array, filter: Array, out: Any = None, workspace: Any = None, **attrs: Any
) -> Any:
    if _fits(attrs, input, filter) and input.shape[3] == filter.shape[2]:
        axes = conv_axes(input.shape, filter.shape[:2], attrs)
        y = _result((input.shape[0], *[a.outputs for a in axes], filter.shape[3]), out)
        if _run_forward(input, filter, axes, y, workspace):
            return y
    return op.kernel(xp, input, filter, out=out, workspace=workspace, **attrs)


def _convolve_to_input(
    op: OpDef, xp: Any, input_sizes: Any, filter: Array, out_backprop: Array, out: Any = None,
    workspace: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    if _fits(attrs, filter, out_backprop) and input_sizes[3] == filter.shape[2]:
        check_gradient(input_sizes, filter.shape, out_backprop, attrs)
        axes = turned_axes(conv_axes(input_sizes, filter.shape[:2], attrs))
        x = _result(tuple(input_sizes), out)
        if axes is not None and _run_forward(out_backprop, turned_filter(filter), axes, x, workspace):
            return x
    return op.kernel(xp, input_sizes, filter, out_backprop, out=out, workspace=workspace, **attrs)


def _convolve_to_filter(
    op: OpDef, xp: Any, input: Array, filter_sizes: Any, out_backprop: Array, out: Any = None,
    workspace: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    if _fits(attrs, input, out_backprop) and input.shape[3] == filter_sizes[2]:
        check_gradient(input.shape, filter_sizes, out_backprop, attrs)
        axes = conv_axes(input.shape, filter_sizes[:2], attrs)
        filter = _result(tuple(filter_sizes), out)
        if _run_filter(input, out_backprop, axes, filter, workspace):
            return filter
    return op.kernel(xp, input, filter_sizes, out_backprop, out=out, workspace=workspace, **attrs)


def _fits(attrs: Mapping[str, Any], *arrays: Array) -> bool:
    return attrs["data_format"] == "NHWC" and all(
        a.dtype == np.float32 and a.ndim == 4 and a.flags.aligned for a in arrays
    )


def _result(shape: tuple[int, ...], out: Any) -> Array:
    return np.empty(shape, np.float32) if out is None else out


def _run_forward(x: Array, filter: Array, axes: Sequence[Axis], y: Array, workspace: Any) -> bool:
    """Write the convolution of ``x`` into ``y``; False if no loop supports it."""
    tile = _forward_tile(*y.shape[2:])
    if tile is None or not (x.size and filter.size and y.size and y.flags.c_contiguous):
        return False
    if filter[..., : tile.width].nbytes > SECOND_CACHE:
        return False
    new = begin(np, workspace)
    padded, packed = _padded(x, axes, new), _packed(filter, tile.width, new)
    sizes = _sizes(padded.shape, filter.shape, axes)
    _run(_forward_loop(tile, sizes.column_step), (padded, packed, y), sizes, sizes.images * sizes.rows)
    return True


def _run_filter(x: Array, y: Array, axes: Sequence[Axis], filter: Array, workspace: Any) -> bool:
    """Write the gradient of ``filter`` from that of ``y``; False if no loop supports it."""
    if not (x.size and filter.size and y.size and filter.flags.c_contiguous):
        return False
    padded, y = _padded(x, axes, begin(np, workspace)), np.ascontiguousarray(y)
    sizes = _sizes(padded.shape, filter.shape, axes)
    tile = _filter_tile(sizes.run, sizes.filters)
    if tile is None:
        return False
    filter[...] = 0
    tiles = filter.size // (tile.height * tile.width)
    _run(_filter_loop(tile), (padded, y, filter), sizes, tiles)
    return True


def _padded(x: Array, axes: Sequence[Axis], new: New) -> Array:
    """``x`` with its padding, in C order."""
    if all(a.padded == a.length for a in axes):
        return np.ascontiguousarray(x)
    rows, columns = axes[0].inner, axes[1].inner
    padded: Array = new((x.shape[0], *[a.padded for a in axes], x.shape[3]), np.float32)
    padded[:, : rows.start] = padded[:, rows.stop :] = 0
    padded[:, rows, : columns.start] = padded[:, rows, columns.stop :] = 0
    padded[:, rows, columns] = x
    return padded


def _packed(filter: Array, width: int, new: New) -> Array:
    """``filter`` in tiles of ``width`` filters, with the numbers of each tile contiguous: read sequentially,
    they are loaded from the second-level cache as fast as they are used: [16, 14, 14, 256] by 3x3x256x256
    takes half the time; aligned to a cache line, 6 % less than unaligned.
    """
    tiles = filter.reshape(*filter.shape[:3], -1, width).transpose(3, 0, 1, 2, 4)
    packed: Array = new(tiles.shape, np.float32)
    packed[...] = tiles
    return packed


def _sizes(padded: tuple[int, ...], filter: tuple[int, ...], axes: Sequence[Axis]) -> Sizes:
    (images, height, width, channels), filters, (rows, columns) = padded, filter[3], axes
    run, runs = (columns.taps * channels, 1) if columns.dilation == 1 else (channels, columns.taps)
    row_bytes = 4 * (width * channels * rows.stride + columns.outputs * filters)
    return Sizes(
        images=images,
        rows=rows.outputs,
        columns=columns.outputs,
        filters=filters,
        taps=rows.taps,
        runs=runs,
        run=run,
        image_step=height * width * channels,
        row_step=rows.stride * width * channels,
        tap_step=rows.dilation * width * channels,
        run_step=columns.dilation * channels,
        column_step=columns.stride * channels,
        block=max(FIRST_CACHE // row_bytes, math.ceil(MIN_BLOCK / columns.outputs)),
    )


def _run(loop: CompiledLoop, arrays: Sequence[Array], sizes: Sizes, extent: int) -> None:
    table = np.array([*[a.ctypes.data for a in arrays], *sizes], np.int64)
    outputs = sizes.images * sizes.rows * sizes.columns * sizes.filters
    nanoseconds = outputs * sizes.taps * sizes.runs * sizes.run / MULTIPLICATIONS_PER_NS
    if nanoseconds > PARALLEL_NS:
        run_in_parallel(loop.call, table.ctypes.data, 0, extent, 1)
    else:
        loop.call(table.ctypes.data, 0, extent)


# --- loops


@lru_cache(maxsize=MAX_LOOPS)
def _forward_loop(tile: Tile, column_step: int) -> CompiledLoop:
    return compile_loop(forward_function(tile, column_step))


@lru_cache(maxsize=MAX_LOOPS)
def _filter_loop(tile: Tile) -> CompiledLoop:
    return compile_loop(filter_function(tile))


def _forward_tile(columns: int, filters: int) -> Tile | None:
    """Tile with a number of columns that divides a row of outputs evenly, or nearly so."""

    def height(limit: int) -> int:
        return math.ceil(columns / math.ceil(columns / limit)) if columns else 0

    return _best_tile(filters, height, (2, 4, 1))


def _filter_tile(run: int, filters: int) -> Tile | None:
    """Tile with a number of elements that divides a run evenly."""
    return _best_tile(filters, lambda limit: max(n for n in range(1, limit + 1) if run % n == 0), (4, 2, 1))


def _best_tile(filters: int, height: Callable[[int], int], widths: Sequence[int]) -> Tile | None:
    """The largest tile that registers hold, where ``height(limit)`` is the maximum height for that limit; of
    equally large ones, the one with the width that comes first in ``widths``, in vectors.
    """
    lanes, registers = vector_registers()
    widths = [vectors for vectors in widths if filters % (vectors * lanes) == 0]
    tiles = [Tile(height((registers - RESERVED) // vectors), vectors, lanes) for vectors in widths]
    best = max(tiles, key=lambda tile: tile.height * tile.vectors, default=None)
    return best if best is not None and best.height * best.vectors >= MIN_SUMS else None


CONV_KERNELS: Mapping[OpDef, Kernel] = {
    conv2d_op: _convolve,
    conv2d_backprop_input_op: _convolve_to_input,
    conv2d_backprop_filter_op: _convolve_to_filter,
}
"""``kernel(op, xp, *inputs, out=None, **attrs)``."""
