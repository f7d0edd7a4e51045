"""`verify_program` finds each of these faults in what decides the memory of programs, and names the operation
that reads, what it should find and what it would get. Without the checks named beside it, none is found.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InternalError
from flowrt.executor.analysis import streams
from flowrt.executor.bind import bind_control, extend_program
from flowrt.executor.bind.bind_streams import BoundStreams
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.buffers.buffer_assignment import SCRATCH, _Assigner
from flowrt.executor.buffers.lifetimes import Lifetimes
from flowrt.executor.buffers.memory_plan import ArenaPlanner
from flowrt.executor.lists import compiled_body, list_rows
from flowrt.executor.plan import plan
from flowrt.executor.program import instruction, program, updates
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.executor.program.program import segment_of
from flowrt.executor.verify import node_accesses, verify_calls, verify_program
from flowrt.graph.node import Ref
from tests.executor.test_remote_device import config as gpus
from tests.executor.test_remote_device import plug_in

VALUE = np.eye(4, dtype=np.float32)

Patch = pytest.MonkeyPatch


# --- programs


def matrix() -> Any:
    return tf.placeholder(tf.float32, [4, 4], name="x")


def run(fetches: Any, config: Any = None) -> None:
    """Two steps, with the matrix fed."""
    x = tf.get_default_graph().get_tensor_by_name("x:0")
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(2):
            session.run(fetches, {x: VALUE})


def chain() -> None:
    """The first result is read again at the end."""
    x = matrix()
    first = tf.matmul(x, x, name="first")
    second = tf.matmul(first, x, name="second")
    third = tf.matmul(second, x, name="third")
    last = tf.matmul(first, third, name="last")
    run(tf.matmul(last, x, name="end"))


def sum_then_product() -> None:
    x = matrix()
    first = tf.matmul(x, x, name="first")
    second = tf.negative(first, name="second")
    run(tf.matmul(first, second, name="last"))


def transposed() -> None:
    x = matrix()
    turned = tf.transpose(tf.matmul(x, x, name="first"), name="turned")
    second = tf.matmul(x, x + 1.0, name="second")
    with tf.control_dependencies([turned]):
        second = tf.matmul(second, x, name="third")
    run(tf.matmul(turned, second, name="last"))


def read_before_update() -> None:
    x, variable = matrix(), tf.Variable(VALUE, name="v")
    read = variable.read_value()
    with tf.control_dependencies([read]):
        update = variable.assign_add(x, read_value=False, name="update")
    with tf.control_dependencies([update]):
        last = tf.matmul(read, x, name="last")
    run(last)


def fetched_and_more() -> None:
    x = matrix()
    first = tf.matmul(x, x, name="first")
    second = tf.matmul(first, x, name="second")
    run([first, tf.matmul(second, x, name="third")])


def two_devices(**options: Any) -> None:
    x = matrix()
    with tf.device("/cpu:0"):
        first = tf.matmul(x, x, name="first")
    with tf.device("/cpu:1"):
        received = tf.matmul(first, x, name="other")
    with tf.device("/cpu:0"):
        second = tf.matmul(x, x + 1.0, name="second")
        for _ in range(3):
            second = tf.matmul(second, x)
    run([received, second], tf.ConfigProto(device_count={"CPU": 2}, **options))


def two_devices_by_turns() -> None:
    two_devices(inter_op_parallelism_threads=1)


def grown() -> None:
    """A fetch is added that reads what is gone when the first program ends."""
    x = matrix()
    first = tf.matmul(x, x, name="first")
    value = first
    for _ in range(12):
        value = tf.matmul(value, x)
    total = tf.reduce_sum(value, name="total")
    with tf.Session() as session:
        session.run(total, {x: VALUE})
        session.run([total, tf.matmul(first, x, name="added")], {x: VALUE})


def joined_updates() -> None:
    x, (v, w) = matrix(), [tf.Variable(VALUE, name=name) for name in "vw"]
    first = v.assign_add(x, read_value=False, name="first")
    with tf.control_dependencies([first]):
        second = w.assign_add(v.read_value(), read_value=False, name="second")
    run(second)


def machine_code() -> None:
    x = matrix()
    first = tf.matmul(x, x, name="first")
    run(tf.matmul(tf.matmul(first, x, name="second"), first, name="last"))


def wide() -> None:
    """On three threads."""
    x = matrix()
    lanes = [tf.matmul(x, x * float(i), name=f"lane{i}") for i in range(3)]
    for _ in range(2):
        lanes = [tf.matmul(lanes[i], lanes[i - 1]) for i in range(3)]
    run(tf.add_n(lanes), tf.ConfigProto(inter_op_parallelism_threads=3))


def wide_on_gpu() -> None:
    x = matrix()
    with tf.device("/gpu:0"):
        lanes = [tf.tanh(tf.matmul(x, x * float(i), name=f"lane{i}")) for i in range(3)]
        run(tf.matmul(lanes[0], tf.matmul(lanes[1], lanes[2])), gpus(3))


def wide_on_null() -> None:
    x = matrix()
    with tf.device("/device:NULL:0"):
        lanes = [tf.matmul(x, x * float(i), name=f"lane{i}") for i in range(3)]
        last = tf.matmul(lanes[0], tf.matmul(lanes[1], lanes[2]))
    run(last, tf.ConfigProto(inter_op_parallelism_threads=3, device_count={"NULL": 1}))


def lanes_on_gpu() -> None:
    x = matrix()
    with tf.device("/gpu:0"):
        run([tf.matmul(x, x * float(i), name=f"lane{i}") for i in range(3)], gpus(3))


def loops_on_gpu() -> None:
    x = matrix()
    with tf.device("/gpu:0"):
        found = [
            tf.while_loop(lambda i, *_: i < 3, lambda i, h, w: (i + 1, h * w, w), [0, a, b])[1]
            for a, b in [(tf.sin(x), tf.cos(x)), (tf.cos(x), tf.tanh(x))]
        ]
        run([tf.exp(found[0]), found[0] - found[1]], gpus(3))


def loop() -> None:
    """The second result reads the old value of the first variable."""
    x = matrix()

    def body(i: Any, h: Any, k: Any) -> Any:
        new = tf.matmul(k, x, name="new")
        return i + 1, new, tf.matmul(h, new, name="last")

    run(tf.while_loop(lambda i, *_: i < 3, body, [0, x, x])[1:])


def loop_beside_others() -> None:
    x = matrix()
    before = tf.matmul(x, tf.tile(x, [1, 16]), name="before")
    looped = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.matmul(tf.matmul(h, x), h)), [0, x])[1]
    run(tf.matmul(looped, before, name="last"))


def loop_with_an_invariant() -> None:
    x = matrix()
    start = tf.matmul(x, x)
    run(tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.maximum(x, h) + h), [0, start])[1])


def unknown_size() -> None:
    x = matrix()
    masked = tf.boolean_mask(x, x > 0, name="masked")
    first = tf.reduce_sum(masked, name="first")
    with tf.control_dependencies([first]):
        last = tf.reduce_max(masked, name="last")
    run([first, last])


def reordered_loop() -> None:
    """Two variables change places, the third is new."""
    x = matrix()

    def body(i: Any, h: Any, k: Any, _: Any) -> Any:
        return i + 1, tf.identity(k), tf.identity(h), tf.matmul(h, k, name="new")

    start = [0, tf.sin(x, name="one"), tf.cos(x, name="two"), x]
    run(tf.while_loop(lambda i, *_: i < 3, body, start)[1:])


def loop_and_its_reader() -> None:
    x = matrix()
    looped = tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, tf.matmul(h, x)), [0, x])[1]
    with tf.control_dependencies([looped]):
        third = tf.matmul(x, x, name="third")
    run(tf.matmul(looped, third, name="last"))


def run_with_view(build: Callable[[Any, Any], Any]) -> None:
    """``build(first, n)``, a view of the first rows of ``first``, is read when its memory was used again."""
    x, n = matrix(), tf.placeholder(tf.int32, [], name="n")
    view = build(tf.matmul(x, x, name="first"), n)
    other = x
    with tf.control_dependencies([view]):
        for _ in range(6):
            other = tf.matmul(other, x + 1.0)
    with tf.control_dependencies([other]):
        last = tf.add(view, 1.0, name="last")
    with tf.Session() as session:
        session.run(last, {x: VALUE, n: 2})


def view_from_branch() -> None:
    run_with_view(lambda first, n: tf.cond(n > 1, lambda: first[:n], lambda: first[1:n]))


def view_through_branch() -> None:
    def build(first: Any, n: Any) -> Any:
        view = first[:n]
        return tf.cond(n > 1, lambda: view, lambda: view + 1.0)

    run_with_view(build)


def view_from_loop() -> None:
    def build(first: Any, n: Any) -> Any:
        shapes = [tf.TensorShape([]), tf.TensorShape([None, 4])]
        body = lambda i, h: (i + 1, tf.matmul(first, first, name="inner")[: tf.shape(h)[0]])  # noqa: E731
        return tf.while_loop(lambda i, _: i < 3, body, [0, first[:n] * 2.0], shapes)[1]

    run_with_view(build)


def view_begins_loop() -> None:
    def build(first: Any, n: Any) -> Any:
        shapes = [tf.TensorShape([]), tf.TensorShape([None, 4])]
        return tf.while_loop(lambda i, _: i < 3, lambda i, h: (i + 1, h[:n]), [0, first[:n]], shapes)[1]

    run_with_view(build)


def pushed_rows() -> None:
    """Transposed values are copied before they are rows of a list."""
    x = matrix()
    _, rows = tf.while_loop(
        lambda i, _: i < 3,
        lambda i, rows: (i + 1, rows.write(i, tf.transpose(tf.sin(x * tf.cast(i, tf.float32), name="sin")))),
        [0, tf.TensorArray(tf.float32, 3)],
    )
    run(rows.stack())


def small_loop() -> None:
    x = matrix()
    body = lambda i, h: (i + 1, tf.matmul(tf.tanh(h), x, name="product"))  # noqa: E731
    run(tf.while_loop(lambda i, _: i < 3, body, [0, x])[1])


# --- faults


def change_moves(patch: Patch, change: Callable[[list[Any]], list[Any]], is_inside: bool = True) -> None:
    """Change the moves at the end of each function, or those before it."""
    right = bind_control._Mover.move

    def move(self: Any, builder: Any, *arguments: Any) -> None:
        count = len(builder._instructions)
        right(self, builder, *arguments)
        if is_inside == (builder.depth > 0):
            builder._instructions[count:] = change(builder._instructions[count:])

    patch.setattr(bind_control._Mover, "move", move)


def lost_move(patch: Patch) -> None:
    change_moves(patch, lambda moves: moves[:-1])


def lost_initial_move(patch: Patch) -> None:
    change_moves(patch, lambda moves: moves[:-1], is_inside=False)


def exchanged(moves: list[Any]) -> list[Any]:
    """The last two with each other's targets."""
    *others, one, two = moves
    first, second = one.action, two.action
    changed = first._replace(target=second.target), second._replace(target=first.target)
    return [*others, *[one._replace(action=action) for action in changed]]


def swapped_initial_moves(patch: Patch) -> None:
    change_moves(patch, exchanged, is_inside=False)


def moves_out_of_order(patch: Patch) -> None:
    """Values are moved though others still have to be moved from there."""
    patch.setattr(bind_control._Mover, "_reads", lambda *_: False)


def early_move(patch: Patch) -> None:
    """A loop's variables change before the last reader of the old values."""
    right = bind_control._Mover.move

    def move(self: Any, builder: Any, *arguments: Any) -> None:
        count = len(builder._instructions)
        right(self, builder, *arguments)
        if builder.depth:
            instructions = builder._instructions
            builder._instructions = [*instructions[count:], *instructions[:count]]

    patch.setattr(bind_control._Mover, "move", move)


def overwritten_result(patch: Patch) -> None:
    """A loop's result is overwritten before its reader."""
    at_the_place_of(patch, ("third", 0), ("while", 1))


def uncopied_view(patch: Patch) -> None:
    """A view in a register is taken for a value of its own."""
    patch.setattr(BoundTensors, "is_borrowed", lambda *_: False)


def uncopied_parameter(patch: Patch) -> None:
    """So is a parameter that is a view."""
    right = BoundTensors.of_function

    def of_function(self: Any, *arguments: Any) -> Any:
        inner = right(self, *arguments)
        inner._borrowed = ()
        return inner

    patch.setattr(BoundTensors, "of_function", of_function)


def missing(action: type, patch: Patch) -> None:
    right = InstructionBuilder.emit

    def emit(self: Any, node: Any, emitted: Any) -> None:
        if not isinstance(emitted, action):
            right(self, node, emitted)

    patch.setattr(InstructionBuilder, "emit", emit)


def missing_record(patch: Patch) -> None:
    missing(instruction.Record, patch)


def missing_wait(patch: Patch) -> None:
    missing(instruction.WaitFor, patch)


def uncopied_row(patch: Patch) -> None:
    """A row is taken from memory to which its value was not copied."""

    def in_memory(self: Any, node: Any, builder: Any, tensors: Any, ref: Ref) -> Any:
        spec = tensors.subgraph.spec(ref)
        return tensors[ref].value if spec.shape == () else np.zeros(spec.shape, spec.dtype.np)

    patch.setattr(list_rows.RowList, "_in_memory", in_memory)


def reversed_nest(patch: Patch) -> None:
    """The machine code of a loop makes its calls in another order."""
    right = compiled_body.Lowering.block

    def block(self: Any, segments: Any) -> Any:
        changed = [replace(segment, instructions=segment.instructions[::-1]) for segment in segments]
        return right(self, changed)

    patch.setattr(compiled_body.Lowering, "block", block)


def early_free(patch: Patch) -> None:
    """A buffer is free before its last reader."""
    right = Lifetimes.ending_at
    patch.setattr(Lifetimes, "ending_at", lambda self, position: right(self, position + 2))


def written_by_its_last_reader(patch: Patch) -> None:
    """A buffer is free when its last reader, which is not elementwise, gets its output's."""
    right = Lifetimes.ending_at
    patch.setattr(Lifetimes, "ending_at", lambda self, position: right(self, position + 1))


def overwritten_input(patch: Patch) -> None:
    """An elementwise result is placed over an input that has later readers."""

    def inheritable(self: Any, node: Any, _: Any) -> list[Any]:
        return [ref for ref in node.inputs if ref in self._live] if node.op.elementwise else []

    patch.setattr(_Assigner, "_inheritable", inheritable)


def surviving_view(patch: Patch) -> None:
    """A view is not known as one: it survives its buffer."""
    patch.setattr(Lifetimes, "root", lambda self, ref: ref)
    patch.setattr(Lifetimes, "_tensors", lambda self, root: [root])


def read_in_place(patch: Patch) -> None:
    """A variable is not copied though it is updated before its readers are done."""
    patch.setattr(Lifetimes, "is_overwritten", lambda *_: False)


def at_the_place_of(patch: Patch, ref: Ref, other: Ref) -> None:
    """The planner puts one buffer where the other is."""
    right = ArenaPlanner.allocate

    def allocate(self: Any, allocated: Ref, nbytes: int, node: str) -> None:
        right(self, allocated, nbytes, node)
        if allocated == ref and other in self._block_of:
            self._block_of[ref].offset = self._block_of[other].offset

    patch.setattr(ArenaPlanner, "allocate", allocate)
    patch.setattr(ArenaPlanner, "_offsets_by_size", lambda self: {b: b.offset for b in self._blocks})


def overlapping_buffers(patch: Patch) -> None:
    """Two live buffers overlap."""
    at_the_place_of(patch, ("third", 0), ("first", 0))


def scratch_over_others(patch: Patch) -> None:
    """The memory of a loop's body is not reserved while it runs."""
    at_the_place_of(patch, ("while", SCRATCH), ("before", 0))


def overwritten_fetch(patch: Patch) -> None:
    """A fetched tensor's buffer is used again."""
    right = Lifetimes.__init__
    patch.setattr(
        Lifetimes,
        "__init__",
        lambda self, subgraph, schedule: right(self, subgraph.replace(fetches=()), schedule),
    )


def overwritten_send(patch: Patch) -> None:
    """The buffer of a tensor that is sent is used again."""
    patch.setattr(Lifetimes, "ending_at", Lifetimes.read_last_at)


def early_release(patch: Patch) -> None:
    """A register is cleared by its first reader."""

    def last_read(self: Any, node: Any, position: int) -> list[int]:
        del position
        roots = [self.lifetimes.root(ref) for ref in node.inputs]
        return [slot for root in roots for slot in self.large_registers.pop(root, ())]

    patch.setattr(BoundTensors, "last_read", last_read)


def loop_result_in_place(patch: Patch) -> None:
    """A loop's result is written in place while its old value is still to be read."""
    patch.setattr(Lifetimes, "is_read_before", lambda *_: True)


def misplaced_scratch(patch: Patch) -> None:
    """A body computes where it was not given memory, over a parameter that its next iteration reads."""
    right = BoundTensors.of_function

    def of_function(self: Any, *arguments: Any) -> Any:
        inner = right(self, *arguments)
        inner._base = 0
        return inner

    patch.setattr(BoundTensors, "of_function", of_function)


def no_spill(patch: Patch) -> None:
    """An extended program reads a tensor whose buffer was used again."""
    patch.setattr(extend_program, "_is_lasting", lambda *_: True)


def lost_spill(patch: Patch) -> None:
    """A tensor is read from the register to which nothing has copied it."""
    patch.setattr(extend_program, "_with_kept", lambda segments, *_: segments)


def early_spill(patch: Patch) -> None:
    """A spill is inserted before its node."""
    patch.setattr(extend_program, "bisect_right", lambda *_, **__: 0)


def swapped_instructions(patch: Patch) -> None:
    patch.setattr(program, "join_updates", lambda block: [*block[1::-1], *block[2:]])


def lost_instruction(patch: Patch) -> None:
    patch.setattr(program, "join_updates", lambda block: list(block[:-1]))


def join_across_a_read(patch: Patch) -> None:
    """Updates are joined though one reads what the other writes."""
    patch.setattr(updates._Written, "admits", lambda *_: True)


def swapped_calls(patch: Patch) -> None:
    """The calls are not in the order of the instructions."""
    right = program.python_calls
    patch.setattr(program, "python_calls", lambda block: list(right(block))[::-1])


def swapped_machine_code(patch: Patch) -> None:
    """Calls are joined in another order."""
    right = instruction.in_sequence
    patch.setattr(instruction, "in_sequence", lambda calls: right(calls[::-1]))


def missing_waits(patch: Patch) -> None:
    """No stream waits for another's node."""
    right = streams.StreamSchedule._set_clocks

    def set_clocks(self: Any, dependencies: Any) -> None:
        right(self, dependencies)
        self.waits.clear()

    patch.setattr(streams.StreamSchedule, "_set_clocks", set_clocks)


def shared_by_streams(patch: Patch) -> None:
    """Memory that another stream may still use is used again."""
    patch.setattr(ArenaPlanner, "_are_over", lambda *_: True)
    patch.setattr(Lifetimes, "are_done", lambda *_: True)


def missing_join(patch: Patch) -> None:
    """A step ends before all streams have."""
    patch.setattr(BoundStreams, "join", lambda _: None)


def loop_without_its_stream(patch: Patch) -> None:
    """A loop runs on the first stream without a wait for its own."""
    patch.setattr(BoundStreams, "_is_moved", lambda *_: False)


def early_receive(patch: Patch) -> None:
    """In an interleaved program a tensor is received before it is sent."""
    right = plan.interleaved

    def interleaved(programs: Any) -> Any:
        whole = right(programs)
        (segment,) = whole.segments
        is_receive = [i.node.op.name == "_Recv" for i in segment.instructions]
        first = is_receive.index(True)
        before, receive, after = np.split(np.arange(len(is_receive)), [first, first + 1])
        order = [segment.instructions[i] for i in [*receive, *before, *after]]
        whole.segments = (segment_of(order),)
        return whole

    patch.setattr(plan, "interleaved", interleaved)


# --- each is found

AT = r"\(\S+test_planted_faults\.py:\d+\)"


class Fault(NamedTuple):
    plant: Callable[[Patch], None]
    run: Callable[[], None]
    checks: list[str]
    """The functions that find it: all of them, since one finds what another would find later."""
    text: str
    """The error, with ``@`` for a line of this file, ``b.`` for a buffer, and ``0x`` for an address."""
    mode: str = "off"
    """Of compiled loops."""


CONTENT, WAIT, WRITE = "check_content", "check_wait", "check_write"

BEFORE = "what was there before the program"
MOVED = "what was at 0x before the program"


def output(name: str) -> str:
    return f"output 0 of '{name}' @"


def wrong(reader: str, tensor: str, expected: str, got: str) -> str:
    return f"{reader} @: program: reads {tensor}; expected {expected}; got {got}"


FAULTS = [
    Fault(early_free, chain, [CONTENT],
          wrong("MatMul 'last'", "first:0 at b.", output("first"), output("third"))),
    Fault(written_by_its_last_reader, chain, ["check_inputs", CONTENT],
          "MatMul 'third' @: program: writes over its input second:0 before it has read it"),
    Fault(overwritten_input, sum_then_product, [CONTENT],
          wrong("MatMul 'last'", "first:0 at b.", output("first"), output("second"))),
    Fault(surviving_view, transposed, [CONTENT],
          wrong("MatMul 'last'", "turned:0 at Transpose(b.)", output("first"), output("third"))),
    Fault(read_in_place, read_before_update, [CONTENT],
          wrong("MatMul 'last'", "v/ReadVariableOp:0 at %v", BEFORE, "the update by 'update' @")),
    Fault(overlapping_buffers, chain, [CONTENT],
          wrong("MatMul 'last'", "first:0 at b.", output("first"), output("third"))),
    Fault(scratch_over_others, loop_beside_others, [CONTENT],
          wrong("MatMul 'last'", "before:0 at b.", output("before"), "the functions of 'while' @")),
    Fault(overwritten_fetch, fetched_and_more, [CONTENT],
          wrong("MatMul 'first'", "first:0 at b. for the fetch", output("first"), output("third"))),
    Fault(overwritten_send, two_devices, [CONTENT],
          wrong("_Send 'first/_send_0/localhost_0_0_CPU_1'", "first:0 at b. for the receiver",
                output("first"), output("MatMul_2"))),
    Fault(early_release, unknown_size, [CONTENT],
          wrong("GatherV2 'masked/GatherV2'", "masked/Squeeze:0 at r1", output("masked/Squeeze"),
                "the release of r1 @")),
    Fault(loop_result_in_place, loop, [CONTENT],
          wrong("MatMul 'while/last'", "while/x_2:0 at b.", MOVED, output("while/new"))),
    Fault(misplaced_scratch, loop_with_an_invariant, [CONTENT],
          wrong("Maximum 'while/Maximum'", "while/x-captured:0 at b.", BEFORE, output("while/Less"))),
    Fault(no_spill, grown, [CONTENT],
          wrong("MatMul 'added'", "first:0 at b.", output("first"), output("MatMul_11"))),
    Fault(lost_spill, grown, [CONTENT],
          wrong("MatMul 'added'", "first:0 at b.", output("first"), BEFORE)),
    Fault(early_spill, grown, [CONTENT],
          wrong("MatMul 'added'", "first:0 at b.", output("first"), MOVED)),
    Fault(swapped_instructions, chain, [CONTENT],
          wrong("MatMul 'second'", "first:0 at b.", output("first"), BEFORE)),
    Fault(lost_instruction, chain, ["check_dropped", CONTENT],
          "MatMul 'end' @: program: expected an instruction; got none"),
    Fault(join_across_a_read, joined_updates, [CONTENT, WRITE],
          wrong("AssignAddVariableOp 'second'", "v/ReadVariableOp:0 at %v",
                "the update by 'first' @", BEFORE),
          "eager"),
    Fault(swapped_calls, chain, ["check_calls"],
          "MatMul 'first' @: program: expected the call of this operation; got another"),
    Fault(swapped_machine_code, machine_code, ["check_calls"],
          "MatMul 'first' @: program: expected the call of this operation; got another", "eager"),
    Fault(missing_waits, wide, [CONTENT, WAIT, WRITE],
          wrong("MatMul 'MatMul'", "lane2:0 at b.", output("lane2"), BEFORE)),
    Fault(missing_waits, wide_on_gpu, [WAIT, WRITE],
          "MatMul 'MatMul' @: program: reads Tanh_2:0 at b. without a wait for " + output("Tanh_2")),
    Fault(missing_waits, wide_on_null, [WAIT, WRITE],
          "MatMul 'MatMul' @: program: reads lane2:0 at b. without a wait for " + output("lane2")),
    Fault(shared_by_streams, wide, [CONTENT, WAIT, WRITE],
          "MatMul 'lane1' @: program: " + output("lane1") + " overwrites what Mul 'mul' @ uses, "
          "without a wait for it"),
    Fault(missing_join, lanes_on_gpu, ["check_joined", WAIT],
          "MatMul 'lane1' @: program: ends without a wait for this operation"),
    Fault(loop_without_its_stream, loops_on_gpu, [WAIT, WRITE],
          "_Loop 'while_1' @: program: reads Tanh:0 at b. without a wait for " + output("Tanh")),
    Fault(early_receive, two_devices_by_turns, ["check_sent", CONTENT],
          "_Recv 'first/_recv_0/localhost_0_0_CPU_1' @: program: reads a tensor before it is sent"),
    Fault(lost_move, loop, [CONTENT],
          wrong("_Loop 'while'", "while/new:0 at b. for while:1 at b.", output("while/new"), MOVED)),
    Fault(lost_move, reordered_loop, [CONTENT],
          wrong("_Loop 'while'", "while/one_1:0 at b. for while:2 at b.", output("one"), output("two"))),
    Fault(lost_initial_move, loop, [CONTENT],
          wrong("_Loop 'while'", "x:0 at b. for while:2 at b.", MOVED, BEFORE)),
    Fault(swapped_initial_moves, reordered_loop, [CONTENT],
          wrong("_Loop 'while'", "two:0 at b. for while:2 at b.", output("two"), MOVED)),
    Fault(moves_out_of_order, reordered_loop, [CONTENT],
          wrong("_Loop 'while'", "while/one_1:0 at b. for while:2 at b.", output("one"), output("two"))),
    Fault(early_move, loop, [CONTENT],
          wrong("MatMul 'while/last'", "while/x_2:0 at b.", MOVED, MOVED)),
    Fault(overwritten_result, loop_and_its_reader, [CONTENT],
          wrong("MatMul 'last'", "while:1 at b.", "output 1 of 'while' @", output("third"))),
    Fault(uncopied_view, view_from_branch, [CONTENT],
          wrong("AddV2 'last'", "what cond:0 at r0 may be a view of", output("first"), output("MatMul_4"))),
    Fault(uncopied_view, view_from_loop, [CONTENT],
          wrong("AddV2 'last'", "what while:1 at r3 may be a view of", output("while/inner"), output("add"))),
    Fault(uncopied_view, view_begins_loop, [CONTENT],
          wrong("AddV2 'last'", "what while:1 at r1 may be a view of", output("first"), output("MatMul_4"))),
    Fault(uncopied_parameter, view_through_branch, [CONTENT],
          wrong("AddV2 'last'", "what cond:0 at r1 may be a view of", output("first"), output("MatMul_4"))),
    Fault(missing_record, wide_on_gpu, [WAIT, WRITE],
          "MatMul 'MatMul' @: program: reads Tanh_2:0 at b. without a wait for " + output("Tanh_2")),
    Fault(missing_wait, wide_on_gpu, ["check_joined", WAIT, WRITE],
          "MatMul 'MatMul' @: program: reads Tanh_2:0 at b. without a wait for " + output("Tanh_2")),
    Fault(uncopied_row, pushed_rows, [CONTENT],
          wrong("TensorListSetItem 'while/TensorArrayWrite'",
                "while/transpose:0 at Transpose(b.)", output("while/sin"), BEFORE), "eager"),
    Fault(reversed_nest, small_loop, ["check_nest"],
          "MatMul 'while/product' @: program: expected the machine code of this operation; got another",
          "eager"),
]  # fmt: skip


@pytest.fixture(params=FAULTS, ids=lambda fault: f"{fault.plant.__name__}-{fault.run.__name__}")
def fault(request: Any, monkeypatch: Patch) -> Fault:
    """A fault, planted."""
    fault: Fault = request.param
    if fault.mode == "eager":
        pytest.importorskip("llvmlite")
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    monkeypatch.setenv("FLOWRT_JIT", fault.mode)
    monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)  # every node on a stream of its own choice
    monkeypatch.setattr(streams, "MIN_GAIN", -1e9)
    if "gpu" in fault.run.__name__:
        plug_in(monkeypatch, 0)
    fault.plant(monkeypatch)
    return fault


def test_a_planted_fault_is_found(fault: Fault) -> None:
    with pytest.raises(InternalError, match="program: ") as info:
        fault.run()
    expected = re.escape(fault.text).replace("@", AT).replace(r"b\.", r"b\d+").replace("0x", "0x[0-9a-f]+")
    assert re.search(expected, str(info.value)), info.value


def test_without_its_checks_it_is_not_found(fault: Fault, monkeypatch: Patch) -> None:
    for name in fault.checks:
        for owner in (verify_program._Replay, node_accesses, verify_program, verify_calls):
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, lambda *_: None)
    try:
        fault.run()
        found = ""
    except Exception as error:  # noqa: BLE001 (what a wrong program does is another matter)
        found = str(error)
    assert "program: " not in found
