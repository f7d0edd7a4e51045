"""The pipeline: each stage keeps the contract that it declares, and its text says what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.spec import parse_device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.lower.schedule import loop_compilers
from flowrt.graph.node import Subgraph, owned_subgraphs
from flowrt.graph.passes.pipeline import (
    PIPELINE,
    CompileOptions,
    Observer,
    State,
    compile_step,
    cut,
    format_pipeline,
    parse_pipeline,
    stages_from,
)
from flowrt.graph.passes.prepare.extend import Recent
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.each import nightly
from tests.graph.passes.cases import outcome, snapshot
from tests.graph.passes.test_random_graphs import RandomGraph

CPUS = [parse_device(f"/job:localhost/replica:0/task:0/device:CPU:{i}") for i in range(3)]
OPTIONS = CompileOptions(CPUS, loops=loop_compilers(CPUS[:1]))


class Noted(Observer):
    def __init__(self) -> None:
        self.seen: list[tuple[str, Subgraph]] = []

    def after(self, name: str, subgraph: Subgraph) -> None:
        self.seen.append((name, subgraph))


def request_of(made: RandomGraph) -> StepRequest:
    operations = made.graph.get_operations()
    by_name = {op.name: op for op in operations}
    fetches = [by_name[name].outputs[index] for name, index in made.subgraph.fetches]
    targets = [by_name[name] for name in made.subgraph.targets]
    return StepRequest(made.graph, fetches, targets, {t: t.spec.shape for t in made.fed})


def loop_request() -> StepRequest:
    x = tf.placeholder(tf.float32, [None, None], name="x")
    ends = tf.while_loop(
        lambda i, h: i < 3, lambda i, h: (i + 1, tf.tanh(h @ x) + tf.exp(h) * 2.0 * 1.0), (0, x)
    )
    chosen = tf.cond(ends[0] > 2, lambda: ends[1] * (1.0 + 1.0), lambda: ends[1] - x)
    return StepRequest(tf.get_default_graph(), [chosen], [], {x: (4, 4)})


# --- the contract


@pytest.mark.parametrize("seed", nightly(range(40), 15))
def test_a_stage_leaves_its_input_alone_and_its_output_is_valid(seed: int) -> None:
    work: Any = request_of(RandomGraph(seed))
    for stage in PIPELINE:
        before = snapshot(work) if isinstance(work, Subgraph) else None
        made = stage.apply(work, OPTIONS, stage.passes)
        assert before is None or snapshot(work) == before, stage.name
        for part in made.values() if isinstance(made, dict) else [made]:
            verify_subgraph(part)
        work = made


def functions_in(work: Any) -> list[Subgraph]:
    parts = work.values() if isinstance(work, dict) else [work]
    return [f for part in parts for node in part for f in owned_subgraphs(node.attrs)]


def test_the_stages_that_enter_functions_are_those_that_say_so() -> None:
    """Of a graph whose functions give every such stage something to do."""
    work: Any = loop_request()
    entered = {stage.name: False for stage in PIPELINE}
    kept = set[int]()
    for stage in PIPELINE:
        work = stage.apply(work, OPTIONS, stage.passes)
        functions = functions_in(work)
        entered[stage.name] |= stage.name != "extract" and any(id(f) not in kept for f in functions)
        kept = {id(f) for f in functions}
    for stage in PIPELINE:
        assert stage.enters_functions or not entered[stage.name], stage.name
    assert {"infer_shapes", "optimise", "place", "fuse"} <= {name for name, did in entered.items() if did}


@pytest.mark.parametrize("seed", nightly(range(40), 15))
def test_stages_that_take_additions_give_the_same_for_a_request_that_grows(seed: int) -> None:
    made, recent = RandomGraph(seed), Recent()
    first = request_of(made)
    whole = compile_step(first, OPTIONS, recent)
    assert snapshot_of(whole) == snapshot_of(compile_step(first, OPTIONS))
    with made.graph.as_default():
        more = [tf.negative(t) for t in first.fetches if t.dtype is tf.float32][:2]
    later = first._replace(fetches=[*first.fetches, *more])
    extended, anew = compile_step(later, OPTIONS, recent), compile_step(later, OPTIONS)
    verify_subgraph(extended)
    assert [extended.spec(ref) for ref in extended.fetches] == [anew.spec(ref) for ref in anew.fetches]
    assert outcome(extended, made.feeds, made.initial) == outcome(anew, made.feeds, made.initial)


def snapshot_of(subgraph: Subgraph) -> list[tuple[str, str, str]]:
    return [(node.name, node.op.name, node.device) for node in subgraph]


# --- its text


def test_the_pipeline_reads_what_it_writes() -> None:
    assert parse_pipeline(format_pipeline(PIPELINE))[-1] == PIPELINE[-1]
    assert format_pipeline(parse_pipeline(format_pipeline(PIPELINE))) == format_pipeline(PIPELINE)
    assert format_pipeline(PIPELINE) == (
        "extract, check_set_shapes, lower, order_effects, infer_shapes,"
        " optimise(fold_constants, simplify, eliminate_common_subexpressions, clean_dependencies),"
        " infer_shapes, mixed_precision, lower_layouts, place, lower_collectives, split, partition,"
        " fuse(channels_last, fold_factors, gather_slices, lay_out_factors, narrow_products,"
        " read_rows_in_place, accumulate_products, fuse_epilogues, fuse)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("extract, plce", "expected a stage: extract, check_set_shapes, lower, "),
        ("extract, plce", "; got 'plce'. Nearest: place"),
        ("extract, optimise(simplfy)", "expected a pass of 'optimise': fold_constants, simplify, "),
        ("extract, optimise(simplfy)", "got 'simplfy'. Nearest: simplify"),
        ("extract, place, optimise(simplfy)", "got 'simplfy'. Nearest: simplify"),
        ("lower", "'lower' needs 'extract', which must come before it"),
        ("extract, partition", "'partition' needs 'split'"),
        ("extract, place, optimise", "expected 'optimise' before 'place': the step is placed then"),
        ("extract, place(soft)", "'place' has no passes to choose; got place(soft)"),
        ("extract; place", "cannot be read from 'extract; place' on"),
        ("extract, optimise(", "cannot be read from ' optimise(' on"),
        ("extract, extract", "expected 'extract' only once"),
        ("extract, place, split, partition, partition", "expected 'partition' only once"),
        ("extract, optimise()", "expected passes of 'optimise' in the parentheses; got none"),
        ("", "expected at least one stage"),
        (" , ", "cannot be read"),
    ],
)
def test_a_text_that_is_no_pipeline_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as refused:
        parse_pipeline(text)
    assert message in refused.value.message


def test_only_the_stages_of_the_text_run() -> None:
    x = tf.placeholder(tf.float32, [3])
    y = (x + 0.0) * (tf.constant(2.0) * 3.0)
    noted = Noted()
    request = StepRequest(tf.get_default_graph(), [y], [], {x: (3,)})
    options = replace(OPTIONS, observer=noted)
    folded = compile_step(request, options, pipeline=parse_pipeline("extract, optimise(fold_constants)"))
    assert [name for name, _ in noted.seen if name != "optimise_functions"][:2] == [
        "extract",
        "fold_constants",
    ]
    assert {name for name, _ in noted.seen} == {"extract", "fold_constants", "optimise_functions", "optimise"}
    (six,) = [n.attrs["value"] for n in folded if n.op.name == "Const" and n.attrs["value"] == 6]
    assert six == np.float32(6)
    assert not any(node.device for node in folded)


def test_a_subgraph_enters_behind_extract_and_leaves_in_parts() -> None:
    request = loop_request()
    extracted = compile_step(request, OPTIONS, pipeline=PIPELINE[:1])
    placed = compile_step(extracted, OPTIONS)
    assert snapshot_of(placed) == snapshot_of(compile_step(request, OPTIONS))
    assert [stage.name for stage in stages_from("split")] == ["split", "partition", "fuse"]
    parts = cut(placed, OPTIONS)
    assert list(parts) == [CPUS[0].to_string()]
    assert len(parts[CPUS[0].to_string()]) <= len(placed)


def test_states_never_go_back_in_the_pipeline() -> None:
    order = list(State)
    numbers = [order.index(stage.state) for stage in PIPELINE]
    assert numbers == sorted(numbers)
    names = [stage.name for stage in PIPELINE]
    assert all(not s.needs or names.index(s.needs) < names.index(s.name) for s in PIPELINE)
