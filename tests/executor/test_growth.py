"""What is added to a step that was compiled before is all that is laid out and bound."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.bind import bind, extend_program
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING, compile_beside
from flowrt.graph.evaluate import evaluate, evaluate_node
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import extract
from tests.executor.fused_sessions import plans_of, wait_for_loops
from tests.executor.random_programs import RandomProgram

PROGRAMS, MANY_PROGRAMS = 20, 2000
STEPS = 14


class Laid(list[int]):
    """How many nodes were laid out each time, and how many by growing."""

    num_grown = 0


@pytest.fixture
def laid(monkeypatch: pytest.MonkeyPatch) -> Laid:
    monkeypatch.setenv("FLOWRT_JIT", "off")  # nothing is laid out beside the steps
    found = Laid()
    assign = bind.assign_buffers

    def whole(subgraph: Subgraph, *rest: Any) -> Any:
        found.append(len(subgraph))
        return assign(subgraph, *rest)

    def more(subgraph: Subgraph, *rest: Any) -> Any:
        found.num_grown += 1
        return whole(subgraph, *rest)

    monkeypatch.setattr(bind, "assign_buffers", whole)
    monkeypatch.setattr(extend_program, "assign_buffers", more)
    return found


# --- random programs


class Growing(RandomProgram):
    """A random program whose graph and fetches change from step to step. Little of it is fetched, so that
    most of its memory is used again.
    """

    def __init__(self, seed: int, devices: int = 1, kind: str = "cpu") -> None:
        super().__init__(seed, calls=30, devices=devices, kind=kind)
        self._resources: dict[str, Any] = {}
        few = int(self.rng.integers(1, 4))
        self._asked = [(self.fetches[:few], self.targets)]

    def next_step(self) -> tuple[list[Any], list[Any], dict[Any, Any]]:
        """Fetches, targets and feeds: an earlier step's again, or with a few fetches more and less."""
        fetches, targets = self._choose(self._asked) if self.rng.random() < 0.5 else self._asked[-1]
        if self.rng.random() < 0.8:
            with self.graph.as_default(), self._somewhere():
                calls = self.rng.choice([self.binary, self.unary, self.reshape, self.product, self.view], 2)
                self.tensors += [call() for call in calls]
            fetches = [f for f in fetches if self.rng.random() < 0.85]
            fetches += [self._pick() for _ in range(int(self.rng.integers(3)))]
            self._asked.append((fetches, targets))
        return fetches, targets, self._feed()

    # --- calls

    def gathered(self) -> Any:
        """Four rows of a variable, by a gather or a sparse read."""
        variable, ids = self._rows(4)
        return tf.gather(variable, ids) if self.rng.random() < 0.5 else variable.sparse_read(ids)

    def scattered(self) -> Any:
        variable, ids = self._rows(2)
        rows = tf.constant(self._array((2, *variable.shape.as_list()[1:])))
        update = variable.scatter_add if self.rng.random() < 0.5 else variable.scatter_update
        return update(tf.IndexedSlices(rows, ids))

    def _rows(self, count: int) -> tuple[Any, Any]:
        variable = self._choose(self.variables)
        ids = self.rng.choice(int(variable.shape[0]), count, replace=count > int(variable.shape[0]))
        return variable, tf.constant(ids.astype(np.int32))

    def looped(self) -> Any:
        """Three iterations on a tensor, which read a variable that the last of them may write."""
        variable = self._choose(self.variables)
        shape = tuple(variable.shape.as_list())
        writes = self.rng.random() < 0.5

        def body(i: Any, x: Any) -> Any:
            x = tf.clip_by_value(x + variable, -8.0, 8.0)
            return i + 1, variable.assign(x) if writes else x

        return tf.while_loop(lambda i, x: i < 3, body, [0, self._pick(shape)])[1]

    def view(self) -> Any:
        x = self._pick((4, 4))
        return self._choose((tf.transpose(x), tf.reshape(x, [4, 4]), x[1:4], x[:, 1:]))

    kinds = (*RandomProgram.kinds, *[gathered] * 4, *[scattered] * 2, looped, *[view] * 3)

    # --- the reference

    def evaluate(self, fetches: list[Any], targets: list[Any], feed: dict[Any, Any]) -> list[Any]:
        shapes = {tensor: np.shape(value) for tensor, value in feed.items()}
        subgraph = order_effects(extract(self.graph, fetches, targets, shapes))
        fed = {tensor.op.name: np.asarray(value) for tensor, value in feed.items()}
        return [np.array(value) for value in self._interpret(subgraph, fed)]

    def _interpret(self, subgraph: Subgraph, feeds: dict[str, Any]) -> list[Any]:
        """Like `evaluate`, with loops and branches."""
        values: dict[Ref, Any] = {(name, 0): value for name, value in feeds.items()}
        for node in subgraph:
            if node.name in feeds:
                continue
            inputs = [values[ref] for ref in node.inputs]
            is_owner = node.op.effect is Effect.NESTED
            outputs = self._nested(node, inputs) if is_owner else self._once(node, inputs)
            values |= {(node.name, index): value for index, value in enumerate(outputs)}
        return [values[ref] for ref in subgraph.fetches]

    def _nested(self, node: Node, values: list[Any]) -> list[Any]:
        if node.op.name == "If":
            branch = node.attrs["then_branch" if values[0] else "else_branch"]
            return self._interpret(branch, dict(zip(branch.feeds, values[1:], strict=True)))
        condition, body = node.attrs["cond"], node.attrs["body"]
        while self._interpret(condition, dict(zip(condition.feeds, values, strict=True)))[0]:
            values = self._interpret(body, dict(zip(body.feeds, values, strict=True)))
        return values

    def _once(self, node: Node, inputs: list[Any]) -> list[Any]:
        outputs = evaluate_node(node, inputs, None if node.op.state is None else self._state(node))
        is_live = node.op.effect is Effect.READ  # the variable's own memory, which a later node may change
        return [np.array(value) for value in outputs] if is_live else outputs

    def initialize(self) -> None:
        evaluate(order_effects(extract(self.graph, [], [self.initializer], {})), {}, self._state)

    def _state(self, node: Node) -> Any:
        if node.name not in self._resources:
            assert node.op.state is not None
            self._resources[node.name] = node.op.state(node)
        return self._resources[node.name]


def check_growing(seed: int) -> None:
    """Each step of a random program gives what the reference interpreter gives. Compiled in the background,
    its loops are there from some step on.
    """
    program = Growing(seed)
    program.initialize()
    ready = int(program.rng.integers(STEPS))
    with tf.Session(graph=program.graph) as session:
        session.run(program.initializer)
        for step in range(STEPS):
            fetches, targets, feed = program.next_step()
            expected = program.evaluate(fetches, targets, feed)
            found, _ = session.run((fetches, targets), feed)
            assert len(found) == len(expected)
            for value, right in zip(found, expected, strict=True):
                np.testing.assert_array_equal(value, right, err_msg=f"seed {seed}, step {step}")
                if isinstance(value, np.ndarray):
                    value[...] = -77
            if step == ready:
                wait_for_loops()


def test_random_programs_that_grow_give_what_the_reference_interpreter_gives(laid):
    for seed in range(PROGRAMS):
        check_growing(seed)
    assert laid.num_grown > PROGRAMS


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("mode", ["off", "eager", "background"])
def test_many_random_programs_grow_in_each_mode_of_compiled_loops(monkeypatch, mode):
    monkeypatch.setenv("FLOWRT_JIT", mode)
    for seed in range(MANY_PROGRAMS):
        check_growing(seed)


# --- what is visited


def long_chain(x: Any) -> tuple[Any, list[Any]]:
    lanes = [x * float(i) for i in range(2, 12)]
    for i in range(1000):
        lanes[i % 10] = tf.add(lanes[i % 10], lanes[(7 * i + 1) % 10]) * 0.5
    return tf.add_n(lanes), lanes


def test_an_operation_more_is_all_that_is_laid_out(laid):
    x = tf.placeholder(tf.float32, [4])
    y, _ = long_chain(x)
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        expected = session.run(y, feed)
        assert laid.pop() > 2000
        for _ in range(5):
            y, expected = tf.add(y, 1.0), expected + 1
            np.testing.assert_array_equal(session.run(y, feed), expected)
    assert laid == [3] * 5  # what it reads, the constant, the sum


def test_another_fetch_lays_out_nothing(laid):
    x = tf.placeholder(tf.float32, [4])
    y, lanes = long_chain(x)
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        value = session.run(y, feed)
        lane = session.run([y, lanes[3]], feed)[1]
        again = session.run([lanes[3], lanes[3], y], feed)
    assert laid[1:] == [0, 0]
    np.testing.assert_array_equal(lane, again[0])
    np.testing.assert_array_equal(again[1:], [lane, value])


def test_a_value_that_another_one_replaces_is_laid_out_alone(laid):
    x = tf.placeholder(tf.float32, [4])
    y, _ = long_chain(x)
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        value = session.run(y + 0.0, feed)
        for i in range(1, 5):
            np.testing.assert_array_equal(session.run(y + float(i), feed), value + i)
    assert laid[1:] == [3] * 4


def test_each_instruction_of_the_new_program_was_there_or_is_of_what_is_more(laid):
    x = tf.placeholder(tf.float32, [4])
    y, _ = long_chain(x)
    with tf.Session() as session:
        session.run(y, {x: np.ones(4)})
        before = instructions(session)
        session.run(y * 2.0, {x: np.ones(4)})
        after = instructions(session)
    with tf.Session() as session:
        session.run(y * 2.0, {x: np.ones(4)})
        assert len(instructions(session)) == len(after) == len(before) + 1
    assert all(a is b for a, b in zip(before, after, strict=False))


def instructions(session: Any) -> list[Any]:
    """Of the program that was made last."""
    program = plans_of(session)[-1].programs[0]
    return [instruction for segment in program.segments for instruction in segment.instructions]


# --- what may be gone


def test_a_variable_that_the_step_writes_is_fetched_as_it_was_before(laid):
    variable = tf.Variable(np.float32([1, 2, 3]))
    x = tf.placeholder(tf.float32, [3])
    read = variable.value()
    step = variable.assign(read * x).op
    feed = {x: np.float32([2, 2, 2])}
    with tf.Session() as session:
        session.run(variable.initializer)
        session.run(step, feed)
        before, doubled, _ = session.run([read, read * 2.0 + tf.reshape(read, [3]), step], feed)
        after = session.run(variable)
    np.testing.assert_array_equal(before, [2, 4, 6])
    np.testing.assert_array_equal(doubled, [6, 12, 18])
    np.testing.assert_array_equal(after, [4, 8, 12])


def test_a_large_feed_that_is_read_again_is_still_there(laid):
    x = tf.placeholder(tf.float32, [200, 200])
    y = x
    for _ in range(20):
        y = tf.tanh(y)
    value = np.full((200, 200), 0.5, np.float32)
    with tf.Session() as session:
        total = session.run(tf.reduce_sum(y), {x: value})
        sums = session.run([tf.reduce_sum(y), tf.reduce_sum(x), x], {x: value})
    assert sums[0] == total
    assert sums[1] == 20000
    np.testing.assert_array_equal(sums[2], value)


def test_of_unknown_length_too(laid):
    x = tf.placeholder(tf.float32, [None])
    kept = tf.boolean_mask(x, x > 0)
    y = kept
    for _ in range(20):
        y = y + 1.0
    feed = {x: np.float32([-1, 1, 2])}
    with tf.Session() as session:
        total = tf.reduce_sum(y)
        session.run(total, feed)
        values = session.run([total, kept, tf.exp(kept)], feed)
    np.testing.assert_array_equal(values[1], [1, 2])
    np.testing.assert_allclose(values[2], np.exp([1, 2]), rtol=1e-6)
    assert laid.num_grown == 1


# --- who has the memory


def test_plans_on_one_memory_take_turns(laid):
    x = tf.placeholder(tf.float32, [4])
    y, lanes = long_chain(x)
    with tf.Session() as session:
        fetches = [y, [y, lanes[2]], [y, lanes[2], tf.exp(lanes[7])], y * 3.0]
        feeds = [{x: np.float32([i, 1, 2, 3])} for i in range(5)]
        first = [session.run(f, feeds[0]) for f in fetches]
        rounds = [[session.run(f, feed) for f in fetches] for feed in feeds for _ in range(2)]
        assert laid.num_grown == len(fetches) - 1
        num_laid = len(laid)
        again = [session.run(f, feeds[0]) for f in reversed(fetches)]
    assert len(laid) == num_laid
    for found, expected in zip([*rounds[1], *reversed(again)], [*first, *first], strict=True):
        np.testing.assert_array_equal(np.array(found), np.array(expected))
    for feed, found in zip(feeds, rounds[::2], strict=True):
        with tf.Session() as session:
            for fetch, value in zip(fetches, found, strict=True):
                np.testing.assert_array_equal(np.array(session.run(fetch, feed)), np.array(value))


def test_plans_on_one_memory_run_at_once_on_memory_of_their_own():
    x = tf.placeholder(tf.float32, [4])
    y, lanes = long_chain(x)
    fetches = [[y], [y, lanes[2]], [y * 3.0, y]]
    errors = []

    def run(session: Any, number: int) -> None:
        try:
            feed = {x: np.full(4, number + 1, np.float32)}
            expected = session.run(fetches[number % 3], feed)
            for i in range(60):
                found = session.run(fetches[number % 3], feed)
                np.testing.assert_array_equal(found, expected)
                scale = np.float32(2.0 if i % 2 else 0.5)
                other = session.run(fetches[i % 3], {x: feed[x] * scale})
                np.testing.assert_array_equal(
                    other[-1 if i % 3 == 2 else 0], expected_y * (number + 1) * scale
                )
        except BaseException as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    with tf.Session() as session:
        expected_y = session.run(y, {x: np.ones(4)})
        threads = [threading.Thread(target=run, args=(session, number)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors, errors[0]


def test_a_step_that_fails_takes_no_other_plan_with_it():
    x, i = tf.placeholder(tf.float32, [4]), tf.placeholder(tf.int32, [])
    y, _ = long_chain(x)
    row = tf.gather(y, i)
    feed = {x: np.float32([1, 2, 3, 4]), i: 0}
    with tf.Session() as session:
        value = session.run(y, feed)
        assert session.run([y, row], feed)[1] == value[0]
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run([y, row], {**feed, i: 9})
        np.testing.assert_array_equal(session.run(y, feed), value)
        assert session.run([y, row], feed)[1] == value[0]


def test_an_earlier_plan_that_is_gone_leaves_the_later_one_its_memory():
    x = tf.placeholder(tf.float32, [4])
    y, _ = long_chain(x)
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        value = session.run(y, feed)
        session.run(y + 1.0, feed)
        plans_of(session)[0].let_go()
        np.testing.assert_array_equal(session.run(y, feed), value)
        plans_of(session)[1].let_go()
        np.testing.assert_array_equal(session.run(y, feed), value)


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_a_plan_with_compiled_loops_grows_too(laid, monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    x = tf.placeholder(tf.float32, [4])
    y, lanes = long_chain(x)
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        for _ in range(RUNS_BEFORE_COMPILING + 1):
            value = session.run(y, feed)
        compiled = threading.Event()
        compile_beside(compiled.set, 0)
        assert compiled.wait(60)
        np.testing.assert_allclose(session.run(y, feed), value, rtol=1e-5)
        laid.clear()
        np.testing.assert_allclose(session.run([y, y * 2.0], feed), [value, value * 2], rtol=1e-5)
        assert plans_of(session)[-1].has_loops
        assert laid == [3]
        session.run([y, lanes[4]], feed)  # inside of a group


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_a_tensor_of_a_group_is_found_by_its_own_name(laid, monkeypatch):
    """A group has the name of its last member, and outputs in the order of its members."""
    monkeypatch.setenv("FLOWRT_JIT", "background")
    x = tf.placeholder(tf.float32, [4])
    first = x * 3.0
    last = first - x
    feed = {x: np.float32([1, 2, 3, 4])}
    with tf.Session() as session:
        for _ in range(RUNS_BEFORE_COMPILING):
            session.run([last, first], feed)
        wait_for_loops()
        session.run([last, first], feed)
        laid.num_grown = 0
        np.testing.assert_array_equal(session.run(last, feed), [2, 4, 6, 8])
        np.testing.assert_array_equal(session.run([first, x], feed)[0], [3, 6, 9, 12])
    assert laid.num_grown > 0


# --- what does not grow


def _a_read(x: Any, variable: Any) -> Any:
    return variable.read_value()


def _a_draw(x: Any, variable: Any) -> Any:
    return tf.random.uniform([2])


def _a_loop(x: Any, variable: Any) -> Any:
    return tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0])


def _an_operation(x: Any, variable: Any) -> Any:
    return tf.exp(x)


@pytest.mark.parametrize("more", [_a_read, _a_draw, _a_loop, _an_operation])
def test_only_what_is_pure_is_bound_behind_the_rest(laid, more):
    x = tf.placeholder(tf.float32, [4])
    y, _ = long_chain(x)
    variable = tf.Variable(1.0)
    with tf.Session() as session:
        session.run(variable.initializer)
        session.run(y, {x: np.ones(4)})
        session.run([y, more(x, variable)], {x: np.ones(4)})
    assert (laid.num_grown == 1) == (more is _an_operation)


def test_two_devices_compile_as_before():
    x = tf.placeholder(tf.float32, [4])
    with tf.device("/cpu:0"):
        y = tf.exp(x)
    with tf.device("/cpu:1"):
        z = tf.sqrt(y)
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Session(config=config) as session:
        session.run(z, {x: np.ones(4)})
        values = session.run([z, z + 1.0, y], {x: np.ones(4)})
        assert len(plans_of(session)[-1].partitions) == 2
    np.testing.assert_allclose(values[1], values[0] + 1)


def test_what_is_more_for_another_device_is_compiled_there(laid):
    """With full device names placement leaves the nodes as they are, and the plan may seem to have grown."""
    full = "/job:localhost/replica:0/task:0/device:CPU:"
    with tf.device(full + "0"):
        x = y = tf.placeholder(tf.float32, [4])
        for _ in range(20):
            y = tf.tanh(y) + 1.0
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(y, {x: np.ones(4)})
        with tf.device(full + "1"):
            z = y * 10.0
        first, second = session.run([z, y], {x: np.ones(4)})
        assert sorted(plans_of(session)[-1].partitions) == [full + "0", full + "1"]
    assert laid.num_grown == 0
    np.testing.assert_array_equal(first, second * 10)
