from __future__ import annotations

import numpy as np

from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.op_def import op_def
from flowrt.graph.passes.optimise.fold import MAX_BYTES, fold_constants
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, outcome, snapshot, subgraph_of


def folded(*fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    after = fold_constants(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert fold_constants(after) is after
    return after


def test_a_pure_node_of_constants_becomes_a_constant_of_the_same_name():
    y = op("Mul", constant(2.0), constant(3.0), name="y")
    assert lines(folded(y)) == ["y = Const(6.0)"]


def test_folding_goes_through_a_whole_expression():
    y = op("Neg", op("AddV2", constant([1, 2]), constant([10, 20])), name="y")
    assert lines(folded(y)) == ["y = Const([-11, -22])"]


def test_what_depends_on_a_feed_is_not_folded():
    x = placeholder("float32", [2], name="x")
    before = subgraph_of([op("AddV2", x, constant(1.0))], feeds=[x])
    assert fold_constants(before) is before


def test_a_fed_constant_is_not_folded():
    c = constant(1.0, name="c")
    before = subgraph_of([op("Neg", c)], feeds=[c])
    assert fold_constants(before) is before


def test_the_shape_of_a_feed_of_known_shape_is_a_constant():
    x = placeholder("float32", [2, 3], name="x")
    y = op("Reshape", x, op("Sub", op("Shape", x, name="dims"), constant([1, -3]), name="to"), name="y")
    assert lines(folded(y, feeds=[x])) == ["x = _Feed()", "to = Const([1, 6])", "y = Reshape(x, to)"]


def test_a_shape_folds_to_the_dtype_it_was_asked_for():
    x = placeholder("float32", [2, 3], name="x")
    after = folded(op("Size", x, out_type="int64", name="n"), feeds=[x])
    assert after.nodes["n"].attrs["value"].dtype == np.int64
    assert after.nodes["n"].outputs[0].dtype.name == "int64"


def test_a_shape_that_is_known_in_part_is_not_folded():
    x = placeholder("float32", [None, 3], name="x")
    before = subgraph_of([op("Shape", x)], feeds=[x])
    assert fold_constants(before) is before


def test_shape_arithmetic_that_overflows_is_left_to_the_kernel():
    x = placeholder("float32", [2**16, 2**16])
    before = subgraph_of([op("Size", x)], feeds=[x])
    assert fold_constants(before) is before


def test_a_node_whose_kernel_raises_is_left_to_run_time():
    bad = op("FloorDiv", constant(1), constant(0), name="bad")
    before = subgraph_of([bad])
    assert fold_constants(before) is before


def test_a_large_result_of_small_inputs_is_not_folded():
    before = subgraph_of([op("Fill", constant([300]), constant(1.0))])
    assert fold_constants(before) is before


def test_a_small_result_is_folded_however_small_its_inputs():
    assert lines(folded(op("Fill", constant([3]), constant(1.0), name="y"))) == ["y = Const([1.0, 1.0, 1.0])"]


def test_a_result_beyond_the_limit_is_not_folded():
    large = constant(np.zeros(MAX_BYTES // 4 + 1, np.float32))
    before = subgraph_of([op("Neg", large)])
    assert fold_constants(before) is before


def test_random_nodes_are_not_folded():
    before = subgraph_of([op("RandomUniform", constant([2]), seed=1, seed2=2)])
    assert fold_constants(before) is before


def test_a_node_that_touches_the_world_is_not_folded():
    before = subgraph_of([op("Timestamp")])
    assert fold_constants(before) is before


def test_a_folded_node_keeps_its_control_inputs():
    x, c = placeholder("float32", [], name="x"), constant(1.0)
    with get_default_graph().control_dependencies([x]):
        y = op("Neg", c, name="y")
    assert lines(folded(y, feeds=[x])) == ["x = _Feed()", "y = Const(-1.0) ^x"]


def test_a_folded_node_waits_for_an_input_that_waited():
    x = placeholder("float32", [], name="x")
    with get_default_graph().control_dependencies([x]):
        c = constant(1.0, name="c")
    y = op("Neg", c, name="y")
    assert lines(folded(y, feeds=[x])) == ["x = _Feed()", "c = Const(1.0) ^x", "y = Const(-1.0) ^c"]


def test_a_folded_node_keeps_its_device_and_colocation():
    with get_default_graph().device("/cpu:1"):
        y = op("Neg", constant(1.0), name="y", _class=("loc:@v",))
    after = folded(y)
    assert after.nodes["y"].device == "/device:CPU:1"
    assert after.nodes["y"].attrs["_class"] == ("loc:@v",)


def test_an_effect_behind_a_folded_shape_still_happens():
    handle = op("VarHandleOp", dtype="float32", shape=[], name="v")
    assign = op("AssignVariableOp", handle, constant(5.0), name="assign")
    with get_default_graph().control_dependencies([assign]):
        read = op("ReadVariableOp", handle, dtype="float32")
    after = folded(op("Shape", op("Neg", read, name="negative"), name="y"))
    assert lines(after)[-1] == "y = Const([]) ^negative"
    left = outcome(after, {}, {"v": np.zeros((), np.float32)})[-1]
    assert left["v"] == ("float32", (), np.float32(5).tobytes())


def test_a_folded_shape_does_not_keep_what_has_no_effect():
    handle = op("VarHandleOp", dtype="float32", shape=[2])
    read = op("ReadVariableOp", handle, dtype="float32")
    assert lines(folded(op("Shape", op("Neg", read), name="y"))) == ["y = Const([2])"]


def test_each_output_of_a_folded_node_that_is_read_becomes_a_constant():
    a, _, c = op("Unpack", constant([1.0, 2.0, 3.0]), num=3, name="u")
    x = placeholder("float32", [], name="x")
    after = folded(op("AddV2", x, c, name="y"), a, feeds=[x])
    assert lines(after) == [
        "u/folded_0 = Const(1.0)",
        "u/folded_2 = Const(3.0)",
        "x = _Feed()",
        "y = AddV2(x, u/folded_2)",
    ]
    assert after.fetches == (("y", 0), ("u/folded_0", 0))


def test_a_target_with_several_outputs_keeps_its_node():
    a, _ = op("Unpack", constant([1.0, 2.0]), num=2, name="u")
    after = folded(a, targets=[a.op])
    assert "u" in after.nodes
    assert after.targets == ("u",)


def test_a_name_that_is_taken_is_not_used_for_a_folded_output():
    a, _ = op("Unpack", constant([1.0, 2.0]), num=2, name="u")
    taken = constant(7.0, name="u/folded_0")
    after = folded(a, taken)
    assert after.fetches == (("u/folded_0_1", 0), ("u/folded_0", 0))


def test_what_only_a_folded_node_needed_goes():
    used = constant(2.0, name="used")
    y = op("AddV2", used, constant(3.0, name="unused"), name="y")
    assert lines(folded(y, used)) == ["used = Const(2.0)", "y = Const(5.0)"]


def test_a_folded_value_is_bitwise_what_the_kernel_gives():
    x = constant(np.array([np.nan, -0.0, np.inf, 1e-45], np.float32))
    fetches = [op_def(name)(x) for name in ("Neg", "Exp", "Sqrt")]
    before = subgraph_of(fetches)
    assert outcome(fold_constants(before)) == outcome(before)
