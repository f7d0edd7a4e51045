"""What every implementation of collectives must do: a class of tests, which the test file of one subclasses.

An implementation is a function ``perform(p, calls)``: it makes p ranks do ``calls`` one after the other, and
returns for each call what each rank got, None where it gets nothing; and None for a call of a kind that it
has not. The oracle is NumPy, in `expected`. A second one, ``meet(p)``, makes them call a barrier.
Values are small whole numbers, for which every order of a reduction gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

from tests.each import nightly

SIZES = (0, 1, 7, 64, 10_007)
"""Elements: none, fewer than ranks, a prime, a power of two, more than fits into small buffers."""
LARGE_BYTES = 2_200_003
"""More than the chunk or piece of any medium."""
DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int64)
RANKS = (1, 2, 3, 4, 5, 8)
"""One, a pair, and more, of which powers of two have algorithms of their own. 8 take 4 times as long as 4."""
EACH_RANKS = nightly(RANKS, 4)
REDUCTIONS = ("sum", "mean", "prod", "min", "max")


class CollectiveCall(NamedTuple):
    """``values`` has one array a rank; for Broadcast and Scatter that of the root only."""

    kind: str
    values: Sequence[Any]
    attrs: Mapping[str, Any] = {}


Results: TypeAlias = Sequence[Sequence[Any] | None]
Perform: TypeAlias = Callable[[int, Sequence[CollectiveCall]], Results]
Meet: TypeAlias = Callable[[int], Sequence[tuple[float, float]]]
"""For each rank when it came to the barrier and when it left, by the clock of `time.monotonic`. The last rank
comes `LATE_S` after it could.
"""
LATE_S = 0.01


def reduced(values: Sequence[Any], reduction: str) -> Any:
    stacked = np.stack(values)
    if reduction == "mean":
        total = stacked.sum(axis=0, dtype=stacked.dtype)
        return total // len(values) if stacked.dtype.kind == "i" else total / stacked.dtype.type(len(values))
    dtype = {"dtype": stacked.dtype} if reduction in ("sum", "prod") else {}
    return getattr(stacked, reduction)(axis=0, **dtype)


def expected(p: int, call: CollectiveCall) -> Sequence[Any]:
    """What each rank gets, by NumPy."""
    values, attrs = call.values, call.attrs
    axis, root = attrs.get("axis", 0), attrs.get("root", 0)
    match call.kind:
        case "AllReduce":
            return [reduced(values, attrs.get("reduction", "sum"))] * p
        case "Reduce":
            return _at(root, p, reduced(values, attrs.get("reduction", "sum")))
        case "Broadcast":
            return [values[0]] * p
        case "AllGather":
            return [np.concatenate(values, axis)] * p
        case "Gather":
            return _at(root, p, np.concatenate(values, axis))
        case "Scatter":
            return np.array_split(values[0], p, axis)
        case "ReduceScatter":
            return np.array_split(reduced(values, attrs.get("reduction", "sum")), p, axis)
        case "AllToAll":
            parts = [np.array_split(value, p, axis) for value in values]
            return [np.concatenate([row[rank] for row in parts], axis) for rank in range(p)]
        case "AllToAllUneven":
            counts = attrs["counts"]
            parts = [np.split(v, np.cumsum(row)[:-1]) for v, row in zip(values, counts, strict=True)]
            return [np.concatenate([row[rank] for row in parts]) for rank in range(p)]
    raise AssertionError(call.kind)


def _at(root: int, p: int, value: Any) -> list[Any]:
    return [value if rank == root else None for rank in range(p)]


def check(perform: Perform, p: int, calls: Sequence[CollectiveCall]) -> None:
    """Each rank gets what NumPy says, in its dtype and shape."""
    for call, results in zip(calls, perform(p, calls), strict=True):
        if results is None:
            continue
        wanted = expected(p, call)
        assert len(results) == p
        for rank, (result, want) in enumerate(zip(results, wanted, strict=True)):
            where = f"{call.kind} {dict(call.attrs)} of {len(call.values)} values, rank {rank} of {p}"
            if want is None:
                assert result is None, where
                continue
            assert np.asarray(result).dtype == want.dtype, where
            np.testing.assert_array_equal(result, want, err_msg=where)


def array(rng: np.random.Generator, dtype: Any, *shape: int) -> Any:
    """Whole numbers, of which eight have an exact sum and product in every dtype."""
    return rng.integers(1, 3, shape).astype(dtype)


def arrays(p: int, dtype: Any, *shape: int) -> list[Any]:
    rng = np.random.default_rng([p, *shape])
    return [array(rng, dtype, *shape) for _ in range(p)]


def every_kind(values: Sequence[Any], root: int) -> list[CollectiveCall]:
    """A call of each kind, all with ``values``."""
    rooted = {"root": root}
    return [
        CollectiveCall("AllReduce", values),
        CollectiveCall("Reduce", values, rooted),
        CollectiveCall("Broadcast", values[:1], rooted),
        CollectiveCall("AllGather", values),
        CollectiveCall("Gather", values, rooted),
        CollectiveCall("Scatter", values[:1], rooted),
        CollectiveCall("ReduceScatter", values),
        CollectiveCall("AllToAll", values),
    ]


class CheckCollectives:
    """Subclass, and give ``perform`` and ``meet``. ``takes_any_size``: payloads need not be divisible by the
    ranks.
    """

    takes_any_size = True

    @pytest.fixture
    def perform(self) -> Perform:
        raise NotImplementedError

    @pytest.fixture
    def meet(self) -> Meet:
        raise NotImplementedError

    def cut(self, p: int, size: int) -> int:
        """``size`` for an axis that is cut: where all parts have to be equal, each is of that size."""
        return size if self.takes_any_size else size * p

    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_all_reduce_and_reduce(self, perform: Perform, p: int) -> None:
        calls = []
        for i, dtype in enumerate(DTYPES):
            for size in SIZES:
                reduction = REDUCTIONS[(i + size) % len(REDUCTIONS)]
                values = arrays(p, dtype, size)
                calls.append(CollectiveCall("AllReduce", values, {"reduction": reduction}))
                calls.append(CollectiveCall("Reduce", values, {"reduction": REDUCTIONS[i], "root": i % p}))
        check(perform, p, calls)

    @pytest.mark.parametrize("reduction", REDUCTIONS)
    def test_every_reduction_in_every_dtype_and_size(self, perform: Perform, reduction: str) -> None:
        attrs = {"reduction": reduction}
        check(
            perform,
            3,
            [
                CollectiveCall(kind, arrays(3, dtype, self.cut(3, size)), attrs)
                for kind in ("AllReduce", "Reduce", "ReduceScatter")
                for dtype in DTYPES
                for size in SIZES
            ],
        )

    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_broadcast_and_gathers(self, perform: Perform, p: int) -> None:
        calls = []
        for i, dtype in enumerate(DTYPES):
            root = {"root": i % p}
            for size in SIZES:
                values = arrays(p, dtype, size)
                calls.append(CollectiveCall("Broadcast", values[:1], root))
                calls.append(CollectiveCall("AllGather", values))
                calls.append(CollectiveCall("Gather", values, root))
        check(perform, p, calls)

    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_scatters_and_all_to_all(self, perform: Perform, p: int) -> None:
        calls = []
        for i, dtype in enumerate(DTYPES):
            for size in SIZES:
                values = arrays(p, dtype, self.cut(p, size))
                calls.append(CollectiveCall("Scatter", values[:1], {"root": i % p}))
                calls.append(CollectiveCall("ReduceScatter", values, {"reduction": REDUCTIONS[i]}))
                calls.append(CollectiveCall("AllToAll", values))
        check(perform, p, calls)

    @pytest.mark.slow
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_large_values(self, perform: Perform, p: int, dtype: Any) -> None:
        size = LARGE_BYTES // np.dtype(dtype).itemsize
        size = size if self.takes_any_size else size // p * p
        for call in every_kind(arrays(p, dtype, size), p - 1):
            check(perform, p, [call])

    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_nobody_leaves_a_barrier_before_the_last_has_come(self, meet: Meet, p: int) -> None:
        spans = meet(p)
        assert len(spans) == p
        assert max(came for came, _ in spans) <= min(left for _, left in spans)

    @pytest.mark.parametrize("p", (2, 3, 4))
    def test_more_than_one_dimension(self, perform: Perform, p: int) -> None:
        check(perform, p, every_kind(arrays(p, np.float32, 2 * p, 3), p - 1))

    def test_every_rank_gets_the_same_bits(self, perform: Perform) -> None:
        rng = np.random.default_rng(0)
        values = [rng.standard_normal(1001).astype(np.float32) for _ in range(5)]
        (results,) = perform(5, [CollectiveCall("AllReduce", values)])
        if results is None:
            return
        first, *others = results
        np.testing.assert_allclose(first, np.sum(values, axis=0), rtol=1e-4, atol=1e-5)
        for other in others:
            np.testing.assert_array_equal(other, first)


def uneven(rng: np.random.Generator, p: int, most: int, dtype: Any, *rest: int) -> CollectiveCall:
    """An exchange of up to ``most`` rows between each two ranks, of none between many."""
    counts = rng.integers(0, most + 1, (p, p)) * rng.integers(0, 2, (p, p))
    values = [array(rng, dtype, int(row.sum()), *rest) for row in counts]
    return CollectiveCall("AllToAllUneven", values, {"counts": counts.tolist()})


class CheckCommunicators(CheckCollectives):
    """Collectives below the operations: they cut into equal parts, or as they are told."""

    takes_any_size = False

    @pytest.mark.parametrize("p", EACH_RANKS)
    def test_uneven_all_to_all(self, perform: Perform, p: int) -> None:
        rng = np.random.default_rng(p)
        calls = [
            uneven(rng, p, most, dtype, *rest) for dtype in DTYPES for most, *rest in ((0,), (3, 2), (90,))
        ]
        calls.append(uneven(rng, p, LARGE_BYTES // p, np.int8))
        calls.append(uneven(rng, p, 2, np.float32, 0))
        check(perform, p, calls)
