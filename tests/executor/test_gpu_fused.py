"""Fusion on a real GPU: loops against a second reading of their programs, steps against NumPy."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings

import flowrt as tf
from flowrt.device.cuda.cuda import CudaExecutor
from flowrt.loops.cuda_grid import THREADS
from flowrt.loops.cuda_loops import LOOP, SUMS
from tests.executor.fused_sessions import fused_of, plans_of
from tests.executor.random_programs import RandomProgram, assert_same
from tests.executor.test_cuda_fused import assert_close, batch, convolutions, layer_norm, mlp
from tests.loops.test_cuda_loops import all_functions, check, random, softmax
from tests.loops.test_llvm_loops import programs

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def on_gpu():
    """Launches a loop's kernels on copies of host arrays, and copies what they wrote back."""
    with closing(CudaExecutor(0, "/device:GPU:0")) as executor:
        stream = executor.create_stream()

        def launch(loop, operands, sums):
            kernels = executor.compile_kernels(loop.text, [LOOP, SUMS] if sums else [LOOP])
            with executor.activate(stream):
                copies = {id(array): executor.xp.array(array) for array in (*operands, *sums)}
                kernels[0]((loop.blocks,), (loop.threads,), tuple([copies[id(a)] for a in operands]))
                if sums:
                    kernels[1]((loop.sum_blocks,), (THREADS,), tuple([copies[id(a)] for a in sums]))
                for array in (*operands, *sums):
                    array[...] = copies[id(array)].get()

        yield launch


@settings(max_examples=40)
@given(made=programs())
def test_random_programs(on_gpu, made):
    check(*made, ulps=0, launch=on_gpu)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_functions(on_gpu, dtype):
    check(*all_functions(dtype), ulps=16, launch=on_gpu)


@pytest.mark.parametrize("shape", [(1, 1), (300, 10), (7, 64), (3, 5000), (100_000, 64), (2, 1 << 20)])
def test_softmax_and_sums_of_it(on_gpu, shape):
    check(softmax("float32"), [random(*shape) * 10, None, None, None], ulps=256, launch=on_gpu)


def run_steps(monkeypatch, mode, device, build, feeds, steps):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    with tf.Graph().as_default(), tf.device(device):
        fetches, feed = build()
        named = {feed[key]: value for key, value in feeds.items()}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            results = [session.run(fetches, named) for _ in range(steps)]
            captured = [p.launch is not None for plan in plans_of(session) for p in plan.programs]
            return results, fused_of(session), captured


IMAGES = {"x": random(4, 8, 8, 1), "y": np.array([0, 2, 1, 1])}


@pytest.mark.parametrize(
    "build, feeds",
    [(mlp, batch()), (layer_norm, {"x": random(4, 6, 30)}), (convolutions, IMAGES)],
    ids=["mlp", "layer norm", "lenet"],
)
def test_steps_give_what_numpy_gives(monkeypatch, build, feeds):
    expected, _, _ = run_steps(monkeypatch, "off", "/cpu:0", build, feeds, 5)
    found, groups, captured = run_steps(monkeypatch, "eager", "/gpu:0", build, feeds, 5)
    again, _, _ = run_steps(monkeypatch, "eager", "/gpu:0", build, feeds, 5)
    for one, other, third in zip(found, expected, again, strict=True):
        assert_close(one, other, rtol=1e-3)
        assert all(a is b is None or np.array_equal(a, b) for a, b in zip(one, third, strict=True))
    assert groups
    assert any(captured)


def test_random_sessions(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    for seed in range(10):
        program = RandomProgram(seed, kind="gpu")
        with tf.Session(graph=program.graph) as session:
            assert_same(program.run(session), program.expected())
