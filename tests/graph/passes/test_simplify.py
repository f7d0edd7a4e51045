from __future__ import annotations

import numpy as np
import pytest

from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.passes.optimise.simplify import simplify
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def simplified(*fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    after = simplify(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert simplify(after) is after
    return after


def is_simplified(*fetches, feeds=()):
    before = subgraph_of(fetches, (), feeds)
    return simplify(before) is not before


@pytest.fixture
def x():
    return placeholder("float32", [2, 3], name="x")


@pytest.fixture
def n():
    return placeholder("int32", [2], name="n")


def test_a_chain_of_identities_goes(x):
    y = op("Exp", op("StopGradient", op("PreventGradient", op("Identity", x))), name="y")
    assert lines(simplified(y, feeds=[x])) == ["x = _Feed()", "y = Exp(x)"]


def test_a_fetched_identity_becomes_a_fetch_of_its_input(x):
    assert simplified(op("Identity", x), feeds=[x]).fetches == (("x", 0),)


def test_each_output_of_several_identities_is_its_input(x, n):
    first, second = op("IdentityN", [x, n])
    after = simplified(first, second, feeds=[x, n])
    assert after.fetches == (("x", 0), ("n", 0))


def test_several_identities_with_an_effect_behind_one_stay(x):
    handle = op("VarHandleOp", dtype="float32", shape=[])
    assign = op("AssignVariableOp", handle, constant(1.0))
    with get_default_graph().control_dependencies([assign]):
        read = op("ReadVariableOp", handle, dtype="float32")
    assert not is_simplified(op("IdentityN", [x, read])[0], feeds=[x])


def test_an_identity_with_control_inputs_stays(x, n):
    with get_default_graph().control_dependencies([n]):
        y = op("Identity", x)
    assert not is_simplified(y, feeds=[x, n])


def test_an_identity_on_another_device_stays(x):
    with get_default_graph().device("/cpu:1"):
        y = op("Identity", x)
    assert not is_simplified(y, feeds=[x])


def test_an_identity_on_the_device_of_its_input_goes(x):
    with get_default_graph().device("/cpu:1"):
        y = op("Identity", op("Exp", x, name="y"))
    assert simplified(y, feeds=[x]).fetches == (("y", 0),)


def test_who_waits_for_an_identity_waits_for_its_input(x):
    waited = op("Identity", op("Exp", x, name="e"))
    with get_default_graph().control_dependencies([waited]):
        y = constant(1.0, name="y")
    assert lines(simplified(y, feeds=[x])) == ["x = _Feed()", "e = Exp(x)", "y = Const(1.0) ^e"]


def test_a_target_keeps_its_node(x):
    target = op("Identity", x, name="t")
    after = simplified(op("Exp", target, name="y"), targets=[target.op], feeds=[x])
    assert lines(after) == ["x = _Feed()", "t = Identity(x)", "y = Exp(x)"]


@pytest.mark.parametrize("name", ["Neg", "LogicalNot", "Invert", "Conj"])
def test_what_undoes_itself_goes_in_pairs(name):
    dtype = {"Neg": "float32", "LogicalNot": "bool", "Invert": "int8", "Conj": "complex64"}[name]
    x = placeholder(dtype, [2], name="x")
    y = x
    for _ in range(5):
        y = op(name, y, name="y")
    assert lines(simplified(y, feeds=[x])) == ["x = _Feed()", f"y_4 = {name}(x)"]


def test_two_different_ops_do_not_undo_each_other(x):
    assert not is_simplified(op("Log", op("Exp", x)), feeds=[x])


def test_an_inner_node_with_control_inputs_is_not_bypassed(x, n):
    with get_default_graph().control_dependencies([n]):
        inner = op("Neg", x)
    assert not is_simplified(op("Neg", inner), feeds=[x, n])


@pytest.mark.parametrize(
    "build",
    [
        lambda n: op("AddV2", n, constant(0)),
        lambda n: op("AddV2", constant(0), n),
        lambda n: op("Sub", n, constant([0, 0])),
        lambda n: op("Mul", constant([1, 1]), n),
        lambda n: op("Div", n, constant(1)),
        lambda n: op("AddN", [n]),
        lambda n: op("Cast", n, DstT="int32"),
        lambda n: op("Reshape", n, constant([2])),
        lambda n: op("Transpose", n, constant([-1])),
        lambda n: op("EnsureShape", n, shape=(None,)),
        lambda n: op("Squeeze", op("ExpandDims", n, constant(0)), squeeze_dims=(0,)),
    ],
)
def test_a_node_that_changes_nothing_goes(n, build):
    assert simplified(build(n), feeds=[n]).fetches == (("n", 0),)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op("Sub", x, constant(0.0)),
        lambda x: op("AddV2", x, constant(-0.0)),
        lambda x: op("Mul", x, constant(1.0)),
        lambda x: op("RealDiv", x, constant(1.0)),
    ],
)
def test_a_float_is_simplified_where_every_bit_stays(x, build):
    assert simplified(build(x), feeds=[x]).fetches == (("x", 0),)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op("AddV2", x, constant(0.0)),
        lambda x: op("Sub", x, constant(-0.0)),
        lambda x: op("Mul", x, constant(0.0)),
        lambda x: op("Reciprocal", op("Reciprocal", x)),
        lambda x: op("Sub", constant(0.0), x),
        lambda x: op("RealDiv", constant(1.0), x),
        lambda x: op("AddN", [x, x]),
    ],
)
def test_a_float_is_left_alone_where_a_bit_may_change(x, build):
    assert not is_simplified(build(x), feeds=[x])


def test_complex_products_are_left_alone():
    z = placeholder("complex64", [2])
    assert not is_simplified(op("Mul", z, constant(np.complex64(1))), feeds=[z])


def test_a_neutral_element_that_broadcasts_stays(n):
    assert not is_simplified(op("Mul", n, constant([[1], [1]])), feeds=[n])


def test_a_neutral_array_beside_an_unknown_shape_stays():
    n = placeholder("int32", [None])
    assert not is_simplified(op("Mul", n, constant([1, 1])), feeds=[n])


def test_a_neutral_scalar_beside_an_unknown_shape_goes():
    n = placeholder("int32", None, name="n")
    assert simplified(op("Mul", n, constant(1)), feeds=[n]).fetches == (("n", 0),)


def test_a_reshape_of_reshapes_reads_the_first_input(x):
    flat = op("Reshape", op("ExpandDims", x, constant(0)), constant([6]))
    y = op("Reshape", flat, constant([3, -1], name="to"), name="y")
    assert lines(simplified(y, feeds=[x])) == ["x = _Feed()", "to = Const([3, -1])", "y = Reshape(x, to)"]


def test_reshapes_there_and_back_go(x):
    y = op("Reshape", op("Reshape", x, constant([6])), constant([2, -1]))
    assert simplified(y, feeds=[x]).fetches == (("x", 0),)


def test_a_reshape_that_may_have_an_error_to_raise_stays():
    x = placeholder("float32", [None], name="x")
    y = op("Reshape", op("Reshape", x, constant([3, -1])), constant([-1]))
    assert not is_simplified(y, feeds=[x])


def test_a_transpose_that_undoes_the_one_before_it_goes():
    x = placeholder("float32", [2, 3, 4], name="x")
    there = op("Transpose", x, constant([1, 2, 0]))
    assert simplified(op("Transpose", there, constant([2, 0, 1])), feeds=[x]).fetches == (("x", 0),)
    assert not is_simplified(op("Transpose", there, constant([1, 2, 0])), feeds=[x])


def test_a_shape_check_of_an_unknown_shape_stays():
    x = placeholder("float32", [None], name="x")
    assert not is_simplified(op("EnsureShape", x, shape=(2,)), feeds=[x])


@pytest.mark.parametrize("shape", [[], [2, 3]])
def test_a_choice_between_elements_becomes_elementwise(x, shape):
    condition = placeholder("bool", shape, name="c")
    chosen = op("Select", condition, x, x, name="y")
    assert lines(simplified(chosen, feeds=[condition, x]))[-1] == "y = SelectV2(c, x, x)"


@pytest.mark.parametrize("shape", [[2], None])
def test_a_choice_that_is_between_rows_or_may_be_stays(x, shape):
    condition = placeholder("bool", shape)
    assert not is_simplified(op("Select", condition, x, x), feeds=[condition, x])


@pytest.mark.parametrize("name", ["Sum", "Mean", "Prod", "Max", "Min"])
@pytest.mark.parametrize("keep_dims", [True, False])
def test_a_reduction_along_no_axes_goes(x, name, keep_dims):
    y = op("Exp", op(name, x, np.zeros(0, np.int32), keep_dims=keep_dims), name="y")
    assert lines(simplified(y, feeds=[x])) == ["x = _Feed()", "y = Exp(x)"]


def test_a_reduction_along_axes_that_are_not_known_stays(x, n):
    assert not is_simplified(op("Sum", x, n), feeds=[x, n])
    assert not is_simplified(op("EuclideanNorm", x, np.zeros(0, np.int32)), feeds=[x])
