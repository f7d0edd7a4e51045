"""What every implementation of collectives must do: a class of tests, which the test file of one subclasses.

An implementation is a function ``perform(p, calls)``: it makes p ranks do ``calls`` one after the other, and
returns for each call what each rank got, None where it gets nothing; and None for a call of a kind that it
has not. The oracle is NumPy, in `expected`.
Values are small whole numbers, for which every order of a reduction gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pytest

SIZES = (0, 1, 7, 64, 10_007)
"""Elements: none, fewer than ranks, a prime, a power of two, more than fits into small buffers."""
DTYPES = (np.float32, np.float64, np.float16, np.int32, np.int64)
RANKS = (1, 2, 3, 4, 5, 8)
REDUCTIONS = ("sum", "mean", "prod", "min", "max")


class CollectiveCall(NamedTuple):
    """``values`` has one array a rank; for Broadcast and Scatter that of the root only."""

    kind: str
    values: Sequence[Any]
    attrs: Mapping[str, Any] = {}


Results: TypeAlias = Sequence[Sequence[Any] | None]
Perform: TypeAlias = Callable[[int, Sequence[CollectiveCall]], Results]


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


class CheckCollectives:
    """Subclass, and give ``perform``. ``takes_any_size``: payloads need not be divisible by the ranks."""

    takes_any_size = True

    @pytest.fixture
    def perform(self) -> Perform:
        raise NotImplementedError

    def sizes(self, p: int) -> list[int]:
        """Of an axis that is cut."""
        return [size if self.takes_any_size else size // p * p for size in SIZES]

    @pytest.mark.parametrize("p", RANKS)
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
            perform, 3, [CollectiveCall("AllReduce", arrays(3, d, s), attrs) for d in DTYPES for s in SIZES]
        )

    @pytest.mark.parametrize("p", RANKS)
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

    @pytest.mark.parametrize("p", RANKS)
    def test_scatters_and_all_to_all(self, perform: Perform, p: int) -> None:
        calls = []
        for i, dtype in enumerate(DTYPES):
            for size in self.sizes(p):
                values = arrays(p, dtype, size)
                calls.append(CollectiveCall("Scatter", values[:1], {"root": i % p}))
                calls.append(CollectiveCall("ReduceScatter", values, {"reduction": REDUCTIONS[i]}))
                calls.append(CollectiveCall("AllToAll", values))
        check(perform, p, calls)

    @pytest.mark.parametrize("p", (2, 3, 4))
    def test_more_than_one_dimension(self, perform: Perform, p: int) -> None:
        values = arrays(p, np.float32, 2 * p, 3)
        calls = [
            CollectiveCall("AllReduce", values),
            CollectiveCall("Reduce", values, {"root": p - 1}),
            CollectiveCall("Broadcast", values[:1], {"root": p - 1}),
            CollectiveCall("AllGather", values),
            CollectiveCall("Gather", values),
            CollectiveCall("Scatter", values[:1]),
            CollectiveCall("ReduceScatter", values),
            CollectiveCall("AllToAll", values),
        ]
        check(perform, p, calls)

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
