"""Convolutions by compiled loops, against the operations' own kernels in float64."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from flowrt.device.llvm import host_jit
from flowrt.errors import InvalidArgumentError
from flowrt.executor.kernels import conv_kernels
from flowrt.executor.kernels.conv_kernels import CONV_KERNELS
from flowrt.graph.op_def import OpDef, registered_ops
from tests.executor.float_sums import check_sums, laid_out

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

Array = np.ndarray[Any, Any]

PLAIN: dict[str, Any] = {
    "strides": (1,) * 4,
    "dilations": (1,) * 4,
    "padding": "SAME",
    "data_format": "NHWC",
    "explicit_paddings": (),
}


def check(op: OpDef, *arguments: Any, **attrs: Any) -> None:
    check_sums(CONV_KERNELS[op], op, *arguments, **attrs)


def check_all(x: Array, filter: Array, dy: Array, attrs: dict[str, Any]) -> None:
    ops = registered_ops()
    check(ops["Conv2D"], x, filter, **attrs)
    check(ops["Conv2DBackpropInput"], x.shape, filter, dy, **attrs)
    check(ops["Conv2DBackpropFilter"], x, filter.shape, dy, **attrs)


SAMPLES = [
    pytest.param(op, sample, id=f"{op.name}-{position}")
    for op in CONV_KERNELS
    for position, sample in enumerate(op.samples(np.random.default_rng(0)))
]


@pytest.mark.parametrize("op, sample", SAMPLES)
def test_every_sample_of_its_operations(op: OpDef, sample: Any) -> None:
    """Most are for the operation itself."""
    attrs = {key: sample.attrs.get(key, op.attrs[key].default) for key in op.kernel_attrs}
    arguments = [
        tuple(np.asarray(value).tolist()) if argument.on_host else np.asarray(value).astype(np.float32)
        for value, argument in zip(sample.inputs, op.inputs, strict=True)
    ]
    check(op, *arguments, **attrs)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Array, Array, Array, dict[str, Any]]:
    """(images, filter, output gradient, attributes), most of which loops can do."""
    height, width = (draw(st.integers(1, 20)) for _ in range(2))
    taps = [draw(st.integers(1, 4)) for _ in range(2)]
    strides, dilations = ((1, *[draw(st.integers(1, n)) for _ in range(2)], 1) for n in (3, 2))
    attrs: dict[str, Any] = {**PLAIN, "strides": strides, "dilations": dilations}
    attrs["padding"] = draw(st.sampled_from(["SAME", "VALID", "EXPLICIT"]))
    if attrs["padding"] == "EXPLICIT":
        attrs["explicit_paddings"] = (0, 0, *[draw(st.integers(0, 3)) for _ in range(4)], 0, 0)
    channels, filters = (draw(st.sampled_from([16, 1, 3, 32, 5])) for _ in range(2))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = laid_out(draw, rng, (draw(st.integers(1, 3)), height, width, channels))
    filter = laid_out(draw, rng, (*taps, channels, filters))
    try:
        y_shape = registered_ops()["Conv2D"].kernel(np, x, filter, **attrs).shape
    except InvalidArgumentError:  # the window is larger than the image
        y_shape = ()
    return x, filter, laid_out(draw, rng, y_shape), attrs


def test_what_was_padded_behind_a_filter_of_one_tap_has_no_gradient() -> None:
    rng = np.random.default_rng(0)
    x, filter, dy = (
        rng.standard_normal(s, np.float32) for s in ((1, 1, 1, 16), (1, 1, 16, 16), (1, 1, 2, 16))
    )
    check_all(x, filter, dy, {**PLAIN, "padding": "EXPLICIT", "explicit_paddings": (0, 0, 0, 0, 0, 1, 0, 0)})


@given(convolutions())
def test_random_convolutions_and_their_gradients(case: tuple[Array, Array, Array, dict[str, Any]]) -> None:
    x, filter, dy, attrs = case
    if dy.ndim:
        check_all(x, filter, dy, attrs)
        return
    op = registered_ops()["Conv2D"]
    with pytest.raises(InvalidArgumentError, match="window"):
        CONV_KERNELS[op](op, np, x, filter, **attrs)


@pytest.mark.parametrize("lanes, registers", [(16, 32), (8, 16), (4, 32), (4, 16)])
def test_for_every_kind_of_processor(lanes: int, registers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that this one does not have LLVM makes of what it has."""
    monkeypatch.setattr(conv_kernels, "vector_registers", lambda: (lanes, registers))
    rng = np.random.default_rng(0)
    x, filter, dy = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 6, 19, 16), (3, 2, 16, 32), (2, 6, 19, 32))
    )
    check_all(x, filter, dy, PLAIN)


@pytest.mark.parametrize("shape, taps, filters", [((8, 14, 14, 32), 5, 64), ((8, 28, 28, 1), 5, 32)])
def test_large_images_are_the_loops(
    shape: tuple[int, ...], taps: int, filters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads share them; and whatever the other tests compare, here the operation's own kernel is not
    called, but for the gradient of images with one channel.
    """
    done: list[Any] = []
    run = conv_kernels._run
    monkeypatch.setattr(conv_kernels, "_run", lambda *a: (done.append(a), run(*a)))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(np.float32)
    filter = rng.standard_normal((taps, taps, shape[3], filters)).astype(np.float32)
    dy = rng.standard_normal((*shape[:3], filters)).astype(np.float32)
    check_all(x, filter, dy, PLAIN)
    assert len(done) == 2 * (3 if shape[3] > 1 else 2)


def test_a_filter_beyond_the_cache_is_the_operations() -> None:
    rng = np.random.default_rng(0)
    x, filter = (rng.standard_normal(s).astype(np.float32) for s in ((1, 7, 7, 512), (3, 3, 512, 64)))
    y = np.empty((1, 7, 7, 64), np.float32)
    axes = conv_kernels.conv_axes(x.shape, (3, 3), PLAIN)
    assert not conv_kernels._run_forward(x, filter, axes, y, None)


def test_a_nan_or_infinity_reaches_the_windows_that_have_it_and_no_others() -> None:
    op = registered_ops()["Conv2D"]
    x = np.ones((2, 8, 8, 16), np.float32)
    x[0, 3, 3, 5], x[1, 0, 0, 15] = np.nan, np.inf
    filter = np.ones((3, 3, 16, 32), np.float32)
    filter[0, 0, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        expected = op.kernel(np, x, filter, **PLAIN)
    assert np.array_equal(CONV_KERNELS[op](op, np, x, filter, **PLAIN), expected, equal_nan=True)


def test_arguments_that_do_not_fit_raise_what_the_operation_raises() -> None:
    ops = registered_ops()
    x, filter = np.ones((1, 5, 5, 16), np.float32), np.ones((2, 2, 16, 32), np.float32)
    wrong = np.ones((1, 5, 4, 32), np.float32)
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("Conv2D", (x[..., :3], filter)),
        ("Conv2DBackpropInput", (x.shape, filter, wrong)),
        ("Conv2DBackpropFilter", (x, filter.shape, wrong)),
    ]
    for name, arguments in calls:
        with pytest.raises(InvalidArgumentError):
            CONV_KERNELS[ops[name]](ops[name], np, *arguments, **PLAIN)
