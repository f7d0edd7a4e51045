"""Buckets of equal weight: a session's quantile streams, and the buckets of numbers. On the host."""

from __future__ import annotations

import threading
from typing import Any, final

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    ShapeContext,
    define_handle,
    define_op,
    sample,
)
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.trees.on_host import on_host
from flowrt.graph.shapes import Shape
from flowrt.graph.trees.quantiles import QuantileStream, boundaries


@final
class QuantileStreams:
    """A stream for each column of batches; the first batch says how many there are."""

    def __init__(self, eps: float) -> None:
        self._eps = eps
        self._streams: list[QuantileStream] = []
        self._lock = threading.Lock()

    def add(self, values: Any, weights: Any) -> None:
        """Add ``values``, [examples, columns], with the weight of each example, [examples] or [1]."""
        examples, columns = values.shape
        if len(weights) not in (1, examples):
            raise InvalidArgumentError(
                f"expected a weight for each of {examples} examples; got {len(weights)}"
            )
        weights = np.broadcast_to(weights, (examples,))
        with self._lock:
            self._streams = self._streams or [QuantileStream(self._eps) for _ in range(columns)]
            if len(self._streams) != columns:
                raise InvalidArgumentError(f"expected {len(self._streams)} columns; got {columns}")
            for stream, column in zip(self._streams, values.T, strict=True):
                batch = QuantileStream(self._eps, examples + 1)
                batch.add(column, weights)
                stream.add_summary(batch.summary())

    def taken(self, count: int) -> Any:
        """The boundaries of about ``count`` buckets, float32, [columns, boundaries], filled up with NaN. The
        streams begin anew.
        """
        with self._lock:
            streams, self._streams = self._streams, []
        rows = [boundaries(stream.summary(), count) for stream in streams]
        found = np.full((len(rows), max(map(len, rows), default=0)), np.nan, np.float32)
        for row, values in zip(found, rows, strict=True):
            row[: len(values)] = values
        return found


quantile_streams_op: OpDef[Tensor] = define_handle(
    "QuantileStreams",
    lambda node: QuantileStreams(node.attrs["epsilon"]),
    "The handle of a session's streams of numbers, of which boundaries of buckets are made.",
    output="streams: resource",
    attrs="epsilon: float",
)

quantile_streams_add: OpDef[Operation] = define_op(
    "QuantileStreamsAdd",
    "streams: resource, values: float32, weights: float32 ->",
    kernel=lambda xp, streams, values, weights: streams.add(*on_host(xp, values, weights)),
    effects=Effects(Effect.WRITE),
    doc="Adds a batch of numbers, ``[examples, columns]``, and weights to quantile streams.",
)

quantile_streams_take: OpDef[Tensor] = define_op(
    "QuantileStreamsTake",
    "streams: resource -> boundaries: float32",
    attrs="count: int",
    shape=lambda s: [(None, None)],
    kernel=lambda xp, streams, count: xp.asarray(streams.taken(count)),
    effects=Effects(Effect.WRITE),
    doc="The boundaries of about ``count`` buckets, ``[columns, boundaries]``, filled up with NaN.",
)


def buckets_of(values: Any, limits: Any) -> Any:
    """The first boundary that is not below each value, or the last one, int32."""
    found = np.zeros(values.shape, np.int32)
    for column, row in enumerate(limits):
        known = row[~np.isnan(row)]
        if len(known):
            places = np.searchsorted(known, values[:, column])
            places[np.isnan(values[:, column])] = 0
            found[:, column] = np.minimum(places, len(known) - 1)
    return found


def _bucketize(xp: Any, values: Any, boundaries: Any, out: Any = None) -> Any:
    found = buckets_of(*on_host(xp, values, boundaries))
    return delivered(xp, xp.asarray(found), found.dtype, out)


def _like_values(s: ShapeContext) -> list[Shape]:
    return [s.shapes[0]]


quantile_buckets: OpDef[Tensor] = define_op(
    "QuantileBuckets",
    "values: float32, boundaries: float32 -> buckets: int32",
    shape=_like_values,
    kernel=_bucketize,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(
            np.array([[0.5, 3], [1, np.nan], [9, -1]], np.float32),
            np.array([[0.5, 1, 2], [2, 5, np.nan]], np.float32),
        ),
        sample(np.ones((2, 1), np.float32), np.zeros((0, 0), np.float32)),
    ),
    doc="The bucket of each number: of the boundaries of its column the first that is not below it, or the"
    " last; 0 for NaN and for a column without boundaries.",
)
