"""Programs: what is bound, where values go, and the text that shows it."""

from __future__ import annotations

import re

import numpy as np

import flowrt as tf
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.executor.analysis.streams import one_stream
from flowrt.executor.bind.bind import Binder, compile_partition
from flowrt.executor.bind.bind_transfer import new_ends
from flowrt.executor.plan.plan import raise_error
from flowrt.executor.program.program import MAX_BLOCK_LENGTH
from flowrt.graph.passes.pipeline import CompileOptions, compile_step
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.rendezvous import InlineRendezvous


def bind(fetches, feeds=()):
    """The program of one run of the default graph on one device, not optimised."""
    (device,) = local_devices(DeviceRequest({"GPU": 0}))
    rendezvous, resources = InlineRendezvous(), {}

    def resource(node):
        if node.name not in resources:
            resources[node.name] = node.op.state(node)
            resources[node.name].pin(device.empty)
        return resources[node.name]

    shapes = {t: tuple(t.shape.as_list()) for t in feeds}
    graph = tf.get_default_graph()
    options = CompileOptions([device.spec], soft_placement=False, optimises=False)
    placed = compile_step(StepRequest(graph, fetches, [], shapes), options)
    partition = compile_partition(placed, one_stream(placed), device, resource)
    (program,) = Binder(partition, resource, new_ends(rendezvous.send, rendezvous.take, raise_error)).bind()
    return program


def lines(program):
    """``result = Op(operands)`` of each line."""
    _, *rest = str(program).splitlines()
    return [re.sub(r" +", " ", re.split(r" {2,}(?:float32|int32)|#", line)[0]).strip() for line in rest]


def test_the_text_has_operations_places_shapes_and_the_users_lines():
    x = tf.placeholder(tf.float32, [2, 3])
    y = tf.exp(tf.transpose(x)[:, 0] * 2.0, name="out")
    program = bind([tf.reduce_sum(y)], [x])
    assert lines(program) == ["b1 = Mul(StridedSlice(Transpose(b0)), 2.0)", "b1 = Exp(b1)", "b0 = Sum(b1, 0)"]
    assert "float32[3]" in str(program)
    assert "# out  " in str(program)
    assert str(program).count("test_program.py:") == 3


def test_a_chain_of_elementwise_operations_stays_in_one_buffer():
    x = tf.placeholder(tf.float32, [8])
    y = x + 1.0
    for _ in range(20):
        y = tf.square(tf.sin(y) - 0.5)
    program = bind([tf.reduce_sum(y)], [x])
    assert set(re.findall(r"\bb\d+\b", str(program))) == {"b0", "b1"}  # b1 is the sum


def test_a_buffer_is_not_used_again_while_it_has_readers():
    x = tf.placeholder(tf.float32, [8])
    kept = x + 1.0
    other = tf.square(kept)
    program = bind([tf.reduce_sum(other * kept)], [x])
    assert lines(program) == ["b0 = AddV2(b0, 1.0)", "b1 = Square(b0)", "b1 = Mul(b1, b0)", "b0 = Sum(b1, 0)"]


def test_an_operation_does_not_write_over_an_input_that_another_input_is_a_view_of():
    x = tf.placeholder(tf.float32, [3, 3])
    y = tf.exp(x)
    program = bind([tf.reduce_sum(y + tf.transpose(y))], [x])
    assert lines(program)[1] == "b1 = AddV2(b0, Transpose(b0))"


def test_a_variable_is_read_in_place_unless_it_is_written_before_the_last_reader():
    v = tf.Variable([1.0, 2.0], name="v")
    read = v.read_value()
    update = v.assign_add([1.0, 1.0], read_value=False)
    with tf.control_dependencies([update]):
        late = read * 3.0
    assert "b0 = ReadVariableOp(%v)" in lines(bind([late * 2.0]))


def test_long_programs_pause_so_that_they_can_be_ended():
    x = tf.placeholder(tf.float32, [2])
    y = x
    for _ in range(2 * MAX_BLOCK_LENGTH + 10):
        y = y + 1.0
    program = bind([y], [x])
    assert [len(s.instructions) for s in program.segments] == [MAX_BLOCK_LENGTH, MAX_BLOCK_LENGTH, 10]
    large = tf.placeholder(tf.float32, [1000, 1000])
    product = tf.matmul(tf.matmul(large, large), large)
    assert len(bind([product], [large]).segments) > 1


def test_a_relu_that_is_trained_is_computed_in_place():
    x, w = tf.placeholder(tf.float32, [4, 5]), tf.placeholder(tf.float32, [5, 6])
    y = tf.nn.relu(tf.matmul(x, w))
    program = bind(tf.gradients(y * y, w), [x, w])
    (line,) = [line for line in lines(program) if "Relu(" in line]
    assert re.fullmatch(r"(b\d+) = Relu\(\1\)", line)


def test_large_values_are_let_go_after_their_last_reader():
    x = tf.placeholder(tf.float32, [100_000])
    shortened = tf.boolean_mask(x, x > 0)
    program = bind([tf.reduce_sum(shortened * 2.0), -shortened[:1]], [x])
    program.feeds[0].put(np.ones(100_000, np.float32))
    program.run_straight()
    assert program.fetches[0]() == 200_000
    floats = [r for r in program.registers if getattr(r, "dtype", None) == np.float32]
    assert all(r.size == 1 for r in floats)
    assert program.fetches[1]() == [-1]
    program.reset()
    assert program.fetches[1]() is None
