"""Seconds of nodes, from a table or from rates."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.graph.node import Node, Subgraph
from flowrt.plan.step.costs import (
    ELEMENTS,
    Costs,
    Demand,
    Rates,
    Timed,
    demand,
    fit_rates,
    is_free,
    signature,
)
from flowrt.plan.step.device_parts import device_parts
from tests.plan.cases import request_of, wide

RATES = Rates({"float32": 1e10, ELEMENTS: 1e9}, bandwidth=1e10, call_s=1e-6)


def _parts_of(build) -> tuple[Subgraph, list[Node]]:
    (part,) = device_parts(request_of(None, build))
    return part.partition.subgraph, list(part.partition.schedule.order)


def _products(*sizes: int, **options: bool):
    """A step of products of a matrix of 4 rows with variables of these sizes."""

    def build():
        x = tf.placeholder(tf.float32, [4, 8], "x")
        made = [tf.matmul(x, tf.get_variable(f"w{i}", [8, n]), **options) for i, n in enumerate(sizes)]
        return {x: np.ones((4, 8), np.float32)}, tf.add_n([tf.reduce_sum(y) for y in made]), tf.no_op()

    return build


def test_a_node_takes_as_long_as_what_it_is_bound_by() -> None:
    assert RATES.seconds(Demand(2e6, 4096, "float32")) == pytest.approx(2e-4 + 1e-6)
    assert RATES.seconds(Demand(2e3, 4_000_000, "float32")) == pytest.approx(4e-4 + 1e-6)
    assert RATES.seconds(Demand(2e6, 4096, "bfloat16")) == pytest.approx(2e-4 + 1e-6)  # as the slowest known
    assert Rates({"float32": 1e10}, 1e10).seconds(Demand(2e6, 4096, ELEMENTS)) == pytest.approx(4096e-10)


def test_a_product_asks_for_its_operations_and_its_bytes() -> None:
    subgraph, order = _parts_of(_products(16))
    (product,) = [node for node in order if node.op.name == "MatMul"]
    assert demand(subgraph, product) == Demand(2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 4 * 16), "float32")


def test_an_update_reads_and_writes_its_variables() -> None:
    subgraph, order = _parts_of(wide)
    update = next(node for node in order if node.op.name == "ResourceApplyAdam")
    whole = 4 * 256 * 256
    assert demand(subgraph, update).nbytes == pytest.approx(7 * whole, rel=1e-3)  # w, m, v twice; gradient


def test_a_signature_has_no_names_but_all_sizes() -> None:
    subgraph, order = _parts_of(_products(16, 16, 24))
    texts = [signature(subgraph, node) for node in order if node.op.name == "MatMul"]
    assert len(texts) == 3
    assert len({*texts}) == 2
    assert "MatMul(float32[4, 8], float32[8, 16]) -> float32[4, 16]" in texts[0]


def test_a_signature_has_options_and_small_constants() -> None:
    def build(axis):
        def step():
            x = tf.get_variable("x", [4, 6, 5])
            return {}, tf.reduce_sum(tf.cumsum(x, axis)), tf.no_op()

        return step

    found = set()
    for axis in (0, 1):
        subgraph, order = _parts_of(build(axis))
        (node,) = [node for node in order if node.op.name == "Cumsum"]
        found.add(signature(subgraph, node))
    assert len(found) == 2


def test_a_fused_group_is_known_by_what_it_computes() -> None:
    def build(function):
        def step():
            x, y = (tf.get_variable(name, [300, 40]) for name in "xy")
            return {}, tf.reduce_sum(function(x)) + tf.reduce_sum(function(y)), tf.no_op()

        return step

    texts = []
    for function in (lambda x: tf.tanh(x) * 2.0, lambda x: tf.tanh(x) * 2.0, lambda x: tf.tanh(x) * 3.0):
        subgraph, order = _parts_of(build(function))
        texts.append({signature(subgraph, node) for node in order if "group" in node.attrs})
    assert texts[0] == texts[1] != texts[2]


def test_the_table_comes_before_the_rates() -> None:
    subgraph, order = _parts_of(_products(16, 24))
    first, second = (node for node in order if node.op.name == "MatMul")
    costs = Costs(RATES, {signature(subgraph, first): 7.0})
    assert costs(subgraph, first) == 7.0
    assert costs(subgraph, second) == RATES.seconds(demand(subgraph, second))
    assert all(costs(subgraph, node) == 0 for node in order if is_free(node))


def test_a_loop_takes_as_long_as_all_its_iterations() -> None:
    def build():
        x = tf.get_variable("x", [16, 16])
        out = tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, tf.matmul(h, h)), (0, x))[1]
        return {}, tf.reduce_sum(out), tf.no_op()

    subgraph, order = _parts_of(build)
    (loop,) = [node for node in order if node.op.name == "_Loop"]
    costs = Costs(Rates({"float32": 1.0, ELEMENTS: 1e12}, 1e12))
    assert costs(subgraph, loop) == pytest.approx(5 * 2 * 16**3, rel=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_planted_rates_are_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    planted = Rates({"float32": 8e10, ELEMENTS: 3e9}, bandwidth=2e10, call_s=4e-7)
    rows = []
    for _ in range(60):
        nbytes = int(10 ** rng.uniform(2, 7))
        is_product = rng.random() < 0.5
        flops = nbytes * 10 ** rng.uniform(-1, 2) if is_product else nbytes / 4 * rng.integers(1, 9)
        asks = Demand(float(flops), nbytes, "float32" if is_product else ELEMENTS)
        rows.append(Timed(asks, planted.seconds(asks)))
    found = fit_rates(rows)
    assert found.r_squared > 0.999
    assert found.rates.bandwidth == pytest.approx(planted.bandwidth, rel=0.1)
    assert found.rates.call_s == pytest.approx(planted.call_s, rel=0.1)
    for rate, wanted in planted.flops.items():
        assert found.rates.flops[rate] == pytest.approx(wanted, rel=0.1)


def test_r_squared_tells_rates_that_explain_nothing() -> None:
    rng = np.random.default_rng(0)
    rows = [Timed(Demand(1e6, 1000, "float32"), 10 ** rng.uniform(-6, -3)) for _ in range(50)]
    assert fit_rates(rows).r_squared < 0.1


@pytest.mark.parametrize("seconds", [[], [1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_too_little_to_fit_is_refused(seconds: list[float]) -> None:
    rows = [Timed(Demand(1.0, 1, "float32"), each) for each in seconds]
    with pytest.raises(InvalidArgumentError, match="two rows or more"):
        fit_rates(rows)
