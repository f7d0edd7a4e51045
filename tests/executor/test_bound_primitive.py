"""Convolutions and products of oneDNN's bound to a program's memory, without calls of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.device.llvm import host_pool
from flowrt.device.llvm.call_sequence import BoundCall, ParallelCall
from flowrt.device.onednn import onednn, primitive_call, primitives
from flowrt.device.onednn.primitives import Execution
from flowrt.device.workspace import Workspace
from flowrt.errors import InternalError, ResourceExhaustedError
from flowrt.executor.kernels import bound_primitive as module
from flowrt.executor.kernels.bound_primitive import bound_primitive
from flowrt.executor.kernels.copy_kernels import copy_call
from flowrt.executor.program import primitive_action
from flowrt.executor.program.arguments import later_of
from flowrt.executor.program.instruction import Instruction, python_calls
from flowrt.executor.program.primitive_action import BoundPrimitive
from flowrt.graph.node import Node, TensorSpec
from flowrt.graph.op_def import registered_ops
from flowrt.graph.passes.fusion.accumulated_products import matmul_add_op

pytestmark = pytest.mark.skipif(not onednn.is_available(), reason=str(onednn.why_unavailable()))

Array = np.ndarray[Any, Any]


def floats(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node_of(op: Any, attrs: dict[str, Any], out: Array, name: str = "product") -> Node:
    return Node(name, op, (), (), attrs, "", None, (TensorSpec(dtypes.float32, out.shape),))


def bind(
    op: Any,
    arguments: list[Any],
    out: Array,
    registers: list[Any],
    attrs: dict[str, Any] | None = None,
    constants: Sequence[int] = (),
) -> BoundPrimitive | None:
    """``arguments``: arrays, or numbers of registers, which have arrays. ``constants`` never change."""
    arrays = [registers[a] if isinstance(a, int) else a for a in arguments]
    given = [later_of(a) if isinstance(a, int) else a for a in arguments]
    specs = [TensorSpec(dtypes.as_dtype(array.dtype), array.shape) for array in arrays]
    attrs = attrs or {"transpose_a": False, "transpose_b": False}
    return bound_primitive(node_of(op, attrs, out), given, specs, constants, out, registers)


def matmul() -> Any:
    return registered_ops()["MatMul"]


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize("late", [(), (0,), (1,), (0, 1)])
def test_factors_in_memory_and_in_registers(turned: tuple[bool, bool], late: tuple[int, ...]) -> None:
    registers: list[Any] = [None, None]
    out = np.full((80, 96), np.nan, np.float32)
    attrs = dict(zip(("transpose_a", "transpose_b"), turned, strict=True))
    call = None
    for step in range(3):  # new arrays in the registers, new elements in memory
        a, b = floats(80, 70, seed=step), floats(70, 96, seed=10 + step)
        factors = [x.T.copy() if is_turned else x for x, is_turned in zip((a, b), turned, strict=True)]
        if call is None:
            known = factors
            registers[:] = factors
            arguments = [i if i in late else factors[i] for i in range(2)]
            call = bind(matmul(), arguments, out, registers, attrs)
            assert call is not None
        for i, factor in enumerate(factors):
            if i in late:
                registers[i] = factor
            else:
                known[i][...] = factor
        call.run()
        np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_a_register_with_another_layout_is_the_kernels() -> None:
    a, b = floats(80, 70), floats(70, 96)
    registers: list[Any] = [a]
    out = np.empty((80, 96), np.float32)
    call = bind(matmul(), [0, b], out, registers)
    assert call is not None
    for found in (a, np.asfortranarray(a), a[::-1], a):
        registers[0] = found
        call.run()
        np.testing.assert_allclose(out, found @ b, rtol=1e-4, atol=1e-4)


def test_batches_broadcast() -> None:
    a, b = floats(3, 1, 64, 48), floats(2, 48, 64)
    out = np.empty((3, 2, 64, 64), np.float32)
    call = bind(registered_ops()["BatchMatMulV2"], [a, b], out, [], {"adj_x": False, "adj_y": False})
    assert call is not None
    call.run()
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_a_sum_is_bound_where_it_has_one_place() -> None:
    total, a, b = floats(80, 96, seed=1), floats(80, 70, seed=2), floats(70, 96, seed=3)
    assert bind(matmul_add_op, [total, a, b], np.empty((80, 96), np.float32), []) is None
    assert bind(matmul_add_op, [0, a, b], total, [total]) is None
    call = bind(matmul_add_op, [total, a, b], total, [])
    assert call is not None
    expected = total + a @ b + a @ b
    call.run()
    call.run()
    np.testing.assert_allclose(total, expected, rtol=1e-4, atol=1e-4)


def test_what_takes_more_than_a_primitive_is_not_bound() -> None:
    a, b, out = floats(80, 70), floats(70, 96), np.zeros((80, 96), np.float32)
    wide = [array.astype(np.float64) for array in (a, b, out)]
    assert bind(matmul(), wide[:2], wide[2], []) is None
    assert bind(matmul(), [a[:2, :4].copy(), b[:4].copy()], np.empty((2, 96), np.float32), []) is None
    assert bind(registered_ops()["Sub"], [a, a], a.copy(), [], {}) is None
    side = 820
    large = floats(side, side)
    assert bind(matmul(), [large, large], np.empty_like(large), []) is None  # packed


CONV = dict(
    strides=(1, 1, 1, 1), use_cudnn_on_gpu=True, padding="SAME", explicit_paddings=(), data_format="NHWC",
    dilations=(1, 1, 1, 1),
)  # fmt: skip


KERNEL = {key: value for key, value in CONV.items() if key != "use_cudnn_on_gpu"}


@pytest.mark.parametrize("late", [(), (0,), (1,)])
@pytest.mark.parametrize("constants", [(), (1,)])
def test_images_and_filters_in_memory_and_in_registers(
    late: tuple[int, ...], constants: tuple[int, ...]
) -> None:
    conv = registered_ops()["Conv2D"]
    registers: list[Any] = [None, None]
    out = np.full((2, 9, 8, 24), np.nan, np.float32)
    x, f = floats(2, 9, 8, 16), floats(3, 3, 16, 24, seed=1)
    registers[:] = x, f
    arguments = [i if i in late else (x, f)[i] for i in range(2)]
    call = bind(conv, arguments, out, registers, CONV, constants)
    assert call is not None
    for step in range(3):
        if 0 in late:
            registers[0] = floats(2, 9, 8, 16, seed=step)
        if not constants:
            f[...] = floats(3, 3, 16, 24, seed=10 + step)
        call.run()
        expected = conv.kernel(np, registers[0] if 0 in late else x, f, **KERNEL)
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    assert call._execution is not None
    is_copied_once = bool(constants) and 1 not in late
    assert len(call._execution.steps) == (1 if is_copied_once else 2)


@pytest.mark.parametrize("channels", [1, 3, 16])
def test_an_image_in_a_register_may_be_turned(channels: int) -> None:
    conv = registered_ops()["Conv2D"]
    x, f = floats(2, channels, 9, 8).transpose(0, 2, 3, 1), floats(3, 3, channels, 24, seed=1)
    out = np.full((2, 9, 8, 24), np.nan, np.float32)
    call = bind(conv, [0, f], out, [x], CONV)
    assert call is not None
    call.run()
    np.testing.assert_allclose(out, conv.kernel(np, x, f, **KERNEL), rtol=1e-4, atol=1e-4)


def test_a_constant_filter_is_that_of_each_part() -> None:
    """Convolutions in a row, with biases, of a feed, of constants and of a variable."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [2, 9, 8, 16])
        filters = [floats(3, 3, 16, 16, seed=i) * np.float32(0.1) for i in range(3)]
        w = tf.Variable(filters[2])
        y = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, filters[0], strides=1, padding="SAME"), floats(16)))
        y = tf.nn.conv2d(tf.nn.conv2d(y, filters[1], strides=1, padding="SAME"), w, strides=1, padding="SAME")
        session.run(tf.global_variables_initializer())
        value = floats(2, 9, 8, 16, seed=9)

        def expected() -> Array:
            found = value
            for i, each in enumerate([*filters[:2], session.run(w)]):
                found = registered_ops()["Conv2D"].kernel(np, found, each, **KERNEL)
                found = np.maximum(found + floats(16), 0) if i == 0 else found
            return found

        for step in range(8):
            np.testing.assert_allclose(session.run(y, {x: value}), expected(), rtol=1e-3, atol=1e-4)
            w.load(filters[step % 3], session)


def test_another_number_of_threads_finds_another_primitive() -> None:
    side = 256  # enough work to share
    a, b, out = floats(side, side), floats(side, side), np.empty((side, side), np.float32)
    call = bind(matmul(), [a, b], out, [])
    assert call is not None
    try:
        for count in (1, 2, 1):
            host_pool.set_num_threads(count)
            out.fill(np.nan)
            call.run()
            assert call._primitive is not None
            assert call._primitive.n_threads == count
            np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-3)
    finally:
        host_pool.set_num_threads(0)


@contextmanager
def threads(count: int) -> Iterator[None]:
    host_pool.set_num_threads(count)
    try:
        yield
    finally:
        host_pool.set_num_threads(0)


def two_products() -> tuple[list[BoundPrimitive], Array, Array]:
    """``out = (a @ b) @ b`` as two actions, and what is expected."""
    a, b, between, out = floats(96, 80), floats(80, 80), *[np.empty((96, 80), np.float32) for _ in range(2)]
    products = [bind(matmul(), [x, b], y, []) for x, y in ((a, between), (between, out))]
    return [product for product in products if product is not None], out, a @ b @ b


def printed(*actions: Any) -> list[BoundCall]:
    """What the ``actions`` of a program, of operations named by number, are printed as."""
    out = np.empty((1, 1), np.float32)
    nodes = [node_of(matmul(), {}, out, f"op{i}") for i in range(len(actions))]
    return [call for call, _ in python_calls(list(map(Instruction, nodes, actions)))]


def test_where_no_threads_share_them_products_are_one_piece_of_machine_code_with_loops() -> None:
    products, out, expected = two_products()
    copied = np.empty_like(out)
    with threads(1):
        ((run, arguments),) = printed(*products, ParallelCall(copy_call(copied, out), 1))
        for _ in range(2):
            out[:] = copied[:] = np.nan
            run(*arguments)
            np.testing.assert_allclose(copied, expected, rtol=1e-4, atol=1e-3)
    with threads(2):
        assert printed(*products) == [product.bound() for product in products]


def test_each_thread_runs_machine_code_in_a_workspace_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    products, out, expected = two_products()
    placed: list[int] = []
    place = Execution.place_workspace
    monkeypatch.setattr(Execution, "place_workspace", lambda e, at: (placed.append(at), place(e, at)))
    with threads(1), ThreadPoolExecutor(1) as pool:
        ((run, arguments),) = printed(*products)
        for _ in range(2):
            pool.submit(run, *arguments).result()
        run(*arguments)
    assert [placed.count(at) for at in dict.fromkeys(placed)] == [2, 2]
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


def test_a_primitive_that_fails_in_machine_code_is_an_error_of_its_operation() -> None:
    (first, second), _, _ = two_products()
    with threads(1):
        ((run, arguments),) = printed(ParallelCall(copy_call(floats(9), floats(9)), 1), first, second)
        ((run_first, arguments_of_first),) = printed(first, first)
        code = second.machine_code()
        assert code is not None
        primitive, code.call.table.words[1] = int(code.call.table.words[1]), 0  # no primitive
        for _ in range(2):
            with pytest.raises(InternalError, match="execute to succeed; got status 2") as raised:
                run(*arguments)
            assert raised.value.op == "op2"
            run_first(*arguments_of_first)
        code.call.table.words[1] = primitive
        run(*arguments)


def test_what_machine_code_cannot_be_made_of_is_an_error_of_its_operation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(execution: Execution) -> Any:
        raise MemoryError("none")

    products, _, _ = two_products()
    monkeypatch.setattr(primitive_action, "primitive_call", refuse)
    with threads(1), pytest.raises(ResourceExhaustedError, match="out of memory: none") as raised:
        printed(*products)
    assert raised.value.op == "op0"


def test_a_primitive_alone_has_one_copy_of_its_constants() -> None:
    x, f, out = floats(2, 9, 8, 16), floats(3, 3, 16, 24), np.empty((2, 9, 8, 24), np.float32)
    call = bind(registered_ops()["Conv2D"], [x, f], out, [], CONV, (1,))
    assert call is not None
    with threads(1):
        assert printed(call) == [call.bound()]
        assert call._execution is call._call is None  # each would have one
        assert printed() == []


def test_machine_code_without_memory_for_a_workspace_is_a_typed_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    products, out, expected = two_products()

    def refuse(nbytes: int) -> Any:
        raise MemoryError(f"{nbytes} bytes")

    with threads(1):
        ((run, arguments),) = printed(*products)
        with monkeypatch.context() as patch:
            patch.setattr(primitive_call, "WORKSPACE", Workspace(refuse))
            with pytest.raises(ResourceExhaustedError, match=r"out of memory: \d+ bytes") as raised:
                run(*arguments)
        assert raised.value.op in ("op0", "op1")
        run(*arguments)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


def test_a_primitive_that_is_refused_is_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> Any:
        raise onednn.Unsupported("none")

    a, b, out = floats(80, 70), floats(70, 96), np.empty((80, 96), np.float32)
    call = bind(matmul(), [a, b], out, [])
    assert call is not None
    call._find = refuse
    call.run()
    np.testing.assert_allclose(out, a @ b, rtol=1e-4, atol=1e-4)


def test_steps_call_only_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward and backward, with the products of a variable, of a feed in a register, and a sum."""
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    called: list[str] = []
    run = primitives.Primitive.__call__
    monkeypatch.setattr(
        primitives.Primitive, "__call__", lambda p, *a: (called.append(p.implementation), run(p, *a))
    )
    bound: list[Any] = []
    make = module.BoundPrimitive
    monkeypatch.setattr(module, "BoundPrimitive", lambda *a: bound.append(make(*a)) or bound[-1])
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [128, 160])
        start = floats(160, 160) * np.float32(0.1)
        w = tf.Variable(start)
        y = tf.matmul(tf.tanh(tf.matmul(x, w)), w)
        largest = tf.reduce_max(tf.gradients(tf.reduce_sum(tf.square(y)), w)[0], 0)
        session.run(tf.global_variables_initializer())
        for seed in range(3):
            value = floats(128, 160, seed=seed)
            found = session.run(largest, {x: value})
            h = np.tanh(value @ start)
            dy = 2 * (h @ start)
            expected = h.T @ dy + value.T @ (dy @ start.T * (1 - h * h))
            np.testing.assert_allclose(found, expected.max(0), rtol=1e-3, atol=1e-2)
    assert bound
    assert called == []
