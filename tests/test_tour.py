"""The tour: flowrt in seven chapters, each the smallest thing that works. Half an hour.

It is a test, so it cannot go stale: ``python -m pytest tests/test_tour.py``. What a chapter claims, the code
below the claim does, and an assertion holds it to that. One function runs through all chapters,

    f(x1, x2) = ln x1 + x1 * x2 - sin x2        f(2, 5) = 11.652,  df/dx1 = 5.5,  df/dx2 = 1.716

and by the end it runs on two devices in a hundred different orders, with one result. On the way you meet
everything that `Session.run` does, in the order in which it does it: a graph (1), kernels (2), derivatives
(3), places and cuts (4), the rendezvous (5), programs (6), schedules (7).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.local_devices import DeviceRequest, local_devices
from flowrt.errors import AbortedError
from flowrt.executor.analysis.streams import one_stream
from flowrt.executor.bind.bind import Binder, compile_partition
from flowrt.executor.plan.plan import new_ends, raise_error
from flowrt.executor.program.program import PAUSE, Program
from flowrt.graph.derivatives.jvp import apply_jvp
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.placement.place import place
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.text.graph_text import parse_subgraph, print_subgraph
from flowrt.rendezvous import Deliver, Fail, InlineRendezvous, RendezvousTable, create_key, parse_key

F, DF_DX1, DF_DX2 = math.log(2) + 2 * 5 - math.sin(5), 1 / 2 + 5, 2 - math.cos(5)
AT_2_5 = {"x1": np.float32(2), "x2": np.float32(5)}

CPU_0 = "/job:localhost/replica:0/task:0/device:CPU:0"
CPU_1 = "/job:localhost/replica:0/task:0/device:CPU:1"


# --- Chapter 1. A graph by hand -----------------------------------------------------------------------------
#
# A *graph* says what is to be computed, before anything is. It is made of *nodes*: a node has a name, an *op*
# (what it does: Mul, Sin), and *inputs*, the tensors that it reads. A *tensor* is one output of a node,
# written as the pair (node's name, output's number), and of it a graph knows only dtype and shape: there are
# no values yet.
#
# That is all, so a graph can be written down by hand:


def node(name: str, op: str, *inputs: str, **attrs: Any) -> Node:
    """A node with one output, a float32 scalar, that reads output 0 of each of ``inputs``."""
    refs = tuple((producer, 0) for producer in inputs)
    no_controls, no_device, no_source = (), "", None
    spec = TensorSpec(tf.float32, ())
    return Node(name, op_def(op), refs, no_controls, attrs, no_device, no_source, (spec,))


def f_by_hand() -> Subgraph:
    nodes = [
        node("x1", "_Feed", dtype=tf.float32, shape=()),  # a value from outside: the caller will *feed* it
        node("x2", "_Feed", dtype=tf.float32, shape=()),
        node("log_x1", "Log", "x1", T=tf.float32),
        node("product", "Mul", "x1", "x2", T=tf.float32),
        node("sin_x2", "Sin", "x2", T=tf.float32),
        node("sum", "AddV2", "log_x1", "product", T=tf.float32),
        node("f", "Sub", "sum", "sin_x2", T=tf.float32),
    ]
    # Feeds and *fetches* (what the caller wants back) are the graph's ends.
    return Subgraph({n.name: n for n in nodes}, feeds=("x1", "x2"), fetches=(("f", 0),))


# Nobody wants to read Python objects, so a graph has a text form, one line a node. We leave out the user's
# source line that each node remembers, and write short device names:


def show(graph: Subgraph) -> str:
    text = re.sub(r"  # .*:\d+$", "", print_subgraph(graph), flags=re.MULTILINE)
    text = re.sub(r"/job:localhost/replica:0/task:0/device:CPU:(\d)", r"cpu:\1", text)
    return re.sub(r"localhost_0_0_CPU_(\d)", r"cpu\1", text)


F_AS_TEXT = """\
feeds: %x1, %x2
%x1 = _Feed() {shape=[]} : f32[]
%x2 = _Feed() {shape=[]} : f32[]
%log_x1 = Log(%x1) : f32[]
%product = Mul(%x1, %x2) : f32[]
%sin_x2 = Sin(%x2) : f32[]
%sum = AddV2(%log_x1, %product) : f32[]
%f = Sub(%sum, %sin_x2) : f32[]
fetches: %f
"""


def test_chapter_1_a_graph_by_hand() -> None:
    assert show(f_by_hand()) == F_AS_TEXT
    # The text can be read back, so a test of the compiler is text in, text out.
    assert show(parse_subgraph(F_AS_TEXT)) == F_AS_TEXT


# Nobody wants to write nodes, either. A script calls functions, and each call adds one *operation*, a handle
# on one node, to the default graph:


def f_by_script(log_device: str = "", product_device: str = "") -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    with tf.device(log_device):
        x1 = tf.placeholder(tf.float32, [], name="x1")
        x2 = tf.placeholder(tf.float32, [], name="x2")
        log_x1 = tf.log(x1, name="log_x1")
        with tf.device(product_device):
            product = tf.multiply(x1, x2, name="product")
        sin_x2 = tf.sin(x2, name="sin_x2")
        f = tf.subtract(tf.add(log_x1, product, name="sum"), sin_x2, name="f")
    return x1, x2, f


# A script's graph only grows, and may hold much that one step does not need. So the first thing that is done
# for a step is to *extract* its part, given what is fetched and what is fed:


def test_chapter_1_a_script_builds_the_same_graph() -> None:
    with tf.Graph() as graph:
        x1, x2, f = f_by_script()
        tf.exp(x1, name="not_needed")
    assert show(extract(graph, [f], [], {x1: (), x2: ()})) == F_AS_TEXT


# Real files: flowrt/graph/node.py (Node, Subgraph), flowrt/graph/construction/graph.py and
# flowrt/graph/construction/operation.py (what a script holds), flowrt/graph/text/graph_text.py,
# flowrt/graph/passes/prepare/prune.py (extract).
# Left out here: scopes, collections, several outputs, shape inference, and how f + 1 becomes an operation
# (flowrt/graph/construction/build.py).


# --- Chapter 2. An interpreter in ten lines -----------------------------------------------------------------
#
# An op is defined in one place, by one call of `define_op` that says all there is to know of it: its
# signature, its rule for shapes, its derivatives, what it does besides computing (its *effect*), and its
# *kernel*, the function that computes. A kernel gets the array module (NumPy here; CuPy on a GPU) and the
# input arrays. With that, a graph runs:


def interpret(graph: Subgraph, feeds: Mapping[str, Any]) -> list[Any]:
    values = {(name, 0): value for name, value in feeds.items()}
    for item in graph:  # producers come before their readers: that is a rule of Subgraph
        if item.op.name == "Const":
            values[item.name, 0] = item.attrs["value"]
        elif item.op.effect is not Effect.SOURCE:  # a source's value comes from outside
            inputs = [values[ref] for ref in item.inputs]
            attrs = {key: item.attrs[key] for key in item.op.kernel_attrs}
            values[item.name, 0] = item.op.kernel(np, *inputs, **attrs)
    return [values[ref] for ref in graph.fetches]


def test_chapter_2_ten_lines_run_a_graph() -> None:
    (result,) = interpret(f_by_hand(), AT_2_5)
    assert result == pytest.approx(F, rel=1e-6)
    assert result == evaluate(f_by_hand(), AT_2_5)[0]


# An effect other than PURE is what the compiler has to respect. It never asks "is this op named Sin?", only
# "is it pure?", "does it read or write a variable?":


def test_chapter_2_an_op_tells_facts_about_itself() -> None:
    assert op_def("Mul").effect is Effect.PURE
    assert op_def("Mul").commutative
    assert op_def("ReadVariableOp").effect is Effect.READ
    assert op_def("RandomUniform").effect is Effect.RANDOM  # two of them are two draws: never merged into one


# Real files: flowrt/graph/op_def.py (define_op), flowrt/graph/ops/ (all ops, by family),
# flowrt/graph/evaluate.py (the interpreter that constant folding uses and tests compare with).
# Left out here: inputs that are lists, inputs that say *how* and stay on the host (a reshape's shape),
# kernels that write into given memory (`out=`), state, errors that name the node.


# --- Chapter 3. Derivatives are more graph ------------------------------------------------------------------
#
# An op's definition has two rules for derivatives. Its *vjp* turns the derivative of f by the op's output
# into that by its inputs, and its *jvp* turns changes of its inputs into the change of its output. Neither
# computes: both *add operations*. `gradients` walks back from f, applies the vjp of each op, and adds up
# where paths meet.


def test_chapter_3_gradients_add_operations() -> None:
    with tf.Graph() as graph:
        x1, x2, f = f_by_script()
        df = tf.gradients(f, [x1, x2])
    backward = extract(graph, df, [], {x1: (), x2: ()})
    assert show(backward) == BACKWARD
    # AddN takes a list, of which `interpret` knows nothing. `evaluate` is the same with all the rules.
    assert evaluate(backward, AT_2_5) == pytest.approx([DF_DX1, DF_DX2], rel=1e-6)


BACKWARD = """\
feeds: %x1, %x2
%x1 = _Feed() {shape=[]} : f32[]
%x2 = _Feed() {shape=[]} : f32[]
%gradients/grad_ys_0 = Const() {value=f32[](1.0)} : f32[]
%gradients/f_grad/Neg = Neg(%gradients/grad_ys_0) : f32[]
%gradients/log_x1_grad/RealDiv = RealDiv(%gradients/grad_ys_0, %x1) : f32[]
%gradients/product_grad/Mul = Mul(%gradients/grad_ys_0, %x2) : f32[]
%gradients/product_grad/Mul_1 = Mul(%gradients/grad_ys_0, %x1) : f32[]
%gradients/sin_x2_grad/Cos = Cos(%x2) : f32[]
%gradients/sin_x2_grad/Mul = Mul(%gradients/f_grad/Neg, %gradients/sin_x2_grad/Cos) : f32[]
%gradients/AddN = AddN([%gradients/log_x1_grad/RealDiv, %gradients/product_grad/Mul]) : f32[]
%gradients/AddN_1 = AddN([%gradients/product_grad/Mul_1, %gradients/sin_x2_grad/Mul]) : f32[]
fetches: %gradients/AddN, %gradients/AddN_1
"""

# Of the forward pass this needs the inputs only. Had there been an exp, its result would have been used
# again: forwards and backwards are one graph, and nothing has to be recorded.
#
# Since a derivative is graph like any other, it has a derivative:


def test_chapter_3_second_derivatives_come_free() -> None:
    with tf.Graph() as graph:
        x1, x2, f = f_by_script()
        (df_dx1,) = tf.gradients(f, x1)
        second = tf.gradients(df_dx1, [x1, x2])
    values = evaluate(extract(graph, second, [], {x1: (), x2: ()}), AT_2_5)
    assert values == pytest.approx([-1 / 4, 1])


# Forwards, the other way round: give each input a *tangent*, the speed at which it changes, and follow the
# operations in the order in which they were made. One sweep gives the speed of everything; the loop is the
# whole algorithm.


def test_chapter_3_jvp_goes_forward() -> None:
    with tf.Graph() as graph:
        x1, x2, f = f_by_script()
        tangents: dict[tf.Tensor, Any] = {x1: tf.constant(1.0), x2: None}  # x1 moves, x2 does not
        for operation in (op for op in graph.get_operations() if op.inputs):
            moved = apply_jvp(operation, [tangents[tensor] for tensor in operation.inputs])
            tangents.update(zip(operation.outputs, moved, strict=True))
    forward = extract(graph, [tangents[f]], [], {x1: (), x2: ()})
    assert interpret(forward, AT_2_5) == pytest.approx([DF_DX1], rel=1e-6)


# Real files: flowrt/graph/derivatives/gradients.py, flowrt/graph/derivatives/jvp.py, and the rules beside the
# kernels in flowrt/graph/ops/.
# Left out here: ops without a derivative, sparse gradients (IndexedSlices), custom_gradient.


# --- Chapter 4. Places and cuts -----------------------------------------------------------------------------
#
# A *device* is a place where kernels run: memory, and the functions that work on it. Its full name says job,
# task, type and number; a script asks for as much of it as it cares about. We ask for the product on the
# second CPU.
#
# To *place* a graph is to give each node one device. To *partition* it is to cut it into one graph a device,
# and to put a pair of nodes on every edge that is cut: _Send on the side of the producer, _Recv on the
# reader's. Both know the same edge name. From then on no device knows of any other; all they share is that
# name.


def two_partitions() -> dict[str, Subgraph]:
    with tf.Graph() as graph:
        x1, x2, f = f_by_script(log_device="/cpu:0", product_device="/cpu:1")
    step = extract(graph, [f], [], {x1: (), x2: ()})
    devices = [tf.DeviceSpec.from_string(name) for name in (CPU_0, CPU_1)]
    return partition(place(step, devices, assigned={}, soft=False))


ON_CPU_0 = """\
feeds: %x1, %x2
%x1 = _Feed() : f32[]
%x1/_send_0/cpu1 = _Send(%x1) x1:0 from cpu:0 to cpu:1
%x2 = _Feed() : f32[]
%x2/_send_0/cpu1 = _Send(%x2) x2:0 from cpu:0 to cpu:1
%log_x1 = Log(%x1) : f32[]
%sin_x2 = Sin(%x2) : f32[]
%product/_recv_0/cpu0 = _Recv() product:0 from cpu:1 to cpu:0 : f32[]
%sum = AddV2(%log_x1, %product/_recv_0/cpu0) : f32[]
%f = Sub(%sum, %sin_x2) : f32[]
fetches: %f
"""

ON_CPU_1 = """\
%x1/_recv_0/cpu1 = _Recv() x1:0 from cpu:0 to cpu:1 : f32[]
%x2/_recv_0/cpu1 = _Recv() x2:0 from cpu:0 to cpu:1 : f32[]
%product = Mul(%x1/_recv_0/cpu1, %x2/_recv_0/cpu1) : f32[]
%product/_send_0/cpu0 = _Send(%product) product:0 from cpu:1 to cpu:0
"""


def show_partition(graph: Subgraph) -> str:
    """As `show`, with a pair's attributes in words, and without the device: it is the same on every line."""
    text = re.sub(r"(,? ?shape=\[\])|(  @.*$)", "", show(graph), flags=re.MULTILINE)
    ends = r'\{tensor_name="(.*?)", send_device="(.*?)", recv_device="(.*?)"\}'
    return re.sub(ends, r"\1 from \2 to \3", text).replace(" {}", "")


def test_chapter_4_a_graph_is_cut_into_one_a_device() -> None:
    parts = two_partitions()
    assert show_partition(parts[CPU_0]) == ON_CPU_0
    assert show_partition(parts[CPU_1]) == ON_CPU_1


# Real files: flowrt/graph/passes/placement/place.py, flowrt/graph/passes/placement/partition.py,
# flowrt/device/spec.py (device names).
# Left out here: everything between extract and place, listed in flowrt/graph/passes/pipeline.py: the order of
# reads and writes of one variable, shapes, and the optimisations; then groups that must stay together,
# control edges that are cut, small constants that are copied instead of sent.


# --- Chapter 5. The rendezvous ------------------------------------------------------------------------------
#
# A *rendezvous* is where the two ends of a cut edge meet, whoever comes first. It is a table from *key* to
# what is there: a value that nobody has asked for, or somebody who waits. `send` puts a value in and never
# blocks. `recv` takes one out, or leaves a *waiter*. Whoever comes late does the matching.
#
# The table only decides. It has no lock and calls nobody: it *returns* what there is to do, and that can be
# compared.


def test_chapter_5_whoever_comes_late_does_the_matching() -> None:
    table: RendezvousTable[str] = RendezvousTable()
    assert not table.send("x1", 2.0)  # sent first: kept, nothing to do
    assert table.recv("x1", "CPU:1 waits") == (Deliver("CPU:1 waits", 2.0),)  # asked for: there it is
    assert not table.recv("product", "CPU:0 waits")  # asked for first: CPU:0 is parked
    assert table.send("product", 10.0) == (Deliver("CPU:0 waits", 10.0),)  # ... until the value comes
    assert table.is_empty  # a step that ends well leaves nothing behind


# When one device fails, the others must not wait for ever. *Abort* fails all who wait, and everybody who
# comes later:


def test_chapter_5_an_abort_wakes_all_and_sticks() -> None:
    table: RendezvousTable[str] = RendezvousTable()
    table.recv("product", "CPU:0 waits")
    error = AbortedError("CPU:1 ran out of memory")
    assert table.abort(error) == [Fail("CPU:0 waits", error)]
    with pytest.raises(AbortedError, match="out of memory"):
        table.send("x1", 2.0)


# A key names the edge and its two ends. It also says in which life of the sending process the value was made,
# and in which iteration of which loop, so that nothing can be taken for its namesake:


def test_chapter_5_a_key_names_one_tensor_on_one_edge() -> None:
    key = create_key(CPU_1, 0xBEEF, CPU_0, "product:0", frame_id=0, iteration=0)
    assert key == f"{CPU_1};000000000000beef;{CPU_0};product:0;0:0"
    assert parse_key(key).edge_name == "product:0"


# Real files: flowrt/rendezvous/matching/key.py, flowrt/rendezvous/matching/table.py,
# flowrt/rendezvous/matching/local.py (the table and a lock, for threads),
# flowrt/rendezvous/matching/inline.py (a bare dict, for programs that take turns).
# Left out here: cancelling one waiter, several values under one key, time limits.


# --- Chapter 6. A program, stepped by hand ------------------------------------------------------------------
#
# The interpreter of chapter 2 looks everything up again in every step: the kernel, the inputs, a place for
# the output. None of that changes from step to step. To *bind* a partition is to decide it all once: every
# tensor gets a place (a buffer in the arena, a register), and what is left is a flat list of calls. That
# is a *program*. It prints:


def bind_both(rendezvous: InlineRendezvous) -> list[Program]:
    parts, no_variables, programs = two_partitions(), {}.__getitem__, []
    for device in local_devices(DeviceRequest({"CPU": 2, "GPU": 0})):
        part, ends = parts[device.name], new_ends(rendezvous.send, rendezvous.take, raise_error)
        compiled = compile_partition(part, one_stream(part), device, no_variables)
        programs += Binder(compiled, no_variables, ends).bind()
    return programs


def test_chapter_6_a_program_is_a_list_of_calls_on_fixed_places() -> None:
    first, _ = bind_both(InlineRendezvous())
    _, *lines = str(first).splitlines()
    calls = [re.sub(r"\br\d+", "r", line.replace(CPU_1, "cpu:1").split("#")[0]) for line in lines]
    assert [re.sub(r" +(float32\S+)?", " ", call).strip() for call in calls] == [
        "- = _Send(b0)",  # x1 and x2 are fed into the buffers b0 and b1
        "- = _Send(b1)",
        "b2 = Log(b0)",
        "b3 = Sin(b1)",
        "r = _Recv(cpu:1)",  # what arrives is somebody else's memory: a register holds it
        "b4 = AddV2(b2, r)",
        "b2 = Sub(b4, b3)",  # ln x1 was read for the last time: its buffer takes f, and a fetch a copy
    ]


# A program runs as a *generator*: straight on, until it needs a tensor that has not arrived. Then it yields
# the key of that tensor, and whoever drives it decides how to wait. Here we drive, and know better than to
# wait: we let the other program run, which sends the product, and come back.


def test_chapter_6_a_program_yields_the_key_it_waits_for() -> None:
    rendezvous = InlineRendezvous()
    first, second = bind_both(rendezvous)
    for feed, value in zip(first.feeds, AT_2_5.values(), strict=True):
        feed.put(value)

    step_of_first = first.run()
    key = next(step_of_first)  # runs both sends, ln x1 and sin x2; then there is no product
    assert parse_key(key).edge_name == "product:0"
    assert [parse_key(sent).edge_name for sent in rendezvous.pending()] == ["x1:0", "x2:0"]

    assert next(second.run(), "the end") == "the end"  # finds x1 and x2, multiplies, sends
    assert [parse_key(sent).edge_name for sent in rendezvous.pending()] == ["product:0"]

    assert next(step_of_first, "the end") == "the end"
    (result,) = [fetch() for fetch in first.fetches]
    assert result == pytest.approx(F, rel=1e-6)
    rendezvous.check_empty()


# Real files: flowrt/executor/buffers/buffer_assignment.py and memory_plan.py (what goes where),
# flowrt/executor/bind/bind.py (the Binder), flowrt/executor/program/program.py (Program),
# flowrt/device/device.py, flowrt/executor/plan/plan.py (keeps bound programs for later steps).
# Left out here: variables read in place, views that cost nothing, large tensors, errors that name the node.


# --- Chapter 7. Any order will do ---------------------------------------------------------------------------
#
# Two devices work at once, so nobody knows in which order their calls will fall. The result must not depend
# on it. With threads one would run it often and hope. Programs are generators, so we can *choose* the order,
# and let a seed choose:


def interleave(programs: list[Program], seed: int) -> str:
    """Run ``programs`` one instruction at a time in an order drawn from ``seed``; returns that order."""
    rng = random.Random(seed)
    running = {name: p.run_stepwise() for name, p in zip("AB", programs, strict=True)}  # a yield after each
    order = ""
    while running:
        name = rng.choice(list(running))
        order += name
        key = next(running[name], None)
        if key is None:
            del running[name]
        assert key in (None, PAUSE) or parse_key(key)  # a key: it waits, and we look in again later
    return order


def test_chapter_7_a_hundred_orders_give_one_result() -> None:
    rendezvous = InlineRendezvous()
    first, second = bind_both(rendezvous)
    orders, results = set(), set()
    for seed in range(100):
        for feed, value in zip(first.feeds, AT_2_5.values(), strict=True):
            feed.put(value)
        orders.add(interleave([first, second], seed))
        results.add(float(first.fetches[0]()))
        rendezvous.check_empty()
        first.reset()
        second.reset()
    assert len(orders) > 50
    assert len(results) == 1


# A session does all of this: it extracts, places, partitions and binds when it first sees a question, keeps
# the plan, and drives the programs: in turn on the calling thread when there is little to do, a thread a
# device when there is much, and, given a seed, in an order drawn from it. Variables live in the session, on
# their devices, and the reads and writes of one variable keep the order in which the script made them. So
# even training is the same, to the last bit:


def train(devices: int, seed: int | None) -> bytes:
    """Ten steps of fitting y = x a + b, on ``devices`` CPUs; the weights as bytes."""
    x = np.linspace(-1, 1, 20, dtype=np.float32)
    with tf.Graph():
        tf.set_random_seed(7)
        with tf.device("/cpu:0"):
            a = tf.Variable(tf.random_normal([]), name="a")
        with tf.device(f"/cpu:{devices - 1}"):
            b = tf.Variable(0.0, name="b")
            loss = tf.reduce_mean(tf.square(x * a + b - (3 * x + 1)))
        step = tf.train.GradientDescentOptimizer(0.3).minimize(loss, colocate_gradients_with_ops=True)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices}), seed=seed) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(10):
                session.run(step)
            return np.array(session.run([a, b])).tobytes()


def test_chapter_7_training_does_not_depend_on_devices_or_order() -> None:
    expected = train(devices=1, seed=None)
    assert train(devices=2, seed=None) == expected
    assert all(train(devices=2, seed=seed) == expected for seed in range(5))


# Real files: flowrt/executor/session/session.py (Session.run), flowrt/graph/passes/pipeline.py
# (compile_step), flowrt/executor/plan/plan.py (Plan), flowrt/executor/program/runner.py (run_inline,
# run_threaded). Left out here: deadlines, cancellation, errors that end a step on all devices, tracing.
