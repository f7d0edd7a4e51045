"""Maxima over windows by compiled loops: equal to the operations' own kernels, element by element."""

from __future__ import annotations

from functools import partial
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError
from flowrt.executor.kernels import pool_kernels
from flowrt.executor.kernels.pool_kernels import MAX_TAPS, POOL_KERNELS
from flowrt.graph.op_def import OpDef, registered_ops

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

Array = np.ndarray[Any, Any]


def check(op: OpDef, *arrays: Array, **attrs: Any) -> Array:
    expected = op.kernel(np, *arrays, **attrs)
    result = POOL_KERNELS[op](op, np, *arrays, **attrs)
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected, equal_nan=expected.dtype.kind == "f")
    out = np.full_like(expected, 7)
    assert POOL_KERNELS[op](op, np, *arrays, out=out, **attrs) is out
    assert np.array_equal(out, expected, equal_nan=expected.dtype.kind == "f")
    return np.asarray(result)


def check_both(x: Array, dims: str, attrs: dict[str, Any], seed: int) -> None:
    """The maximum, and the gradient from a random one of it."""
    ops = registered_ops()
    y = check(ops[f"MaxPool{dims}"], x, **attrs)
    dy = np.random.default_rng(seed).standard_normal(y.shape).astype(x.dtype)
    check(ops[f"MaxPool{dims}Grad"], x, y, dy, **attrs)


SAMPLES = [
    pytest.param(op, sample, dtype, id=f"{op.name}-{position}-{dtype}")
    for op in POOL_KERNELS
    for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    for dtype in ("float32", "float64", "float16")
]


@pytest.mark.parametrize("op, sample, dtype", SAMPLES)
def test_every_sample_of_its_operations(op: OpDef, sample: Any, dtype: str) -> None:
    attrs = {key: sample.attrs.get(key, op.attrs[key].default) for key in op.kernel_attrs}
    check(op, *[np.asarray(value).astype(dtype) for value in sample.inputs], **attrs)


@st.composite
def windows(draw: st.DrawFn) -> tuple[Array, str, dict[str, Any]]:
    """Images with few different values, so that windows have their maximum several times, or NaNs."""
    rank = draw(st.sampled_from([4, 4, 5]))
    sizes = [draw(st.integers(1, 7)) for _ in range(rank)]
    ksize = [draw(st.integers(1, min(3, n))) for n in sizes]
    strides = [draw(st.integers(1, 3)) for _ in range(rank)]
    attrs: dict[str, Any] = dict(ksize=tuple(ksize), strides=tuple(strides))
    attrs["padding"] = draw(
        st.sampled_from(["SAME", "VALID", "EXPLICIT"] if rank == 4 else ["SAME", "VALID"])
    )
    if attrs["padding"] == "EXPLICIT":
        pairs = [draw(st.integers(0, taps - 1)) for taps in ksize for _ in range(2)]
        attrs["explicit_paddings"] = tuple(pairs)
    values = draw(
        st.sampled_from([[0, 1], [-1, 0, 1, 2], [-np.inf, 0.5, np.inf], [-np.inf], [np.nan, -1, 1]])
    )
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kept = values if dtype != "int32" else [int(v) for v in values if np.isfinite(v)] or [3]
    way = draw(st.sampled_from(["plain", "plain", "sliced", "reversed", "turned"]))
    shape = [2 * n for n in sizes] if way == "sliced" else sizes[::-1] if way == "turned" else sizes
    x = rng.choice(kept, shape).astype(dtype)
    if way == "sliced":
        x = x[(slice(None, None, 2),) * rank]
    elif way == "reversed":
        x = x[:, ::-1]
    return x.T if way == "turned" else x, "3D" if rank == 5 else "", attrs


@settings(max_examples=settings.default.max_examples // 2)
@given(windows(), st.integers(0, 2**32))
def test_random_windows(case: tuple[Array, str, dict[str, Any]], seed: int) -> None:
    x, dims, attrs = case
    check_both(x, dims, attrs, seed)


@pytest.mark.parametrize("size, stride", [(2, 2), (3, 2), (2, 3), (3, 1)])
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
def test_large_images_are_the_loops(size: int, stride: int, padding: str) -> None:
    """Threads share them; and whatever the other tests compare, here the operation's own kernel is not
    called: there is none.
    """
    x = np.random.default_rng(0).standard_normal((8, 30, 31, 16)).astype(np.float32)
    attrs = dict(ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding=padding)
    ops = registered_ops()
    y = ops["MaxPool"].kernel(np, x, **attrs)
    expected = ops["MaxPoolGrad"].kernel(np, x, y, y, **attrs)
    max_pool, max_pool_grad = (
        partial(POOL_KERNELS[ops[name]], None, np) for name in ("MaxPool", "MaxPoolGrad")
    )
    assert np.array_equal(max_pool(x, **attrs), y)
    assert np.array_equal(max_pool_grad(x, y, y, **attrs), expected)


@settings(max_examples=settings.default.max_examples // 4)
@given(windows(), st.integers(0, 2**32))
def test_windows_at_borders_may_be_apart(case: tuple[Array, str, dict[str, Any]], seed: int) -> None:
    """As they are of images so large that it pays."""
    x, dims, attrs = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_kernels, "CUT_SAVES", -(1 << 40))
        patch.setattr(pool_kernels, "_pieces", pool_kernels._pieces.__wrapped__)
        patch.setattr(pool_kernels, "_gathering", pool_kernels._gathering.__wrapped__)
        check_both(x, dims, attrs, seed)


@pytest.mark.parametrize("size, stride, programs", [(3, 1, 3), (3, 2, 3), (2, 2, 2)])
@pytest.mark.parametrize("side", [5, 31, 90])
def test_there_are_as_many_programs_whatever_the_image(
    size: int, stride: int, programs: int, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And few loops more where windows at the borders are apart."""
    calls: list[Any] = []
    run = pool_kernels._run
    monkeypatch.setattr(pool_kernels, "_run", lambda *a: (calls.append(a[:2]), run(*a)))
    x = np.random.default_rng(0).standard_normal((2, side, side, 32)).astype(np.float32)
    check_both(x, "", dict(ksize=(1, size, size, 1), strides=(1, stride, stride, 1), padding="SAME"), 0)
    assert len(set(calls)) == programs
    pieces = 5 if side == 90 else 1
    assert len(calls) <= 2 * programs * pieces  # each is checked twice


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_nan_is_the_maximum_wherever_it_is_in_a_window(dtype: str) -> None:
    x = np.random.default_rng(0).standard_normal((9, 3, 3, 16)).astype(dtype)
    for i, image in enumerate(x):
        image.reshape(9, 16)[i] = np.nan
    y = check(registered_ops()["MaxPool"], x, ksize=(1, 3, 3, 1), strides=(1, 3, 3, 1), padding="VALID")
    assert np.isnan(y).all()


def test_windows_of_more_taps_are_the_operations() -> None:
    x = np.random.default_rng(0).standard_normal((2, 9, 9, 3)).astype(np.float32)
    side = int(MAX_TAPS**0.5) + 1
    check_both(x, "", dict(ksize=(1, side, side, 1), strides=(1, 2, 2, 1), padding="SAME"), 0)


def test_a_gradient_of_another_shape_is_refused() -> None:
    x = np.ones((1, 4, 4, 1), np.float32)
    op = registered_ops()["MaxPoolGrad"]
    attrs = dict(ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID")
    with pytest.raises(InvalidArgumentError, match="gradient of shape"):
        POOL_KERNELS[op](op, np, x, x[:, :2, :2], x, **attrs)
