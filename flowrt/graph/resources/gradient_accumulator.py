"""`GradientAccumulator`: adds up gradients until their mean or sum is taken."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from typing import Any, Protocol, final

from flowrt.errors import InvalidArgumentError
from flowrt.graph.resources.step_context import wait_until
from flowrt.graph.shapes import Shape, compatible, format_shape

LOGGER = logging.getLogger(__name__)


class Total(Protocol):
    """A sum of gradients of one kind."""

    def add(self, xp: Any, gradient: Any) -> None:
        """Raise `InvalidArgumentError` for a gradient that does not match, without changing anything."""

    def taken(self, xp: Any, count: int, is_mean: bool) -> Any:
        """The sum, or mean, of the ``count`` gradients that were added. Resets the total."""


@final
class DenseTotal:
    """A sum of arrays of ``shape``."""

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._sum: Any = None

    def add(self, xp: Any, gradient: Any) -> None:
        expected = self._shape if self._sum is None else self._sum.shape
        if not compatible(gradient.shape, expected):
            raise InvalidArgumentError(
                f"expected a gradient of shape {format_shape(expected)}; got {format_shape(gradient.shape)}"
            )
        if self._sum is None:
            self._sum = xp.array(gradient)  # a step's own memory is used again
        else:
            self._sum += gradient

    def taken(self, xp: Any, count: int, is_mean: bool) -> Any:
        total, self._sum = self._sum, None
        return xp.divide(total, count, dtype=total.dtype) if is_mean else total


@final
class SparseTotal:
    """A sum of rows of an array of ``shape``, as (indices, values, the array's shape or an empty one). A
    row's mean is over the gradients that contain it.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self._rows: dict[int, Any] = {}
        self._counts: dict[int, int] = {}

    def add(self, xp: Any, gradient: Any) -> None:
        indices, values, shape = gradient
        given = tuple(int(size) for size in shape)
        self._check(indices, values, given)
        for index, value in zip(indices.tolist(), values, strict=True):
            known = self._rows.get(index)
            self._rows[index] = xp.array(value) if known is None else known + value
            self._counts[index] = self._counts.get(index, 0) + 1
        if given:
            self._shape = given

    def _check(self, indices: Any, values: Any, given: tuple[int, ...]) -> None:
        if indices.ndim != 1 or values.ndim < 1 or values.shape[0] != indices.shape[0]:
            raise InvalidArgumentError(
                f"expected one row per index; got indices of shape {format_shape(indices.shape)}, values of"
                f" shape {format_shape(values.shape)}"
            )
        row = None if self._shape is None else self._shape[1:]
        if self._rows:
            row = next(iter(self._rows.values())).shape
        whole = None if row is None else (None, *row)
        if not compatible(values.shape, whole) or (given and not compatible(given, self._shape)):
            raise InvalidArgumentError(
                f"expected a gradient of shape {format_shape(self._shape)}; got values of shape"
                f" {format_shape(values.shape)} of {format_shape(given)}"
            )
        below = given[0] if given else (self._shape[0] if self._shape else None)
        if indices.size and (int(indices.min()) < 0 or (below is not None and int(indices.max()) >= below)):
            raise InvalidArgumentError(f"expected indices of 0 to {below}; got {indices.tolist()[:8]}")

    def taken(self, xp: Any, count: int, is_mean: bool) -> Any:
        rows, counts, self._rows, self._counts = self._rows, self._counts, {}, {}
        order = sorted(rows)
        values = [xp.divide(rows[i], counts[i], dtype=rows[i].dtype) if is_mean else rows[i] for i in order]
        shape = self._shape if self._shape is not None and None not in self._shape else ()
        return order, values, shape


@final
class GradientAccumulator:
    """Adds gradients computed at ``step`` or later and drops older ones. Each take begins the next step.
    Takers are served in FIFO order. All methods are thread-safe.
    """

    def __init__(self, name: str, total: Total, is_mean: bool) -> None:
        self._name, self._total, self._is_mean = name, total, is_mean
        self._changed = threading.Condition()
        self._line: deque[int] = deque()
        self._tickets = itertools.count()
        self.count = 0
        """Gradients added since the last take."""
        self.step = 0

    def apply(self, xp: Any, local_step: int, gradient: Any) -> None:
        """Add ``gradient``, unless it is older than the step. Raises `InvalidArgumentError` if it does not
        match.
        """
        with self._changed:
            if local_step < self.step:
                return
            self._total.add(xp, gradient)
            self.count += 1
            self._changed.notify_all()

    def take(self, xp: Any, num_required: int) -> Any:
        """Wait for ``num_required`` gradients; returns the mean or sum of all those present."""
        if num_required < 1:
            raise InvalidArgumentError(f"num_required: expected at least 1; got {num_required}")
        ticket = next(self._tickets)
        with self._changed:
            self._line.append(ticket)
            try:
                wait_until(
                    lambda: self._line[0] == ticket and self.count >= num_required,
                    self._changed.wait,
                    obstacle=lambda: (
                        f"accumulator {self._name!r} has {self.count} of {num_required} gradients"
                    ),
                )
                count, self.count = self.count, 0
                self.step += 1
                return self._total.taken(xp, count, self._is_mean)
            finally:
                self._line.remove(ticket)
                self._changed.notify_all()

    def set_step(self, step: int) -> None:
        with self._changed:
            if step < self.step:
                LOGGER.warning(
                    "accumulator %r: global step decreases from %d to %d", self._name, self.step, step
                )
            self.step = step
