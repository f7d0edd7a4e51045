from __future__ import annotations

import numpy as np
import pytest

from flowrt.errors import InternalError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.node import TensorSpec
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import op, subgraph_of


@pytest.fixture
def good():
    x = placeholder("float32", [2], name="x")
    y = op("AddV2", x, constant(1.0, name="c"), name="y")
    return subgraph_of([y], [y.op], [x])


def with_node(subgraph, name, **changes):
    return subgraph.with_nodes(n.replace(**changes) if n.name == name else n for n in subgraph)


def assert_refused(subgraph, *words):
    with pytest.raises(InternalError) as caught:
        verify_subgraph(subgraph)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_good_subgraph_passes(good):
    verify_subgraph(good)


def test_a_node_before_its_input_is_refused(good):
    assert_refused(good.with_nodes(reversed(list(good))), "'y'", "to come before it")


def test_an_input_that_does_not_exist_is_refused(good):
    assert_refused(with_node(good, "y", inputs=(("x", 0), ("gone", 0))), "'y'", "'gone'")


def test_an_output_that_does_not_exist_is_refused(good):
    assert_refused(with_node(good, "y", inputs=(("x", 0), ("c", 1))), "'y'", "got number 1")


def test_a_control_input_that_does_not_exist_is_refused(good):
    assert_refused(with_node(good, "y", controls=("gone",)), "'y'", "'gone'")


def test_a_control_input_given_twice_is_refused(good):
    assert_refused(with_node(good, "y", controls=("x", "x")), "'y'", "once")


def test_a_constant_that_is_no_array_is_refused(good):
    c = good.nodes["c"]
    attrs = {**c.attrs, "value": np.float32(1)}
    assert_refused(with_node(good, "c", attrs=attrs), "'c'", "expected an array as the value")


def test_an_input_of_another_dtype_is_refused(good):
    c = constant(1)
    node = c.op.node.replace(name="c")
    assert_refused(
        good.replace(nodes={**good.nodes, "c": node}), "'y'", "inputs of dtypes (float32, float32)"
    )


def test_outputs_that_are_not_the_signatures_are_refused(good):
    spec = TensorSpec(constant(1).dtype, (2,))
    assert_refused(with_node(good, "y", outputs=(spec,)), "'y'", "outputs of dtypes (float32); got (int32)")


def test_a_node_under_another_name_is_refused(good):
    assert_refused(good.replace(nodes={**good.nodes, "z": good.nodes["y"]}), "'z'", "its own name")


@pytest.mark.parametrize("ends", [{"feeds": ("g",)}, {"fetches": (("y", 1),)}, {"targets": ("g",)}])
def test_an_end_that_does_not_exist_is_refused(good, ends):
    assert_refused(good.replace(**ends), "expected")
