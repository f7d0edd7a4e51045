"""The host's own kernels in a session: chosen when a program is bound, and the same step without them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.device.onednn import onednn
from flowrt.executor.kernels import host_kernels
from flowrt.executor.kernels.device_backends import HostBackend
from flowrt.executor.kernels.host_kernels import LOOP_KERNELS, PRODUCTS, host_kernel
from flowrt.executor.kernels.onednn_kernels import MIN_PRODUCT, ONEDNN_KERNELS
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import registered_ops
from flowrt.graph.ops.nn.pooling import max_pool_op
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.shapes import Shape


def network(data_format: str) -> Any:
    """(what to fetch, feeds) of one training step: convolution, both poolings, a product."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    is_last = data_format == "NHWC"
    x = tf.placeholder(tf.float32, [4, 20, 20, 3] if is_last else [4, 3, 20, 20])
    spatial = [1, 2, 2, 1] if is_last else [1, 1, 2, 2]
    h = tf.nn.conv2d(x, tf.constant(normal(3, 3, 3, 24)), [1, 1, 1, 1], "SAME", data_format=data_format)
    h = tf.nn.max_pool(tf.nn.relu(h), spatial, spatial, "VALID", data_format=data_format)
    h = tf.nn.conv2d(h, tf.constant(normal(3, 3, 24, 32)), spatial, "SAME", data_format=data_format)
    h = tf.nn.avg_pool(h, spatial, [1, 1, 1, 1], "SAME", data_format=data_format)
    h = tf.matmul(tf.reshape(h, [4, 800]), tf.constant(normal(800, 128)))
    loss = tf.reduce_sum(tf.square(h))
    fed = normal(4, 20, 20, 3) if is_last else normal(4, 3, 20, 20)
    return [loss, h, *tf.gradients(loss, [x, h])], {x: fed}


def run(fetches: Any, feeds: Any) -> list[Any]:
    with tf.Session() as session:
        return [session.run(fetches, feeds) for _ in range(2)][-1]


@pytest.mark.parametrize("data_format", ["NHWC", "NCHW"])
@pytest.mark.parametrize("jit", ["off", "eager"])
def test_a_step_gives_the_same_with_them_and_without(
    data_format: str, jit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", jit)
    fetches, feeds = network(data_format)
    chosen: list[str] = []

    def noted(node: Node, specs: Sequence[TensorSpec], has_loops: bool) -> Any:
        kernel = host_kernel(node, specs, has_loops)
        chosen.extend([node.op.name] if kernel is not None else [])
        return kernel

    monkeypatch.setattr(HostBackend, "kernel", staticmethod(noted))
    with_them = run(fetches, feeds)
    monkeypatch.setattr(HostBackend, "kernel", lambda *_: None)
    for found, expected in zip(with_them, run(fetches, feeds), strict=True):
        assert np.allclose(found, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())
    has_loops = jit == "eager" and host_jit.is_available()
    if onednn.is_available():
        assert {"Conv2D", "Conv2DBackpropInput", "AvgPool", "AvgPoolGrad", "MatMul"} <= set(chosen)
    else:
        assert ("Conv2D" in chosen) == has_loops
    assert ("MaxPool" in chosen) == has_loops


def node_of(name: str, shape: Shape = (None, None)) -> Node:
    outputs = (TensorSpec(tf.float32, shape),)
    return Node(name, registered_ops()[name], (), (), {}, "", None, outputs)


def chosen(subgraph: Subgraph, tensor: tf.Tensor, has_loops: bool) -> Any:
    node = subgraph.nodes[tensor.op.name]
    return host_kernel(node, [subgraph.spec(ref) for ref in node.inputs], has_loops)


@pytest.mark.parametrize("name", sorted(op.name for op in {*ONEDNN_KERNELS, *LOOP_KERNELS}))
def test_without_their_library_operations_have_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    assert host_kernel(node_of(name), (), has_loops=False) is None
    own = host_kernel(node_of(name), (), has_loops=True)
    assert (own is not None) == (registered_ops()[name] in LOOP_KERNELS)


@pytest.mark.parametrize("name", sorted(op.name for op in PRODUCTS))
def test_small_products_are_blass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onednn, "is_available", lambda: True)
    depth = MIN_PRODUCT // (64 * 64)
    for k, is_own in ((depth, False), (depth + 1, True), (None, True)):  # which may turn out to be large
        specs = [TensorSpec(tf.float32, shape) for shape in ((64, k), (k, 64))]
        assert (host_kernel(node_of(name, (64, 64)), specs, has_loops=True) is not None) == is_own
    assert host_kernel(node_of(name), specs, has_loops=True) is not None


def test_a_product_of_unknown_depth_may_turn_out_to_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenBLAS's threads, which spin for 25 ms after it, would cost all else the cores."""
    monkeypatch.setattr(onednn, "is_available", lambda: True)
    a, b = tf.placeholder(tf.float32, [None, 64]), tf.placeholder(tf.float32, [None, 64])
    c = tf.matmul(a, b, transpose_a=True)
    subgraph = extract(tf.get_default_graph(), [c], [], {x: x.spec.shape for x in (a, b)}, ())
    assert chosen(subgraph, c, has_loops=False) is not None


def test_a_kernel_of_static_shapes_has_run_once_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its loops are compiled before the step."""
    seen: list[Any] = []
    monkeypatch.setattr(onednn, "is_available", lambda: False)
    monkeypatch.setattr(
        host_kernels, "LOOP_KERNELS", {max_pool_op: lambda op, xp, x, **attrs: seen.append(x.shape)}
    )
    x = tf.placeholder(tf.float32, [2, 6, 6, 3])
    y = tf.nn.max_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
    subgraph = extract(tf.get_default_graph(), [y], [], {x: x.spec.shape}, ())
    assert chosen(subgraph, y, has_loops=True) is not None
    assert seen == [(2, 6, 6, 3)]


def test_a_program_of_other_operations_does_not_ask_for_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask() -> bool:
        raise AssertionError("asked")

    monkeypatch.setattr(onednn, "is_available", ask)
    small = tf.placeholder(tf.float32, [8, 8])
    assert tf.Session().run(tf.reduce_sum(tf.matmul(small, small)), {small: np.eye(8)}) == 8
