"""How a subgraph has become another one: `extension`, and what is more as a subgraph of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.graph.construction.graph_extension import Extension, addition, extension
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import subgraph_of


def chain(length: int) -> Subgraph:
    y = x = tf.placeholder(tf.float32, [3], name="x")
    for _ in range(length):
        y = tf.add(y, x)
    return subgraph_of([y], [], [x])


def without(subgraph: Subgraph, names: Any) -> Subgraph:
    return subgraph.with_nodes(node for node in subgraph if node.name not in names)


@given(st.data())
def test_what_was_dropped_and_added_is_found(data):
    with tf.Graph():
        nodes = list(chain(8))
    cut = data.draw(st.integers(1, len(nodes)))
    dropped = data.draw(st.frozensets(st.sampled_from([n.name for n in nodes[1:]])))
    whole = Subgraph({n.name: n for n in nodes}, feeds=(nodes[0].name,))
    earlier = whole.with_nodes(nodes[:cut])
    later = without(whole, dropped)
    found = extension(earlier, later)
    early = {node.name for node in nodes[:cut]}
    assert found == Extension(dropped & early, tuple(n for n in nodes[cut:] if n.name not in dropped))


def test_another_node_of_the_same_name_is_no_growth():
    earlier = chain(4)
    first, second, *rest = earlier
    assert extension(earlier, earlier.with_nodes([first, second.replace(), *rest])) is None


def test_another_order_is_no_growth():
    earlier = chain(4)
    assert extension(earlier, earlier.with_nodes(list(earlier)[::-1])) is None


def test_other_feeds_are_no_growth():
    earlier = chain(4)
    assert extension(earlier, earlier.replace(feeds=())) is None


def test_an_addition_has_its_constants_and_reads_the_rest_through_parameters():
    x = tf.placeholder(tf.float32, [6])
    first, second = tf.split(tf.exp(x), 2)
    y = tf.reshape(first * second + first, [3, 1])
    whole = subgraph_of([y], [], [x])
    names = list(whole.nodes)
    added = [whole.nodes[name] for name in names[names.index("split") + 1 :]]
    found = addition([node for node in added if node.op.name != "Const"], whole)
    verify_subgraph(found.subgraph.replace(fetches=whole.fetches))
    assert set(found.parameters.values()) == {("split", 0), ("split", 1)}
    assert found.subgraph.feeds == tuple(found.parameters)
    constants = [node.attrs["value"] for node in found.subgraph if node.op.name == "Const"]
    np.testing.assert_array_equal(constants, [[3, 1]])
