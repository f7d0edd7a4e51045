from __future__ import annotations

import numpy as np
import pytest

from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.passes.optimise.merge import MAX_KEY_BYTES, eliminate_common_subexpressions, merge_constants
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def merged(*fetches, targets=(), feeds=()):
    before = order_effects(subgraph_of(fetches, targets, feeds))
    seen = snapshot(before)
    after = eliminate_common_subexpressions(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert eliminate_common_subexpressions(after) is after
    return after


def assert_not_merged(*fetches, targets=(), feeds=()):
    before = order_effects(subgraph_of(fetches, targets, feeds))
    assert eliminate_common_subexpressions(before) is before


@pytest.fixture
def x():
    return placeholder("float32", [2], name="x")


def test_equal_nodes_become_the_first_of_them(x):
    y = op("AddV2", op("Exp", x, name="a"), op("Exp", x, name="b"), name="y")
    assert lines(merged(y, feeds=[x])) == ["x = _Feed()", "a = Exp(x)", "y = AddV2(a, a)"]


def test_merging_goes_through_a_whole_expression(x):
    first, second = (op("Neg", op("Exp", x)) for _ in range(2))
    after = merged(first, second, feeds=[x])
    assert lines(after) == ["x = _Feed()", "Exp = Exp(x)", "Neg = Neg(Exp)"]
    assert after.fetches == (("Neg", 0), ("Neg", 0))


def test_a_commutative_op_is_merged_in_either_order(x):
    y = op("Exp", x)
    after = merged(op("Mul", x, y, name="a"), op("Mul", y, x, name="b"), feeds=[x])
    assert after.fetches == (("a", 0), ("a", 0))


def test_other_ops_are_merged_in_one_order_only(x):
    y = op("Exp", x)
    assert_not_merged(op("Sub", x, y), op("Sub", y, x), feeds=[x])


def test_equal_constants_are_merged():
    after = merged(constant([1.0, 2.0], name="a"), constant([1.0, 2.0], name="b"))
    assert after.fetches == (("a", 0), ("a", 0))


@pytest.mark.parametrize(
    "other",
    [
        np.array([0, 0], np.int32),
        np.zeros((2, 1), np.float32),
        np.array([0.0, -0.0], np.float32),
        np.array([0, 1], np.float32),
    ],
    ids=["dtype", "shape", "sign of zero", "value"],
)
def test_constants_that_differ_are_not_merged(other):
    fetches = constant(np.zeros(2, np.float32)), constant(other)
    assert_not_merged(*fetches)
    before = subgraph_of(fetches)
    assert merge_constants(before) is before


def test_constants_that_are_not_a_number_are_merged():
    after = merged(constant(np.float32(np.nan)), constant(np.float32(np.nan)))
    assert len(after) == 1


def test_strings_are_merged():
    after = merged(constant(["a", "b"]), constant(["a", "b"]), constant(["a", "c"]))
    assert len(after) == 2


def test_large_constants_are_compared_whole():
    array = np.zeros(MAX_KEY_BYTES, np.float32)
    other = array.copy()
    other[-1] = 1
    after = merged(constant(array, name="a"), constant(array, name="b"), constant(other, name="c"))
    assert [name for name, _ in after.fetches] == ["a", "a", "c"]


def test_an_attribute_that_differs_keeps_nodes_apart(x):
    assert_not_merged(op("Cast", x, DstT="int32"), op("Cast", x, DstT="int64"), feeds=[x])


def test_a_float_attribute_is_compared_by_its_bits(x):
    y = op("Neg", x)
    same = [op("ApproximateEqual", x, y, tolerance=t) for t in (0.0, 0.0, -0.0)]
    assert len({name for name, _ in merged(*same, feeds=[x]).fetches}) == 2


def test_a_device_that_differs_keeps_nodes_apart(x):
    with get_default_graph().device("/cpu:1"):
        there = op("Exp", x)
    assert_not_merged(op("Exp", x), there, feeds=[x])


def test_a_colocation_group_that_differs_keeps_nodes_apart(x):
    assert_not_merged(op("Exp", x), op("Exp", x, _class=("loc:@x",)), feeds=[x])


def test_control_inputs_that_differ_keep_nodes_apart(x):
    with get_default_graph().control_dependencies([constant(1.0)]):
        later = op("Exp", constant(2.0))
    assert_not_merged(op("Exp", constant(2.5)), later)


def test_control_inputs_are_compared_without_order(x):
    graph = get_default_graph()
    a, b = constant(1.0), constant(2.0)
    with graph.control_dependencies([a, b]):
        first = op("Exp", x)
    with graph.control_dependencies([b, a]):
        second = op("Exp", x)
    assert first.op.node.controls != second.op.node.controls
    assert len(set(merged(first, second, feeds=[x]).fetches)) == 1


def test_who_waits_for_a_merged_node_waits_for_the_first():
    a, b = constant(1.0, name="a"), constant(1.0, name="b")
    with get_default_graph().control_dependencies([a, b]):
        y = constant(2.0, name="y")
    assert lines(merged(y)) == ["a = Const(1.0)", "y = Const(2.0) ^a"]


def test_a_target_keeps_its_node(x):
    first, second = op("Exp", x, name="a"), op("Exp", x, name="b")
    before = subgraph_of([first], [second.op], [x])
    after = eliminate_common_subexpressions(before)
    assert after is before


def test_random_nodes_are_never_merged():
    shape = constant([2])
    assert_not_merged(*[op("RandomUniform", shape, seed=1, seed2=2) for _ in range(2)])


def test_handles_are_never_merged():
    handles = [op("VarHandleOp", dtype="float32", shape=[], shared_name="v") for _ in range(2)]
    assert_not_merged(*[op("ReadVariableOp", h, dtype="float32") for h in handles])


def test_reads_between_two_writes_are_merged():
    handle = op("VarHandleOp", dtype="float32", shape=[], name="v")
    value = constant(1.0, name="c")
    read = [op("ReadVariableOp", handle, dtype="float32", name="r1")]
    writes = [op("AssignAddVariableOp", handle, value, name="w1")]
    read += [op("ReadVariableOp", handle, dtype="float32", name=name) for name in ("r2", "r3")]
    writes += [op("AssignAddVariableOp", handle, value, name="w2")]
    after = merged(*read, targets=writes)
    assert [name for name, _ in after.fetches] == ["r1", "r2", "r2"]
    assert lines(after)[2:] == [
        "r1 = ReadVariableOp(v)",
        "w1 = AssignAddVariableOp(v, c) ^r1",
        "r2 = ReadVariableOp(v) ^w1",
        "w2 = AssignAddVariableOp(v, c) ^r2",
    ]


def test_writes_are_never_merged():
    handle = op("VarHandleOp", dtype="float32", shape=[])
    value = constant(1.0)
    assert_not_merged(targets=[op("AssignAddVariableOp", handle, value) for _ in range(2)])


def test_constants_alone_are_merged(x):
    a, b = constant(1.0, name="a"), constant(1.0, name="b")
    before = subgraph_of(
        [op("AddV2", op("Exp", x, name="c"), a, name="y"), op("Exp", x, name="d"), b], feeds=[x]
    )
    after = merge_constants(before)
    verify_subgraph(after)
    assert lines(after) == ["x = _Feed()", "a = Const(1.0)", "c = Exp(x)", "y = AddV2(c, a)", "d = Exp(x)"]
    assert after.fetches == (("y", 0), ("d", 0), ("a", 0))


def test_a_constant_of_another_device_that_waits_or_is_large_stays(x):
    graph, large = get_default_graph(), np.zeros(MAX_KEY_BYTES, np.float32)
    first = constant(1.0)
    with graph.device("/cpu:1"):
        there = constant(1.0)
    with graph.control_dependencies([x]):
        later = constant(1.0)
    before = subgraph_of([first, there, later, constant(large), constant(large)], feeds=[x])
    assert merge_constants(before) is before


def test_a_constant_that_is_a_target_stays():
    first, second = constant(1.0, name="a"), constant(1.0, name="b")
    before = subgraph_of([first], [second.op])
    assert merge_constants(before) is before
