"""Updates by gradients that are in registers, received from another device or new in every step, are the
same compiled loops as those by gradients in buffers: copies of a variable stay equal to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels.update_kernel import update_of
from flowrt.executor.program.arguments import LateArray
from flowrt.executor.program.updates import Updates
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.resources.variables import VariableResource
from tests.distribute.strategies.cpus import initialized, mirrored, numbered
from tests.executor.fused_sessions import execute, plans_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

RNG = np.random.default_rng(4)
SHAPES = [(4, 3), (3,), (3, 6000), ()]
"""One gradient is larger than what devices exchange through buffers."""
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: tf.train.AdamOptimizer(0.01),
    "momentum": lambda: tf.train.MomentumOptimizer(0.01, 0.9),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "eager")


def updates_of(session: tf.Session) -> list[tuple[list[int], list[str]]]:
    """For each program of a session's last plan: how many updates each of its calls makes, and the updates
    that no loop does.
    """
    found = []
    for program in plans_of(session)[-1].programs:
        calls = [a for segment in program.segments for _, a in segment.instructions if isinstance(a, Updates)]
        joined = [[update.node for update in call._updates] for call in calls]
        nodes = [line.node for line in program.lines]
        wanted = {n.name for n in nodes if n.op.effect is Effect.WRITE and n.op.loop is not None}
        alone = wanted - {node.name for call in joined for node in call}
        found.append(([len(call) for call in joined], sorted(alone)))
    return found


def loss_of(dtype: Any) -> Callable[[Any], Any]:
    """Of rows, by new variables of `SHAPES`."""
    w, b, wide, scale = (tf.Variable(RNG.standard_normal(shape).astype(dtype) / 2) for shape in SHAPES)
    return lambda x: tf.reduce_mean(tf.tanh(tf.tanh(x @ w + b) @ wide) * scale)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_mirrored_copies_are_equal_to_the_last_bit(name: str, count: int, dtype: Any) -> None:
    strategy = mirrored(count)
    with strategy.scope():
        loss = loss_of(dtype)
        optimizer = OPTIMIZERS[name]()
    rows = numbered(strategy, RNG.standard_normal((count, 5, 4)).astype(dtype))
    step = strategy.group(strategy.run(lambda x: optimizer.minimize(loss(x)), args=(rows,)))
    with initialized() as session:
        for _ in range(20):
            session.run(step)
        programs = updates_of(session)
        copies = [session.run(list(v.copies)) for v in tf.global_variables()]
    assert len(programs) == count
    for calls, alone in programs:
        assert sum(calls) >= len(SHAPES)
        assert not alone
    for first, *others in copies:
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_received_gradients_update_as_the_plain_kernels_do(monkeypatch, dtype: Any) -> None:
    gradients = [RNG.standard_normal(shape).astype(dtype) for shape in SHAPES]
    initial = [1 + RNG.random(shape).astype(dtype) for shape in SHAPES]  # none comes near 0

    def trained(mode: str) -> Any:
        monkeypatch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default():
            with tf.device("/cpu:1"):
                received = [tf.Variable(gradient, trainable=False) * 2.0 for gradient in gradients]
            with tf.device("/cpu:0"):
                variables = [tf.Variable(value) for value in initial]
                arrived = [tf.identity(gradient) for gradient in received]
                with tf.control_dependencies(arrived):  # so that nothing stands between the updates
                    pairs = list(zip(received, variables, strict=True))
                    step = tf.train.AdamOptimizer(0.01).apply_gradients(pairs)
            with initialized() as session:
                for _ in range(5):
                    session.run(step)
                programs = updates_of(session)
                return session.run(variables), programs

    (plain, _), (compiled, programs) = trained("off"), trained("eager")
    assert not any(alone for _, alone in programs)
    assert max(size for calls, _ in programs for size in calls) >= len(SHAPES)
    for found, expected in zip(compiled, plain, strict=True):
        np.testing.assert_array_max_ulp(found, expected, 4)


def misaligned(array: np.ndarray) -> np.ndarray:
    memory = np.empty(array.nbytes + 1, np.uint8)[1:]
    found = np.ndarray(array.shape, array.dtype, buffer=memory)
    found[...] = array
    return found


LIES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "in Fortran order": np.asfortranarray,
    "backwards": lambda array: array[::-1].copy()[::-1],
    "one value": lambda array: np.broadcast_to(array[:1, :1], array.shape),
    "unaligned": misaligned,
}


@pytest.mark.parametrize("lies", LIES)
def test_a_gradient_may_lie_in_any_way(lies: str) -> None:
    array = RNG.standard_normal((40, 500))  # read where it is: more than 64 KiB
    fed = LIES[lies](array)
    gradient = tf.placeholder(tf.float64, array.shape)
    v = tf.Variable(np.zeros(array.shape))
    step = v.assign_sub(gradient, read_value=False)
    with initialized() as session:
        session.run(step, {gradient: fed})
        assert updates_of(session) == [([1], [])]
        assert np.array_equal(session.run(v), -fed)


def test_a_gradient_of_another_shape_than_was_known_changes_nothing() -> None:
    variables = [VariableResource(f"v{i}", tf.float64, (3,)) for i in range(2)]
    registers, updates = [np.ones(3), np.ones(5)], []
    for slot, variable in enumerate(variables):
        variable.array, variable.is_initialized = np.zeros(3), True
        node = Node(f"add{slot}", op_def("AssignAddVariableOp"), (), (), {}, "", None, ())
        update = update_of(node, [variable, LateArray(slot, np.empty(3))], registers)
        assert update is not None
        updates.append(update)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[3\].*\[5\]") as caught:
        execute(Updates(updates))
    assert caught.value.op == "add1"
    assert [variable.array.tolist() for variable in variables] == [[0.0] * 3] * 2


def test_a_variable_of_any_shape_is_written_where_it_is() -> None:
    """Its memory is new with each value: a loop would go on writing that of the first one."""
    count = tf.Variable(0, validate_shape=False, trainable=False)
    step = count.assign(count + 1, read_value=False)
    with initialized() as session:
        for expected in range(1, 4):
            session.run(step)
            session.run(count)  # keeps the array, so that the next one is elsewhere
            assert session.run(count) == expected
