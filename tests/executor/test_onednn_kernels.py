"""Kernels that oneDNN computes, against the operations' own in float64: on all of their samples, and on
random shapes, strides, paddings, dilations, groups and layouts.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import flowrt as tf
from flowrt import dtypes
from flowrt.device.llvm import host_pool
from flowrt.device.onednn import onednn, primitives
from flowrt.device.onednn.onednn_blas import multiply
from flowrt.device.onednn.primitives import batch_normalization, layout_of
from flowrt.errors import InvalidArgumentError
from flowrt.executor.kernels import onednn_kernels
from flowrt.executor.kernels.onednn_kernels import MAX_UNPACKED, MIN_PRODUCT, ONEDNN_KERNELS
from flowrt.graph.evaluate import kernel_arguments
from flowrt.graph.op_def import OpDef, registered_ops
from flowrt.graph.ops.nn.batch_norm import batch_norm_grad_op, batch_norm_op
from flowrt.graph.ops.nn.windows import join_layout
from tests.executor.float_sums import check_sums, laid_out

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

Array = np.ndarray[Any, Any]


NORMALIZATIONS = batch_norm_op, batch_norm_grad_op


def attributes(op: OpDef, given: Any) -> dict[str, Any]:
    """What a kernel of ``op`` gets."""
    return {key: given.get(key, op.attrs[key].default) for key in op.kernel_attrs}


def own(op: OpDef, *arguments: Any, **attrs: Any) -> Array:
    result: Array = ONEDNN_KERNELS[op](op, np, *arguments, **attrs)
    return result


def check(op: OpDef, *arguments: Any, **attrs: Any) -> None:
    check_sums(ONEDNN_KERNELS[op], op, *arguments, **attrs)


def samples() -> list[Any]:
    return [
        pytest.param(op, sample, id=f"{op.name}-{position}")
        for op in ONEDNN_KERNELS
        if op not in NORMALIZATIONS
        for position, sample in enumerate(op.samples(np.random.default_rng(0)))
    ]


@pytest.mark.parametrize("op, sample", samples())
def test_every_sample_of_its_operations(op: OpDef, sample: Any) -> None:
    attrs = attributes(op, sample.attrs)
    values = [
        np.asarray(value) if argument.on_host else np.asarray(value).real.astype(np.float32)
        for value, argument in zip(sample.inputs, op.inputs, strict=True)
    ]
    check(op, *kernel_arguments(op, values, attrs), **attrs)


@pytest.mark.parametrize("op, sample", samples())
def test_other_dtypes_are_for_the_operation_itself(op: OpDef, sample: Any) -> None:
    attrs = attributes(op, sample.attrs)
    arguments = kernel_arguments(op, [np.asarray(v) for v in sample.inputs], attrs)
    if any(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in arguments):
        return
    assert np.array_equal(own(op, *arguments, **attrs), op.kernel(np, *arguments, **attrs))


@pytest.mark.parametrize("is_given", [False, True], ids=["new", "given"])
@pytest.mark.parametrize("dtype", [dtypes.bfloat16.np, dtypes.float16.np], ids=str)
@pytest.mark.parametrize(
    "shapes, name, attrs",
    [
        ([(64, 96), (96, 80)], "MatMul", {}),
        ([(2, 64, 96), (2, 96, 80)], "BatchMatMulV2", {}),
        ([(2, 9, 9, 4), (3, 3, 4, 8)], "Conv2D", {"strides": (1, 1, 1, 1), "padding": "SAME"}),
    ],
)
def test_narrow_floats_are_summed_in_float32(
    shapes: Any, name: str, attrs: Any, dtype: Any, is_given: bool
) -> None:
    """By the library, not by the operation's own kernel."""
    rng, op = np.random.default_rng(0), registered_ops()[name]
    arguments = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    attrs = attributes(op, attrs)
    expected = op.kernel(np, *[a.astype(np.float64) for a in arguments], **attrs)
    out = np.empty(expected.shape, dtype) if is_given else None
    found = onednn_kernels._COMPUTED[op](op, attrs, arguments, out)
    assert found.dtype == dtype
    assert found is out or not is_given
    step = 2.0**-8 if dtype == dtypes.bfloat16.np else 2.0**-11
    np.testing.assert_allclose(found.astype(float), expected, step, 1e-4)


# --- convolution


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Array, Array, Array, dict[str, Any], bool]:
    """(images, filter, output gradient, attributes, whether it is depthwise)."""
    is_depthwise = draw(st.booleans())
    spatial = 2 if is_depthwise else draw(st.sampled_from([2, 2, 3]))
    sizes = [draw(st.integers(1, 9)) for _ in range(spatial)]
    taps = [draw(st.integers(1, 4)) for _ in range(spatial)]
    groups, per_group, filters = (draw(st.integers(1, n)) for n in (3, 18, 18))
    last = "NHWC" if spatial == 2 else "NDHWC"
    layout = draw(st.sampled_from([last, "NCHW" if spatial == 2 else "NCDHW"]))
    strides, dilations = (
        join_layout(1, [draw(st.integers(1, n)) for _ in range(spatial)], 1, layout) for n in (3, 2)
    )
    attrs: dict[str, Any] = {"strides": strides, "dilations": dilations, "data_format": layout}
    attrs["padding"] = draw(
        st.sampled_from(["SAME", "VALID", "EXPLICIT"] if spatial == 2 else ["SAME", "VALID"])
    )
    if spatial == 2:
        pairs = [(draw(st.integers(0, 3)), draw(st.integers(0, 3))) for _ in range(spatial)]
        is_explicit = attrs["padding"] == "EXPLICIT"
        explicit = [n for pair in join_layout((0, 0), pairs, (0, 0), layout) for n in pair]
        attrs["explicit_paddings"] = tuple(explicit) if is_explicit else ()
    images = draw(st.integers(1, 3))
    if is_depthwise:
        x_channels, filter_shape = per_group, (*taps, per_group, draw(st.integers(1, 3)))
    else:
        x_channels, filter_shape = groups * per_group, (*taps, per_group, groups * filters)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = laid_out(draw, rng, join_layout(images, sizes, x_channels, layout))
    filter = rng.standard_normal(filter_shape).astype(np.float32)
    op = registered_ops()["DepthwiseConv2dNative" if is_depthwise else "Conv2D" if spatial == 2 else "Conv3D"]
    try:
        y_shape = op.kernel(np, x, filter, **attrs).shape
    except InvalidArgumentError:  # the window is larger than the image
        y_shape = ()
    return x, filter, laid_out(draw, rng, y_shape), attrs, is_depthwise


@given(convolutions())
def test_random_convolutions_and_their_gradients(
    case: tuple[Array, Array, Array, dict[str, Any], bool],
) -> None:
    x, filter, dy, attrs, is_depthwise = case
    kind = "DepthwiseConv2dNative" if is_depthwise else "Conv2D" if filter.ndim == 4 else "Conv3D"
    version = "V2" if kind == "Conv3D" else ""
    ops = registered_ops()
    if not dy.ndim:
        with pytest.raises(InvalidArgumentError, match="window"):
            own(ops[kind], x, filter, **attrs)
        return
    check(ops[kind], x, filter, **attrs)
    check(ops[f"{kind}BackpropInput{version}"], x.shape, filter, dy, **attrs)
    check(ops[f"{kind}BackpropFilter{version}"], x, filter.shape, dy, **attrs)


PLAIN = {
    "strides": (1,) * 4,
    "dilations": (1,) * 4,
    "padding": "SAME",
    "data_format": "NHWC",
    "explicit_paddings": (),
}


def test_a_nan_or_infinity_reaches_the_windows_that_have_it_and_no_others() -> None:
    op = registered_ops()["Conv2D"]
    x = np.ones((2, 8, 8, 20), np.float32)
    x[0, 3, 3, 5], x[1, 0, 0, 19] = np.nan, np.inf
    filter = np.ones((3, 3, 20, 33), np.float32)
    result = own(op, x, filter, **PLAIN)
    assert np.array_equal(result, op.kernel(np, x, filter, **PLAIN), equal_nan=True)
    assert np.isnan(result).sum() == 9 * 33
    assert np.isinf(result).sum() == 4 * 33


def test_arguments_that_do_not_fit_raise_what_the_operation_raises() -> None:
    ops = registered_ops()
    x, filter = np.ones((1, 5, 5, 4), np.float32), np.ones((2, 2, 4, 3), np.float32)
    wrong = np.ones((1, 5, 4, 3), np.float32)
    calls = [
        ("Conv2D", (x[..., :3], filter)),
        ("Conv2DBackpropInput", (x.shape, filter, wrong)),
        ("Conv2DBackpropFilter", (x, filter.shape, wrong)),
        ("DepthwiseConv2dNative", (x[..., :3], filter)),
    ]
    for name, arguments in calls:
        for kernel in (
            ops[name].kernel,
            lambda *a, name=name, **k: ONEDNN_KERNELS[ops[name]](ops[name], *a, **k),
        ):
            with pytest.raises(InvalidArgumentError):
                kernel(np, *arguments, **PLAIN)


# --- pooling


@st.composite
def windows(draw: st.DrawFn) -> tuple[Array, dict[str, Any]]:
    spatial = draw(st.sampled_from([2, 3]))
    layout = draw(st.sampled_from(["NHWC", "NCHW"]))  # pooling looks at batch, channels and the rest only
    sizes = [draw(st.integers(1, 8)) for _ in range(spatial)]
    taps = [draw(st.integers(1, min(4, n))) for n in sizes]
    strides = [draw(st.integers(1, 4)) for _ in range(spatial)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = laid_out(draw, rng, join_layout(draw(st.integers(1, 3)), sizes, draw(st.integers(1, 18)), layout))
    ksize, steps = (tuple(join_layout(1, values, 1, layout)) for values in (taps, strides))
    return x, dict(ksize=ksize, strides=steps, padding=draw(st.sampled_from(["SAME", "VALID"])))


@given(windows(), st.integers(0, 2**32))
def test_random_mean_pooling_and_its_gradient(case: tuple[Array, dict[str, Any]], seed: int) -> None:
    x, attrs = case
    dims = "3D" if x.ndim == 5 else ""
    ops = registered_ops()
    check(ops[f"AvgPool{dims}"], x, **attrs)
    y_shape = ops[f"AvgPool{dims}"].kernel(np, x, **attrs).shape
    dy = np.random.default_rng(seed).standard_normal(y_shape).astype(np.float32)
    check(ops[f"AvgPool{dims}Grad"], x.shape, dy, **attrs)


# --- batch normalization


@st.composite
def normalizations(draw: st.DrawFn) -> tuple[Array, list[Array], dict[str, Any]]:
    """Images, of any layout, the scale, offset, mean and variance, and attributes."""
    layout = draw(st.sampled_from(["NHWC", "NHWC", "NCHW"]))
    channels, spatial = draw(st.integers(1, 20)), [draw(st.integers(1, 9)) for _ in range(2)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = laid_out(draw, rng, join_layout(draw(st.integers(1, 5)), spatial, channels, layout))
    vectors = [0.5 + abs(laid_out(draw, rng, (channels,))) for _ in range(4)]
    is_training = draw(st.booleans())
    factor = draw(st.sampled_from([1.0, 0.25])) if is_training else 1.0
    attrs = dict(epsilon=1e-2, data_format=layout, is_training=is_training, exponential_avg_factor=factor)
    return x, vectors, attrs


@given(normalizations(), st.integers(0, 2**32))
def test_random_batch_normalizations_and_their_gradients(
    case: tuple[Array, list[Array], dict[str, Any]], seed: int
) -> None:
    x, vectors, attrs = case
    outputs = check_several(batch_norm_op, x, *vectors, **attrs)
    del attrs["exponential_avg_factor"]
    dy = np.random.default_rng(seed).standard_normal(x.shape).astype(np.float32)
    check_several(batch_norm_grad_op, dy, x, vectors[0], *outputs[3:], **attrs)


def check_several(op: OpDef, *arguments: Array, **attrs: Any) -> Any:
    """The outputs, which are close to those of the operation in float64."""
    expected = op.kernel(np, *[a.astype(np.float64) for a in arguments], **attrs)
    results = own(op, *arguments, **attrs)
    out = tuple([np.full(e.shape, 7, np.float32) for e in expected])
    again = own(op, *arguments, out=out, **attrs)
    for e, result, target, same in zip(expected, results, out, again, strict=True):
        assert same is target
        assert (result.shape, result.dtype) == (e.shape, np.float32)
        np.testing.assert_allclose(result, e, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(target, result)
    assert len({id(result) for result in results}) == len(results)
    return results


def test_gradients_of_images_that_do_not_fit_are_not_computed() -> None:
    x, vector = np.ones((2, 3, 3, 4), np.float32), np.ones(4, np.float32)
    attrs = dict(epsilon=1e-3, data_format="NHWC", is_training=True)
    for dy, scale in ((x[:, :2], vector), (x, vector[:3])):
        with pytest.raises(ValueError, match="broadcast"):
            own(batch_norm_grad_op, dy, x, scale, vector, vector, vector[0], **attrs)


@pytest.mark.parametrize("op", NORMALIZATIONS)
def test_every_sample_of_normalizations(op: OpDef) -> None:
    for sample in op.samples(np.random.default_rng(0)):
        values = [np.asarray(value).astype(np.float32) for value in sample.inputs]
        check_several(op, *values, **attributes(op, sample.attrs))


def test_the_library_normalizes_if_the_channels_are_last(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    make = onednn_kernels.batch_normalization
    monkeypatch.setattr(onednn_kernels, "batch_normalization", lambda *key: (made.append(key), make(*key))[1])
    x, vector = np.ones((2, 4, 4, 4), np.float32), np.ones(4, np.float32)
    for layout in ("NHWC", "NCHW"):
        attrs = attributes(batch_norm_op, {"data_format": layout})
        own(batch_norm_op, x, vector, vector, vector, vector, **attrs)
    assert len(made) == 1


def test_threads_share_large_normalizations_only() -> None:
    """They spin until all are there, for 100 times as long as one thread takes where the machine is busy."""
    host_pool.set_num_threads(2)
    try:
        for shape, n_threads in (((32, 32, 32, 16), 1), ((32, 64, 64, 64), 2)):
            x, vector = np.empty(shape, np.float32), np.ones(shape[-1], np.float32)
            layouts = layout_of(onednn_kernels._images(x, True)), layout_of(vector)
            assert batch_normalization(*layouts, 1e-3, True).n_threads == n_threads
    finally:
        host_pool.set_num_threads(0)


# --- products of matrices


@st.composite
def products(draw: st.DrawFn) -> tuple[str, Array, Array, dict[str, bool]]:
    m, k, n = (draw(st.integers(1, 90)) for _ in range(3))
    batch = draw(st.sampled_from([(), (), (2,), (2, 3), (1, 4)]))
    other = draw(st.sampled_from([batch, (1,) * len(batch), ()]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    flags = draw(st.booleans()), draw(st.booleans())
    a = laid_out(draw, rng, (*batch, *((k, m) if flags[0] else (m, k))))
    b = laid_out(draw, rng, (*other, *((n, k) if flags[1] else (k, n))))
    if not batch and not other and draw(st.booleans()):
        return "MatMul", a, b, dict(transpose_a=flags[0], transpose_b=flags[1])
    return "BatchMatMulV2", a, b, dict(adj_x=flags[0], adj_y=flags[1])


@given(products())
def test_random_products(case: tuple[str, Array, Array, dict[str, bool]]) -> None:
    name, a, b, flags = case
    check(registered_ops()[name], a, b, **flags)


@given(products())
def test_random_products_that_are_packed(case: tuple[str, Array, Array, dict[str, bool]]) -> None:
    """As if they were large: by the library's BLAS, or by the operation where that cannot."""
    name, a, b, flags = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onednn_kernels, "MIN_PRODUCT", 0)
        patch.setattr(onednn_kernels, "MAX_UNPACKED", 0)
        check(registered_ops()[name], a, b, **flags)


def test_large_products_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[tuple[int, ...]] = []
    monkeypatch.setattr(
        onednn_kernels, "multiply", lambda a, b, out: (packed.append(out.shape), multiply(a, b, out))
    )
    side = math.ceil((MAX_UNPACKED + 1) ** (1 / 3))
    a = np.random.default_rng(0).standard_normal((2, side, side)).astype(np.float32)
    own(registered_ops()["MatMul"], a[0], a[1], transpose_a=False, transpose_b=True)
    assert packed == [(side, side)]
    own(registered_ops()["BatchMatMulV2"], a, a[1], adj_x=True, adj_y=False)
    assert packed == [(side, side), (2, side, side)]
    own(registered_ops()["MatMul"], a[0, :-2], a[1], transpose_a=False, transpose_b=False)
    assert len(packed) == 2  # no more than a primitive does


def test_products_that_do_not_fit_raise_what_the_operation_raises() -> None:
    a, b = np.ones((128, 64), np.float32), np.ones((65, 128), np.float32)
    op = registered_ops()["MatMul"]
    with pytest.raises(ValueError, match="mismatch"):
        own(op, a, b, transpose_a=False, transpose_b=False)


def test_large_products_and_convolutions_are_the_librarys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the other tests compare: here the operation's own kernel is not called."""
    done: list[str] = []
    run = primitives.Primitive.__call__
    monkeypatch.setattr(
        primitives.Primitive, "__call__", lambda p, *a: (done.append(p.implementation), run(p, *a))
    )
    ops, rng = registered_ops(), np.random.default_rng(0)
    x, filter = (rng.standard_normal(s).astype(np.float32) for s in ((4, 14, 14, 32), (5, 5, 32, 64)))
    y = own(ops["Conv2D"], x, filter, **PLAIN)
    own(ops["Conv2DBackpropInput"], x.shape, filter, y, **PLAIN)
    own(ops["Conv2DBackpropFilter"], x, filter.shape, y, **PLAIN)
    first = {**PLAIN, "data_format": "NCHW"}
    own(ops["Conv2D"], np.ascontiguousarray(x.transpose(0, 3, 1, 2)), filter, **first)
    side = math.ceil((MIN_PRODUCT + 1) ** (1 / 3))
    own(ops["MatMul"], *np.ones((2, side, side), np.float32), transpose_a=True, transpose_b=False)
    own(ops["AvgPool"], x, ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="VALID")
    assert len(done) == 6
    assert not any("ref" in implementation for implementation in done)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The implementations of the primitives that are made from now on, of shapes that no other test has."""
    found: list[str] = []
    make = primitives.Primitive.__init__

    def record(primitive: Any, *arguments: Any) -> None:
        make(primitive, *arguments)
        found.append(primitive.implementation)

    monkeypatch.setattr(primitives.Primitive, "__init__", record)
    return found


@pytest.mark.parametrize(
    "x_shape, order, filter_shape, data_format",
    [
        pytest.param((1, 41, 8, 32), (0, 3, 1, 2), (3, 39, 8, 8), "NHWC", id="turned images"),
        pytest.param((1, 8, 32, 41), (0, 1, 2, 3), (3, 39, 8, 8), "NCHW", id="few channels"),
        pytest.param((1, 8, 33, 47), (0, 1, 2, 3), (5, 5, 8, 1), "NCHW", id="to one channel"),
        pytest.param((3, 72, 1, 1), (0, 1, 2, 3), (1, 3, 72, 40), "NCHW", id="one pixel"),
    ],
)
def test_convolutions_that_layouts_could_make_slow(
    x_shape: Any, order: Any, filter_shape: Any, data_format: str, made: list[str]
) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(x_shape).astype(np.float32).transpose(order)
    filter = rng.standard_normal(filter_shape).astype(np.float32)
    check(registered_ops()["Conv2D"], x, filter, **{**PLAIN, "data_format": data_format})
    assert made
    assert not [each for each in made if each.startswith(primitives.SLOW)]


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
def test_columns_are_rows(data_format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bias, and a residual of the same shape."""
    shapes: list[Any] = []
    make = onednn_kernels.convolution

    def record(x: Any, filter: Any, y: Any, *rest: Any) -> Any:
        shapes.append((x.shape, y.shape))
        return make(x, filter, y, *rest)

    monkeypatch.setenv("FLOWRT_JIT", "eager")
    monkeypatch.setattr(onednn_kernels, "convolution", record)
    rng = np.random.default_rng(0)
    shape = (2, 37, 1, 12) if data_format == "NHWC" else (2, 12, 37, 1)
    x, filter = (rng.standard_normal(s).astype(np.float32) for s in (shape, (5, 1, 12, 12)))
    results = []
    for dtype in (tf.float32, tf.float64):
        with tf.Graph().as_default(), tf.Session() as session:
            fed = tf.placeholder(dtype, shape)
            kernel = filter.astype(dtype.as_numpy_dtype)
            y = tf.nn.conv2d(fed, kernel, [1] * 4, "SAME", data_format=data_format)
            y = tf.nn.bias_add(y, kernel[0, 0, 0], data_format=data_format) + fed
            results.append(session.run(y, {fed: x}))
    np.testing.assert_allclose(*results, 1e-4, 1e-4)
    assert set(shapes) == {((2, 12, 1, 37), (2, 12, 1, 37))}


def test_a_pixel_with_an_epilogue_is_not_unfolded(made: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The bias of one pixel is a vector: not a whole image with its channels first."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    rng = np.random.default_rng(0)
    x, filter, bias = (rng.standard_normal(s).astype(np.float32) for s in ((1, 1, 1, 88), (1, 1, 88, 56), 56))
    with tf.Graph().as_default(), tf.Session() as session:
        fed = tf.placeholder(tf.float32, [1, 1, 1, 88])
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(fed, filter, 1, "VALID"), bias))
        found = session.run(y, {fed: x})
    np.testing.assert_allclose(found[0, 0, 0], np.maximum(x[0, 0, 0] @ filter[0, 0] + bias, 0), 1e-4, 1e-4)
    assert made
    assert not [each for each in made if each.startswith(primitives.SLOW)]


def test_threads_may_call_at_once() -> None:
    op, rng = registered_ops()["Conv2D"], np.random.default_rng(0)
    filter = rng.standard_normal((3, 3, 16, 16)).astype(np.float32)
    images = [rng.standard_normal((4, 24, 24, 16)).astype(np.float32) for _ in range(4)]
    expected = [own(op, x, filter, **PLAIN) for x in images]
    right: list[bool] = []

    def work(i: int) -> None:
        right.extend([np.array_equal(own(op, images[i], filter, **PLAIN), expected[i]) for _ in range(50)])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * 200
