"""LLVM IR of convolutions of channels-last images, as text. Pure; nothing here needs LLVM.

    void flowrt_loop(ptr table, i64 begin, i64 end)

Nothing is copied first: both functions keep a tile of sums in vector registers, and iterate over the windows'
elements; each is broadcast and multiplied with some vectors of the other operand. Measured on 2 cores for
[64, 14, 14, 32] by 5x5x32x64: 4.6 ms, its gradients 4.6 and 5.1. A matrix product over copied windows, by
OpenBLAS, takes 5.2 for the product alone, and 7 or more including the copies.

The table holds int64: three addresses, then `Sizes` in order. Images are already padded. Contiguous elements
of a window in a row of the image are one run: the whole row of the window, or, with dilation, the channels of
one tap.

Rule of this file: the tile, and the step between its elements, are part of the text, so that addresses take
no registers; all else is read from the table, so that few functions serve all shapes.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple, final

from flowrt.loops.llvm_text import FUNCTION, TileWriter


class Tile(NamedTuple):
    """A tile of sums: ``height`` by ``vectors`` vectors of ``lanes`` floats."""

    height: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        return self.vectors * self.lanes


class Sizes(NamedTuple):
    """Words of the table after the addresses, in elements."""

    images: int
    rows: int
    """Number of rows of an output."""
    columns: int
    filters: int
    taps: int
    """Rows of a window."""
    runs: int
    """Number of runs per row of a window."""
    run: int
    image_step: int
    """Distance between images of an input."""
    row_step: int
    """Distance from an output's window to that of the output below."""
    tap_step: int
    """Distance between rows of a window."""
    run_step: int
    column_step: int
    """Distance from an output's window to its neighbour's."""
    block: int
    """Rows of outputs processed for all tiles of a filter before the next block: the first-level cache's."""


def forward_function(tile: Tile, column_step: int) -> str:
    """Addresses: images, packed filter ``[filters / width, taps, runs, run, width]`` where the tile has that
    width, outputs. A loop over the rows of all outputs.

    An output has at least the tile's height of columns, and filters for whole tiles.
    """
    return _Writer(tile).forward(column_step)


def filter_function(tile: Tile) -> str:
    """Addresses: images, gradients of outputs, filter. A loop over the tiles of the filter, to which the
    images' contributions are added; runs have elements, and filters, for whole tiles.
    """
    return _Writer(tile).filter()


@final
class _Writer(TileWriter):
    def __init__(self, tile: Tile) -> None:
        super().__init__("float")
        self._tile, self._widths = tile, [tile.lanes] * tile.vectors

    def forward(self, column_step: int) -> str:
        tile, n = self._tile, self._table("x", "filter", "y")
        last = self._let(f"sub i64 {n.columns}, {tile.height}")
        window = self._product(self._product(n.taps, n.runs), n.run)
        with self._loop("0", n.filters, tile.width) as filter, self._loop("%begin", "%end") as row:
            packed = self._at("%filter", (filter, window))
            image, within = self._divided(row, n.rows)
            x_row = self._at("%x", (image, n.image_step), (within, n.row_step))
            y_row = self._at("%y", (self._product(row, n.columns), n.filters), (filter, 1))
            with self._loop("0", n.columns, tile.height) as column:
                first = self._minimum(column, last)  # the last tile may overlap the one before
                sums = self._zeros(tile.height, self._widths)
                x_window = self._at(x_row, (first, column_step))
                with self._loop("0", n.taps) as tap, self._loop("0", n.runs) as run:
                    numbers = self._at(x_window, (tap, n.tap_step), (run, n.run_step))
                    before = self._product(self._joined(tap, n.runs, run), n.run)
                    weights = self._at(packed, (before, tile.width))
                    with self._loop("0", n.run) as element:
                        vectors = self._at(weights, (element, tile.width))
                        start = self._at(numbers, (element, 1))
                        self._add_products(sums, start, column_step, vectors, self._widths)
                into = self._at(y_row, (first, n.filters))
                bases = [self._at(into, (str(t), n.filters)) for t in range(tile.height)]
                self._put(sums, bases, self._widths)
        return self._module(self._function(f"void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind"))

    def filter(self) -> str:
        tile, n = self._tile, self._table("x", "y", "filter")
        per_run = self._let(f"sdiv i64 {n.run}, {tile.height}")
        across = self._let(f"sdiv i64 {n.filters}, {tile.width}")
        with self._loop("0", n.images) as image, self._loop("0", n.rows, n.block) as top:
            bottom = self._minimum(self._let(f"add i64 {top}, {n.block}"), n.rows)
            with self._loop("%begin", "%end") as number:
                place, filter_tile = self._divided(number, across)
                window, run_tile = self._divided(place, per_run)
                tap, run = self._divided(window, n.runs)
                filter = self._product(filter_tile, str(tile.width))
                element = self._product(run_tile, str(tile.height))
                first = self._at("%filter", (self._joined(window, n.run, element), n.filters), (filter, 1))
                into = [self._at(first, (str(t), n.filters)) for t in range(tile.height)]
                vectors = [self._vectors(base, self._widths) for base in into]
                sums = [[self._variable(self._vector(tile.lanes), v) for v in row] for row in vectors]
                x_tile = self._at("%x", (tap, n.tap_step), (run, n.run_step), (element, 1))
                with self._loop(top, bottom) as row:
                    x_row = self._at(x_tile, (image, n.image_step), (row, n.row_step))
                    before = self._product(self._joined(image, n.rows, row), n.columns)
                    y_row = self._at("%y", (before, n.filters), (filter, 1))
                    with self._loop("0", n.columns) as column:
                        numbers = self._at(x_row, (column, n.column_step))
                        vectors_of_y = self._at(y_row, (column, n.filters))
                        self._add_products(sums, numbers, 1, vectors_of_y, self._widths)
                self._put(sums, into, self._widths)
        return self._module(self._function(f"void @{FUNCTION}(ptr %table, i64 %begin, i64 %end) nounwind"))

    # --- numbers

    def _table(self, *addresses: str) -> Any:
        """Read the table. Returns the names of its numbers, by those of `Sizes`."""
        for position, name in enumerate((*addresses, *Sizes._fields)):
            kind = "ptr" if position < len(addresses) else "i64"
            place = self._let(f"getelementptr i64, ptr %table, i64 {position}")
            self._say(f"%{name} = load {kind}, ptr {place}")
        return SimpleNamespace(**{name: f"%{name}" for name in Sizes._fields})

    def _product(self, one: str, other: str) -> str:
        return self._let(f"mul nsw i64 {one}, {other}")

    def _divided(self, number: str, by: str) -> tuple[str, str]:
        """Quotient and remainder."""
        return self._let(f"sdiv i64 {number}, {by}"), self._let(f"srem i64 {number}, {by}")

    def _joined(self, outer: str, size: str, inner: str) -> str:
        """The inverse of `_divided`."""
        return self._let(f"add nsw i64 {self._product(outer, size)}, {inner}")

    def _minimum(self, one: str, other: str) -> str:
        return self._call("llvm.smin.i64", "i64", one, other)
