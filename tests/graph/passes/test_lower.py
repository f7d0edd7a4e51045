"""Lowering: calls are gone, If and Case are `_Case`, While is a rotated `_Loop`."""

from __future__ import annotations

import flowrt as tf
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.effects import is_stateful
from flowrt.graph.evaluate import evaluate
from flowrt.graph.node import TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def lowered(fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    verify_subgraph(before)
    seen = snapshot(before)
    after = lower(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    return after


def only(subgraph, name):
    (node,) = [node for node in subgraph if node.op.name == name]
    return node


def ancestors(subgraph, node):
    """The names of all that ``node`` reads or waits for, directly or not."""
    found = {ref[0] for ref in node.inputs} | set(node.controls)
    return found.union(*[ancestors(subgraph, subgraph.nodes[name]) for name in found])


def names(function):
    return [node.op.name for node in function]


def call(function, *arguments, control=()):
    """A call of ``function``, built from tensors of float32 scalars."""
    graph = FuncGraph(get_default_graph(), "f")
    with graph:
        parameters = [graph.parameter(TensorSpec(tf.float32, ()), f"p{i}") for i in range(len(arguments))]
        results = function(*parameters)
    with tf.control_dependencies(control):
        return op(
            "PartitionedCall",
            list(arguments),
            f=graph.subgraph(results),
            Tout=[r.dtype for r in results],
            name="call",
        )


# --- branches


def test_without_control_flow_nothing_changes():
    x = tf.placeholder(tf.float32, [])
    before = subgraph_of([x * 2.0], feeds=[x])
    assert lower(before) is before


def test_an_if_is_a_case_over_a_bool():
    x, pred = tf.placeholder(tf.float32, []), tf.placeholder(tf.bool, [], name="pred")
    y = tf.cond(pred, lambda: x * 2.0, lambda: x - 1.0)
    node = only(lowered([y], feeds=[x, pred]), "_Case")
    assert node.inputs[0] == ("pred", 0)
    assert node.attrs["Tindex"] is tf.bool
    assert [names(b)[-1] for b in node.attrs["branches"]] == ["Sub", "Mul"]  # False is 0
    assert node.op.effect is Effect.NESTED


def test_a_case_keeps_the_order_of_its_branches():
    x, index = tf.placeholder(tf.float32, []), tf.placeholder(tf.int32, [])
    y = tf.switch_case(index, [lambda: x * 2.0, lambda: x - 1.0], default=lambda: tf.exp(x))
    node = only(lowered([y], feeds=[x, index]), "_Case")
    assert node.attrs["Tindex"] is tf.int32
    assert [names(b)[-1] for b in node.attrs["branches"]] == ["Mul", "Sub", "Exp"]


def test_what_is_in_functions_is_lowered_too():
    x, pred = tf.placeholder(tf.float32, []), tf.placeholder(tf.bool, [])
    inner = lambda: tf.while_loop(lambda y: y < 9.0, lambda y: y * 2.0, [x])  # noqa: E731
    y = tf.cond(pred, lambda: tf.cond(x > 1.0, inner, lambda: x), lambda: x)
    outer = only(lowered([y], feeds=[x, pred]), "_Case")
    branch = only(outer.attrs["branches"][1], "_Case")
    assert only(branch.attrs["branches"][1], "_Loop")


# --- loops


def test_the_condition_stands_in_front_and_at_the_end_of_the_body():
    limit = tf.placeholder(tf.int32, [], name="limit")
    n = tf.while_loop(lambda i: tf.less(i, limit), lambda i: tf.add(i, 1), [tf.constant(0)], name="loop")
    after = lowered([n], feeds=[limit])
    loop, first = only(after, "_Loop"), only(after, "Less")
    body = loop.attrs["body"]
    assert loop.inputs[0] == (first.name, 0)
    assert [n for n in names(body) if n not in ("_Feed", "Const")] == ["AddV2", "Less"]
    assert body.nodes[body.fetches[0][0]].op.name == "Less"
    added, compared = body.fetches[1], body.nodes[body.fetches[0][0]]
    assert compared.inputs[0] == added  # of the next iteration


def test_what_a_body_hands_on_is_invariant():
    x = tf.placeholder(tf.float32, [3], name="x")
    _, y, z = tf.while_loop(
        lambda i, y, z: i < 3, lambda i, y, z: (i + 1, y + x, z), [0, tf.zeros([3]), tf.ones([3])]
    )
    after = lowered([y, z], feeds=[x])
    loop = only(after, "_Loop")
    assert len(loop.outputs) == len(loop.attrs["T"]) == 2
    assert len(loop.attrs["C"]) == 2  # z and the captured x
    assert after.fetches[1] != (loop.name, 2)
    assert after.nodes[after.fetches[1][0]].op.name != "_Loop"  # z is what it was before the loop


def test_swapped_variables_are_not_invariant():
    _, a, b = tf.while_loop(lambda i, a, b: i < 3, lambda i, a, b: (i + 1, b, a), [0, 1.0, 2.0])
    loop = only(lowered([a, b]), "_Loop")
    assert len(loop.attrs["T"]) == 3
    assert loop.attrs["C"] == ()


def test_a_condition_with_an_effect_has_it_in_front_and_in_the_body():
    v = tf.Variable(0)
    n = tf.while_loop(lambda i: v.assign_add(1) < 5, lambda i: i + 1, [tf.constant(0)])
    after = lowered([n])
    assert [n.op.name for n in after if n.op.effect is Effect.WRITE] == ["AssignAddVariableOp"]
    body = only(after, "_Loop").attrs["body"]
    assert [n.op.name for n in body if n.op.effect is Effect.WRITE] == ["AssignAddVariableOp"]
    assert is_stateful(only(after, "_Loop"))


def test_what_the_loop_waits_for_comes_before_its_first_condition():
    x = tf.placeholder(tf.float32, [])
    with tf.control_dependencies([tf.no_op(name="before")]):
        n = tf.while_loop(lambda i: i < 3.0, lambda i: i + 1.0, [x])
    after = lowered([n], feeds=[x])
    assert "before" in ancestors(after, only(after, "Less"))
    assert only(after, "_Loop").controls == ("before",)


# --- calls


def test_a_call_becomes_its_operations():
    x = tf.placeholder(tf.float32, [], name="x")
    y, z = call(lambda p: [p * 2.0, p], x)
    after = lowered([y, z], feeds=[x])
    assert "PartitionedCall" not in names(after)
    assert after.fetches[1] == ("x", 0)
    assert only(after, "Mul").inputs[0] == ("x", 0)
    assert only(after, "Mul").name.startswith("call/")
    assert evaluate(after, {"x": 3.0}) == [6, 3]


def test_what_waits_for_a_call_waits_for_its_results():
    x = tf.placeholder(tf.float32, [], name="x")
    (y,) = call(lambda p: [p * 2.0], x)
    with tf.control_dependencies([y.op]):
        last = tf.constant(1.0, name="last")
    after = lowered([last], feeds=[x])
    assert after.nodes["last"].controls == ("call",)
    assert after.nodes["call"].op.name == "NoOp"
    assert after.nodes["call"].controls == (only(after, "Mul").name,)


def test_what_a_call_waits_for_comes_before_its_operations():
    x = tf.placeholder(tf.float32, [], name="x")
    (y,) = call(lambda p: [tf.exp(p * 2.0)], x, control=[tf.no_op(name="before")])
    after = lowered([y], feeds=[x])
    assert "before" in ancestors(after, only(after, "Mul"))
    assert only(after, "Exp").controls == ()  # it comes after the product


def test_two_calls_of_one_function_have_names_of_their_own():
    x = tf.placeholder(tf.float32, [], name="x")
    graph = FuncGraph(get_default_graph(), "f")
    with graph:
        parameter = graph.parameter(TensorSpec(tf.float32, ()), "p")
        result = parameter * 3.0
    function = graph.subgraph([result])
    (once,) = op("PartitionedCall", [x], f=function, Tout=[tf.float32], name="a")
    (twice,) = op("PartitionedCall", [once], f=function, Tout=[tf.float32], name="b")
    after = lowered([twice], feeds=[x])
    assert evaluate(after, {"x": 2.0}) == [18]
    assert len([line for line in lines(after) if "Mul(" in line]) == 2
