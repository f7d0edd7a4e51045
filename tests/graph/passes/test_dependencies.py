from __future__ import annotations

import pytest

from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.passes.optimise.dependencies import clean_dependencies
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import lines, op, snapshot, subgraph_of


def cleaned(*fetches, targets=(), feeds=()):
    before = subgraph_of(fetches, targets, feeds)
    seen = snapshot(before)
    after = clean_dependencies(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    assert clean_dependencies(after) is after
    return after


def after_(controls, build):
    with get_default_graph().control_dependencies(controls):
        return build()


@pytest.fixture
def x():
    return placeholder("float32", [], name="x")


@pytest.fixture
def draws():
    """Makes nodes that have no effect to order, but are no constants either."""
    shape = constant([2], name="shape")
    return lambda *names: [op("RandomUniform", shape, seed=1, name=name) for name in names]


def test_what_no_root_needs_goes(x):
    y = op("Exp", x, name="y")
    before = subgraph_of([y, op("Neg", x)], feeds=[x]).replace(fetches=(("y", 0),))
    assert lines(clean_dependencies(before)) == ["x = _Feed()", "y = Exp(x)"]


def test_a_control_edge_beside_a_data_edge_goes(x):
    e = op("Exp", x, name="e")
    y = op("Neg", e, name="y")
    y.op.add_control_input(e.op)
    assert lines(cleaned(y, feeds=[x]))[-1] == "y = Neg(e)"


def test_waiting_for_a_constant_a_feed_or_a_handle_goes(x):
    handle, c = op("VarHandleOp", dtype="float32", shape=[]), constant(2.0, name="c")
    y = after_([constant(1.0), x, handle], lambda: op("Exp", c, name="y"))
    assert lines(cleaned(y, feeds=[x]))[-1] == "y = Exp(c)"


def test_waiting_for_a_constant_is_waiting_for_what_it_waits_for(draws):
    (r,) = draws("r")
    c = after_([r], lambda: constant(1.0))
    (y,) = after_([c], lambda: draws("y"))
    assert lines(cleaned(y))[-1] == "y = RandomUniform(shape) ^r"


def test_a_control_edge_that_other_control_edges_imply_goes(draws):
    a, b, c = draws("a", "b", "c")
    b.op.add_control_input(a.op)
    for waited in (a, b):
        c.op.add_control_input(waited.op)
    assert lines(cleaned(c))[-1] == "c = RandomUniform(shape) ^b"


def test_a_control_edge_that_a_data_edge_implies_goes(draws):
    (r,) = draws("r")
    y = op("Neg", op("Exp", r), name="y")
    y.op.add_control_input(r.op)
    assert lines(cleaned(y))[-1] == "y = Neg(Exp)"


def test_a_control_edge_that_orders_something_stays(draws):
    a, b = draws("a", "b")
    b.op.add_control_input(a.op)
    before = subgraph_of([b])
    assert clean_dependencies(before) is before


def test_groups_of_groups_collapse(draws):
    a, b, c, d = draws("a", "b", "c", "d")
    inner = [after_(pair, lambda: op("NoOp")) for pair in ([a, b], [c, d])]
    outer = after_(inner, lambda: op("NoOp", name="all"))
    assert lines(cleaned(targets=[outer]))[-1] == "all = NoOp() ^a ^b ^c ^d"


def test_a_group_that_saves_edges_stays(draws):
    waited = draws("a", "b", "c")
    gate = after_(waited, lambda: op("NoOp", name="gate"))
    ys = after_([gate], lambda: draws("x", "y", "z"))
    after = cleaned(*ys)
    assert [line for line in lines(after) if "^" in line] == [
        "gate = NoOp() ^a ^b ^c",
        "x = RandomUniform(shape) ^gate",
        "y = RandomUniform(shape) ^gate",
        "z = RandomUniform(shape) ^gate",
    ]


def test_a_group_of_one_goes(draws):
    (a,) = draws("a")
    gate = after_([a], lambda: op("NoOp"))
    ys = after_([gate], lambda: draws("y", "z"))
    assert lines(cleaned(*ys))[-2:] == ["y = RandomUniform(shape) ^a", "z = RandomUniform(shape) ^a"]


def test_a_target_keeps_its_node(draws):
    (a,) = draws("a")
    gate = after_([a], lambda: op("NoOp", name="gate"))
    y = after_([gate], lambda: draws("y"))[0]
    assert lines(cleaned(y, targets=[gate]))[-2:] == ["gate = NoOp() ^a", "y = RandomUniform(shape) ^a"]


def test_a_pure_node_that_may_raise_is_still_waited_for(x):
    checked, c = op("EnsureShape", x, shape=()), constant(1.0)
    y = after_([checked], lambda: op("Exp", c))
    before = subgraph_of([y], feeds=[x])
    assert clean_dependencies(before) is before
