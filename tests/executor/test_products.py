"""How products of matrices, convolutions and large sums are called: in place, without copies, as one call."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.graph.op_def import registered_ops
from tests.executor.test_program import bind, lines

INTO_BUFFERS = [
    "MatMul", "BatchMatMulV2", "Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter", "Conv3D",
    "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2", "DepthwiseConv2dNative", "MaxPool", "MaxPoolGrad",
    "AvgPool", "AvgPoolGrad",
]  # fmt: skip


@pytest.mark.parametrize("name", INTO_BUFFERS)
def test_it_writes_into_memory_of_the_plan(name):
    assert registered_ops()[name].takes_out


def test_a_transpose_in_front_of_a_product_is_no_instruction():
    a, b = tf.placeholder(tf.float32, [4, 3]), tf.placeholder(tf.float32, [5, 4])
    program = bind([tf.matmul(tf.transpose(a), tf.transpose(b)), tf.matmul(a, b, True, True)], [a, b])
    assert [line.partition(" = ")[2] for line in lines(program)] == [
        "MatMul(Transpose(b0), Transpose(b1))",
        "MatMul(b0, b1, transpose_a, transpose_b)",
    ]


def test_heads_are_moved_in_front_of_a_batched_product_without_a_copy():
    q, k = tf.placeholder(tf.float32, [2, 8, 4, 3]), tf.placeholder(tf.float32, [2, 8, 4, 3])
    heads = [tf.transpose(x, [0, 2, 1, 3]) for x in (q, k)]
    program = bind([tf.matmul(*heads, transpose_b=True)], [q, k])
    (line,) = lines(program)
    assert line.startswith("b2 = BatchMatMulV2(Transpose(b0), Transpose(b1), adj_y)")


@pytest.mark.parametrize("jit", ["off", "eager"])
def test_a_batch_of_products_is_one_call_however_many_there_are(monkeypatch, jit):
    monkeypatch.setenv("FLOWRT_JIT", jit)

    def functions_entered(count: int) -> list[str]:
        a, b = tf.placeholder(tf.float32, [count, 8, 6]), tf.placeholder(tf.float32, [count, 6, 7])
        x, y = np.ones((count, 8, 6), np.float32), np.ones((count, 6, 7), np.float32)
        with tf.Session() as session:
            call = session.make_callable(tf.matmul(a, b), [a, b])
            np.testing.assert_array_equal(call(x, y), np.matmul(x, y))
            entered: list[str] = []
            gc.disable()  # it calls what garbage has to be told
            sys.setprofile(lambda frame, event, _: entered.append(f"{event} {frame.f_code.co_name}"))
            try:
                call(x, y)
            finally:
                sys.setprofile(None)
                gc.enable()
        return entered

    assert functions_entered(2) == functions_entered(12)


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int32])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_a_large_sum_is_one_loop_that_threads_share(monkeypatch, dtype, axis):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    value = np.random.default_rng(0).integers(-9, 9, (512, 1024)).astype(dtype.as_numpy_dtype)
    x = tf.placeholder(dtype, value.shape)
    total = tf.reduce_sum(x, axis)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(total, {x: value}), value.sum(axis, dtype=value.dtype))
        (request,) = session._requests.values()
        (subgraph,) = request.plans[request.shapes].subgraphs
    assert any("group" in node.attrs for node in subgraph)
