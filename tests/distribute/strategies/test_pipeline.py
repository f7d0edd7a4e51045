"""`PipelineStrategy`: losses and variables are those of one device; order, memory, and what is an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.stages.assign_stages import assign_stages
from flowrt.graph.passes.layouts.stages.recompute_stages import recompute_stages
from flowrt.graph.pipeline.replay import held_passes
from flowrt.variables.distribution_context import unopened_strategies
from tests.distribute.strategies.nets_in_stages import (
    CONFIG,
    PLAN,
    At,
    Net,
    Trained,
    accumulating,
    adam,
    agree,
    averaging,
    branching,
    built,
    checking,
    clipped,
    counting,
    embeddings,
    fed_by_dataset,
    gpt,
    looping,
    losses_of_epochs,
    lstm,
    mlp,
    recomputing,
    scaling,
    trained,
    weighted,
)
from tests.each import nightly

Axis, Mesh, Strategy = tf.distribute.Axis, tf.distribute.Mesh, tf.distribute.PipelineStrategy

EIGHT = functools.partial(gpt, blocks=8)
NETS: dict[str, Callable[..., Net]] = {
    "gpt": gpt,
    "gpt of 8 blocks": EIGHT,
    "gpt of many lengths": functools.partial(gpt, lengths=(5, 3, 6)),
    "gpt of even batches": functools.partial(gpt, batches=(16, 8, 24)),
    "gpt of odd batches": functools.partial(gpt, blocks=2, batches=(10, 7, 3)),
    "gpt without dropout": functools.partial(gpt, rate=0.0),
    "gpt, clipped": functools.partial(gpt, optimizer=clipped),
    "mlp": functools.partial(mlp, batches=(12, 10, 7, 3, 1)),
    "lstm": lstm,
    "lstm with dropout": functools.partial(lstm, keep=0.8),
    "dataset": fed_by_dataset,
    "embeddings": embeddings,
    "counting": counting,
    "recomputing": recomputing,
    "weighted": weighted,
    "branching": branching,
    "scaling": scaling,
    "checking": checking,
    "accumulating": accumulating,
    "looping": looping,
    "averaging": averaging,
    "lstm with dropout of one row": functools.partial(lstm, keep=0.8, rows=1),
}


@functools.cache
def on_one_device(net: str, steps: int = 3) -> Trained:
    return trained(NETS[net], steps=steps)


def strategy(p: int = 2, *axes: tuple[str, int], m: int = 4, schedule: Any = "1f1b", **options: Any) -> Any:
    """On a mesh of ``p`` stages and ``axes``."""
    options.setdefault("batch", "dp" if any(name == "dp" for name, _ in axes) else None)
    return Strategy(Mesh([("pp", p), *axes]), "pp", m, schedule, **options)


def check(net: str, found: Any, steps: int = 3, is_staged: bool = True) -> None:
    what = f"{net}, {found!r}, {found.kept}"
    agree(trained(NETS[net], found, steps, is_staged), on_one_device(net, steps), what)


# --- numbers


@pytest.mark.parametrize(
    ("net", "p", "m", "schedule", "options"),
    [
        ("gpt", 2, 4, "naive", {}),
        ("gpt", 2, 8, "gpipe", {"remat": "stage"}),
        pytest.param("gpt", 4, 4, "gpipe", {}, marks=pytest.mark.slow),
        ("gpt", 4, 8, "1f1b", {"remat": "stage"}),
        ("gpt", 2, 4, "interleaved", {}),
        ("gpt", 2, 4, "zb_h1", {"remat": "stage"}),
        ("gpt", 4, 8, "zb_h2", {}),
        ("gpt", 2, 4, "zbv", {"remat": "stage"}),
        pytest.param("gpt of 8 blocks", 4, 8, "zbv", {}, marks=pytest.mark.slow),
        pytest.param("gpt of 8 blocks", 2, 8, "interleaved", {"chunks": 4}, marks=pytest.mark.slow),
    ],
)
def test_every_schedule_gives_the_numbers_of_one_device(
    net: str, p: int, m: int, schedule: str, options: dict[str, Any]
) -> None:
    """A GPT with a skip connection, one matrix of words at both ends, and dropout."""
    check(net, strategy(p, m=m, schedule=schedule, **options))


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        pytest.param([("dp", 2)], {"schedule": "zb_h1"}, marks=pytest.mark.slow),
        ([("tp", 2)], {"plan": PLAN, "sequence": True, "schedule": "zb_h1"}),
        ([("dp", 2), ("tp", 2)], {"plan": PLAN, "remat": "stage"}),
    ],
    ids=str,
)
def test_pipelines_compose_with_data_and_tensor_parallelism(axes: Any, options: dict[str, Any]) -> None:
    check("gpt", strategy(2, *axes, **options))


@pytest.mark.slow
def test_the_axis_of_stages_may_be_any_of_the_mesh() -> None:
    mesh = Mesh([("dp", 2), ("pp", 2)], [f"/cpu:{i}" for i in range(4)])
    found = Strategy(mesh, "pp", 4, batch="dp")
    check("gpt", found)
    assert found.mesh.device((0, 1), position=1) == "/device:CPU:3"
    assert found.mesh.device((0, 1), position=0) == "/device:CPU:2"


@pytest.mark.parametrize("schedule", nightly(["zbv", "1f1b"], 1))
def test_stages_are_found_by_costs(schedule: str) -> None:
    check("gpt", strategy(2, schedule=schedule), is_staged=False)


def test_stages_are_those_of_name_scopes() -> None:
    stages = [["block0", "block1"], "block2", "block3", []]
    with pytest.raises(
        InvalidArgumentError, match="expected operations at each of 4 stages; got none at stage 3"
    ):
        trained(gpt, strategy(4, stages=stages), is_staged=False)
    check("gpt", strategy(2, stages=[["block0", "block1"], ["block2", "block3/"]]), is_staged=False)


def test_a_schedule_is_read_from_a_file(tmp_path: Path) -> None:
    """Both forward passes of the first stage before any of the second."""
    path = tmp_path / "mine.txt"
    path.write_text("F0 F1 B1 B0  # backwards\nF1 F0 B1 B0\n")
    found = strategy(2, m=2, schedule=path)
    check("mlp", found)
    assert [str(action) for action in found.schedule.actions[1]] == ["F(1,1)", "F(1,0)", "B(1,1)", "B(1,0)"]


@pytest.mark.parametrize(
    ("net", "found"),
    [
        ("gpt of many lengths", strategy(2, schedule="zb_h2")),
        pytest.param("gpt of even batches", strategy(2, ("dp", 2)), marks=pytest.mark.slow),
        pytest.param("gpt of odd batches", strategy(2), marks=pytest.mark.slow),
        ("gpt of odd batches", strategy(2, ("dp", 2), m=3, schedule="zb_h1", remat="stage")),
        pytest.param(
            "gpt of odd batches", strategy(2, ("tp", 2), plan=PLAN, sequence=True), marks=pytest.mark.slow
        ),
        ("gpt, clipped", strategy(2)),
        ("lstm", strategy(2, ("dp", 2), m=3, schedule="zb_h1")),
        ("lstm", strategy(2, m=4, remat="stage")),
        ("dataset", strategy(2, ("dp", 2), m=3)),
        ("dataset", strategy(2, m=3, remat="stage")),
        ("embeddings", strategy(2, ("dp", 2), schedule="zb_h1", remat="stage")),
        ("counting", strategy(2)),
        ("recomputing", strategy(2)),
        ("recomputing", strategy(4, ("dp", 2), schedule="zb_h1")),
        ("weighted", strategy(2, ("dp", 2))),
        ("weighted", strategy(2, schedule="zb_h1", remat="stage")),
        ("lstm with dropout", strategy(2, ("dp", 2), m=3)),
        ("lstm with dropout", strategy(2, m=5, schedule="zb_h1", remat="stage")),
        ("branching", strategy(2, m=1, remat="stage")),
        ("branching", strategy(2, ("dp", 2), m=5, schedule="zb_h1", remat="stage")),
        ("scaling", strategy(2, ("dp", 2), m=3)),
        ("scaling", strategy(2, m=5, schedule="zb_h1", remat="stage")),
        ("accumulating", strategy(2)),
        ("looping", strategy(2, m=3)),
        ("looping", strategy(2, ("dp", 2), m=2, schedule="zb_h1", remat="stage")),
        ("averaging", strategy(2)),
        ("averaging", strategy(2, ("dp", 2), m=3, schedule="zb_h1", remat="stage")),
        ("lstm with dropout of one row", strategy(2)),
        ("lstm with dropout of one row", strategy(2, ("dp", 2), remat="stage")),
        ("checking", strategy(2, ("dp", 2), m=3, schedule="zb_h1", remat="stage")),
    ],
    ids=str,
)
def test_nets_of_all_kinds_give_the_numbers_of_one_device(net: str, found: Any) -> None:
    check(net, found)


@pytest.mark.parametrize(
    "found",
    [
        strategy(2),
        strategy(2, ("dp", 2), schedule="zb_h2", remat="stage"),
        strategy(2, m=8, schedule="gpipe"),
    ],
    ids=str,
)
def test_micro_batches_may_be_uneven_empty_and_change(found: Any) -> None:
    """Of 12, 10, 7, 3 rows and of one."""
    check("mlp", found, steps=5)


@pytest.mark.parametrize("rows", [1, 8])
def test_draws_without_a_seed_are_made_again_as_they_were(rows: int) -> None:
    """Of a dropped 1, the slope tells the result. One row is computed once."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with strategy(2, remat="stage").scope():
            x = tf.placeholder(tf.float64, [rows, 64])
            with tf.distribute.stage(0):
                h = x * tf.get_variable("w", [64], tf.float64, tf.ones_initializer())
            with tf.distribute.stage(1):
                dropped = tf.nn.dropout(tf.square(h), 0.5)
            (slope,) = tf.gradients(dropped, x)
        session.run(tf.global_variables_initializer())
        made, slopes = session.run([dropped, slope], {x: np.ones((rows, 64))})
        np.testing.assert_array_equal(slopes, 2 * made)
        assert set(made.ravel()) == {0.0, 2.0}


def test_each_stage_may_have_an_iterator_of_its_own() -> None:
    np.testing.assert_allclose(losses_of_epochs(strategy(4, m=2)), losses_of_epochs(), 1e-9)


def test_loops_are_cut_by_costs_only_where_no_list_crosses() -> None:
    check("lstm", strategy(2, m=3), is_staged=False)


def test_the_precision_of_a_policy_is_that_of_one_device_with_it() -> None:
    """In bfloat16: results differ by its rounding, which is not that of float32."""
    policy = tf.distribute.Precision("bfloat16")
    one = trained(functools.partial(mlp, dtype=tf.float32), strategy(1, m=1, policy=policy))
    two = trained(functools.partial(mlp, dtype=tf.float32), strategy(2, policy=policy))
    full = trained(functools.partial(mlp, dtype=tf.float32))
    np.testing.assert_allclose(two.losses, one.losses, 2e-2)
    assert two.losses != full.losses


def test_a_checkpoint_goes_on_over_any_mesh(tmp_path: Path) -> None:
    """Of two stages, on one device, then of four stages with two rows of devices."""
    found: list[float] = []
    for number, given in enumerate([strategy(2), None, strategy(4, ("dp", 2), m=2)]):
        with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
            net, saver = built(NETS["gpt without dropout"], given), tf.train.Saver()
            if number:
                saver.restore(session, f"{tmp_path}/model")
            else:
                session.run(tf.global_variables_initializer())
            steps = (2 * number, 2 * number + 1)
            found += [session.run([net.loss, net.train], net.feeds(step))[0] for step in steps]
            saver.save(session, f"{tmp_path}/model")
    np.testing.assert_allclose(found, on_one_device("gpt without dropout", 6).losses, 1e-9)


# --- order and memory

ROWS, COLUMNS = 2, 64
LAYER_BYTES = ROWS * COLUMNS * 4
"""Of the output of one layer, of one micro-batch."""


def parts_of(found: Any, m: int, optimizer: Any = tf.train.GradientDescentOptimizer) -> list[Any]:
    """The compiled parts of a training step, by device: three layers a stage, `ROWS` rows a micro-batch."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with found.scope():
            h = x = tf.placeholder(tf.float32, [ROWS * m, COLUMNS])
            for i in range(found.schedule.stages):
                with tf.distribute.stage(i), tf.variable_scope(f"stage{i}"):
                    for layer in range(3):
                        h = tf.nn.tanh(h @ tf.get_variable(f"w{layer}", [COLUMNS, COLUMNS]))
            train = optimizer(0.1).minimize(tf.reduce_mean(tf.square(h)))
        session.run(tf.global_variables_initializer())
        session.run(train, {x: np.ones([ROWS * m, COLUMNS])})
        plans = [plan for request in session._requests.values() for plan in request.plans.values()]
        parts = plans[-1].partitions
        return [parts[device] for device in sorted(parts)]


IN_FLIGHT: dict[str, Callable[[int, int, int, int], int]] = {
    "naive": lambda p, k, m, v: 1,
    "gpipe": lambda p, k, m, v: m,
    "1f1b": lambda p, k, m, v: p - k,
    "interleaved": lambda p, k, m, v: 2 * (p - k - 1) + (v - 1) * p + 1,
    "zb_h1": lambda p, k, m, v: p,
    "zb_h2": lambda p, k, m, v: 2 * p - 1,
    "zbv": lambda p, k, m, v: v * p,
}
"""The last column of the table of ``docs/pipelines.md``, times v."""


def actions_of(part: Any) -> list[str]:
    """The actions that end in the order in which the part runs; nothing waits for the last one."""
    found = [re.match(r"_after/(\w)_(\d+)_(\d+)/", node.name) for node in part.schedule.order]
    return [f"{m[1]}({m[2]},{m[3]})" for m in found if m]


def most_in_flight(part: Any, stages: Iterable[int]) -> int:
    """The most outputs of the first layers of ``stages``, one per micro-batch, that are there at a time."""
    order = list(part.schedule.order)
    changes: list[tuple[float, int]] = []
    first = re.compile(rf"stage({'|'.join(map(str, stages))})/Tanh@micro\d+")
    for place, node in enumerate(order):
        if first.fullmatch(node.name):
            last = max(i for i, other in enumerate(order) if (node.name, 0) in other.inputs)
            changes += [(place, 1), (last + 0.5, -1)]
    return int(np.cumsum([change for _, change in sorted(changes)]).max())


@pytest.mark.parametrize(
    ("p", "m", "schedule"),
    [(2, 4, "naive"), (2, 4, "gpipe"), (4, 8, "1f1b"), (2, 4, "interleaved"), (4, 4, "zb_h1"), (2, 4, "zbv")],
)
def test_devices_run_the_actions_of_the_schedule_in_its_order(p: int, m: int, schedule: str) -> None:
    """The first stage has no part I: nothing waits for gradients of its inputs."""
    found = strategy(p, m=m, schedule=schedule)
    for part, line in zip(parts_of(found, m), found.schedule.actions, strict=True):
        expected = [str(action) for action in line if (action.kind, action.stage) != ("I", 0)]
        assert actions_of(part) == expected[:-1]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_gradients_are_sent_back_before_those_of_weights_are_computed(schedule: str) -> None:
    """Those of the last micro-batch, too, though the first device counts Adam's steps after all updates."""
    parts = parts_of(strategy(2, m=4, schedule=schedule), 4, tf.train.AdamOptimizer)
    line = strategy(2, m=4, schedule=schedule).schedule.actions[1]
    order = [node for node in parts[1].schedule.order if node.name.startswith("gradients/")]
    found = [
        node.op.name
        for node in order
        if node.op.name == "_Send"
        or (node.op.name == "MatMul" and node.outputs[0].shape == (COLUMNS, COLUMNS))
    ]
    assert found == ["_Send", *["MatMul"] * 3] * [action.kind for action in line].count("B")


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8)])
@pytest.mark.parametrize("schedule", [*IN_FLIGHT])
def test_activations_in_flight_are_those_of_the_table(schedule: str, p: int, m: int) -> None:
    """Of a device with v stages, v times as many, each a v-th in size; and as many as its schedule says."""
    found = strategy(p, m=m, schedule=schedule).schedule
    v = found.chunks
    stages = [[i for i in range(found.stages) if found.device_of(i) == k] for k in range(p)]
    parts = parts_of(strategy(p, m=m, schedule=schedule), m)
    counted = [most_in_flight(part, own) for part, own in zip(parts, stages, strict=True)]
    assert counted == [min(IN_FLIGHT[schedule](p, k, m, v), m * v) for k in range(p)]
    assert counted == [max(held_passes(found, k)) for k in range(p)]


@pytest.mark.parametrize(
    ("schedule", "remat", "inner"), [("gpipe", None, 2), ("1f1b", None, 0), ("gpipe", "stage", 0)]
)
def test_memory_grows_by_the_layers_that_wait_for_their_backward_pass(
    schedule: str, remat: str | None, inner: int
) -> None:
    """Each further micro-batch takes what the first stage is fed and what it sends; with GPipe also its
    ``inner`` layers, unless these are computed again.
    """
    nbytes = [
        parts_of(strategy(2, m=m, schedule=schedule, remat=remat), m)[0].buffers.memory.nbytes for m in (4, 8)
    ]
    assert (nbytes[1] - nbytes[0]) / 4 == (2 + inner) * LAYER_BYTES


@pytest.mark.parametrize("net", [mlp, fed_by_dataset], ids=["fed", "from a dataset"])
def test_what_a_batch_leads_to_is_computed_again(net: Any) -> None:
    with tf.Graph().as_default() as graph:
        built(net, strategy(2, remat="stage"))
        nodes = {op.name: op.node for op in graph.get_operations()}
    again = recompute_stages(Subgraph(nodes, (), (), ())).nodes.keys() - nodes.keys()
    assert any(name.endswith("Relu/again") for name in again), again


# --- what is refused

GOOD = "F0 F1 B0 B1\nF0 B0 F1 B1\n"


@pytest.mark.parametrize(
    ("axes", "options", "message"),
    [
        ([("pp", 2)], {"axis": "pq"}, r"axis: expected one of the mesh \[pp=2\]; got 'pq'"),
        ([Axis("pp", 2, True)], {}, r"a mesh with axes of devices only, .*; got the mesh \[time pp=2\]"),
        ([("pp", 2), Axis("t", 2, True)], {}, "expected a mesh with axes of devices only"),
        ([("pp", 2), ("micro", 2)], {}, "expected another name than 'micro'"),
        ([("pp", 2)], {"micro_batches": 0}, "micro_batches: expected an integer >= 1; got 0"),
        ([("pp", 2)], {"micro_batches": 2.0}, "micro_batches: expected an integer >= 1; got 2.0"),
        ([("pp", 2)], {"schedule": "1f1"}, "got '1f1', which is no file either. Nearest: 1f1b"),
        ([("pp", 2)], {"schedule": 0}, "schedule: expected one of naive, .*; got 0"),
        ([("pp", 2)], {"chunks": 2}, "schedule '1f1b': chunks: expected 1; got 2"),
        ([("pp", 2)], {"schedule": "interleaved", "chunks": 0}, "chunks: expected an integer >= 1; got 0"),
        ([("pp", 2)], {"schedule": GOOD, "chunks": 2}, "chunks: expected None, as the actions of a schedule"),
        ([("pp", 2)], {"schedule": GOOD}, "expected 4 micro-batches, as the mesh .* has; got one of 2"),
        ([("pp", 4)], {"schedule": GOOD, "micro_batches": 2}, "expected 4 devices, .*; got one of 2"),
        ([("pp", 2)], {"schedule": "F0 B0\nF0\n"}, r"line 2, column 3 \(device 1\), B\(1,0\): .* is absent"),
        (
            [("pp", 2)],
            {"schedule": "F0 B1 F1 B0\nF0 B0 F1 B1\n"},
            r"line 1, column 4 \(device 0\), B\(0,1\): expected no cycle; got B\(0,1\) after F\(0,1\)",
        ),
        ([("pp", 2)], {"stages": ["a"]}, "a name scope, or several, for each of 2 stages; got \\['a'\\]"),
        ([("pp", 2)], {"stages": [["a"], 3]}, "a name scope, or several, for each of 2 stages"),
        ([("pp", 2)], {"remat": "all"}, "remat: expected None or 'stage'; got 'all'"),
        ([("pp", 2)], {"batch": "pp"}, "expected an axis of the mesh .*; got 'pp'"),
        ([("pp", 2)], {"batch": 3}, "batch: expected None, an axis, or several"),
        ([("pp", 2)], {"plan": PLAN}, "expected an axis of the mesh .*; got 'tp'"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(axes: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Strategy(Mesh(axes), **{"micro_batches": 4, **options})


@pytest.mark.parametrize("text", [b"", b"F0 B0\nF0 X0", b"\xff\xfe"])
def test_a_bad_file_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes(text)
    with pytest.raises(InvalidArgumentError, match=r"mine\.txt.*(expected|decode)"):
        strategy(2, m=1, schedule=str(path))


def test_gradients_of_one_tensor_are_added_up_before_they_are_sent() -> None:
    with tf.Graph().as_default() as graph, strategy(2).scope():
        x = tf.placeholder(tf.float32, [8, 4])
        with tf.distribute.stage(0):
            h = tf.tanh(x * tf.get_variable("first", [4]))
        with tf.distribute.stage(1):
            readers = [h @ tf.get_variable(f"reader{i}", [4, 4]) for i in range(3)]
            loss = tf.reduce_mean(tf.square(tf.add_n(readers)))
        tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        step = Subgraph({op.name: op.node for op in graph.get_operations()})
    stages = assign_stages(step)
    later = [node.name for node in step if stages[node.name] == 1]
    sent = {ref for node in step if not stages[node.name] for ref in node.inputs if ref[0] in later}
    assert [step.nodes[name].op.name for name, _ in sent] == ["AddN"]


def test_a_mesh_is_a_mesh() -> None:
    with pytest.raises(DTypeError, match="PipelineStrategy: expected a Mesh"):
        Strategy([("pp", 2)])


def test_a_forgotten_scope_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    unopened_strategies.clear()  # of the parameters of this module's tests
    found = strategy(2)
    with tf.Graph().as_default():
        w = tf.Variable([1.0])
        for _ in range(2):
            tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(w)))
    told = [record.message for record in caplog.records if repr(found) in record.message]
    assert len(told) == 1
    assert "no scope of it was opened" in told[0]


def test_a_stage_is_of_the_scope_that_it_is_in() -> None:
    with pytest.raises(FailedPreconditionError, match="stage: expected the scope of a PipelineStrategy"):
        with tf.distribute.stage(0):
            pass
    with tf.Graph().as_default(), strategy(2).scope():
        for index in (2, -1, 1.0, True):
            with pytest.raises(InvalidArgumentError, match="an integer from 0 to 1, of 2 stages; got"):
                with tf.distribute.stage(index):
                    pass
        with pytest.raises(FailedPreconditionError, match="expected a call outside other strategies' scopes"):
            with strategy(2).scope():
                pass


def step(build: Callable[[Any], Any], found: Any, devices: int = 8) -> Any:
    """Run one training step of what ``build`` makes of eight rows."""
    with tf.Graph().as_default(), found.scope():
        x = tf.placeholder(tf.float64, [None, 4], "x")
        loss = tf.reduce_mean(tf.square(build(x)))
        train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
            session.run(tf.global_variables_initializer())
            return session.run([loss, train], {x: np.ones((8, 4))})


def layers(x: Any, *stages: int) -> Any:
    """A layer at each of ``stages``."""
    for number, stage in enumerate(stages):
        with tf.distribute.stage(stage):
            x = x @ tf.get_variable(f"w{number}", [4, 4], tf.float64)
    return x


def test_stages_are_in_order_and_each_has_operations() -> None:
    step(lambda x: layers(x, 0, 1), strategy(2))
    with pytest.raises(
        InvalidArgumentError, match="stage 0: expected inputs of this stage or earlier"
    ) as caught:
        step(lambda x: layers(x, 1, 0), strategy(2))
    assert "matmul_1" in str(caught.value)
    assert "test_pipeline.py" in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="operations at each of 2 stages; got none at stage 1"):
        step(lambda x: layers(x, 0, 0), strategy(2))
    with pytest.raises(InvalidArgumentError, match="expected the name scope of an operation; got 'head'"):
        step(lambda x: x @ tf.get_variable("w", [4, 4], tf.float64), strategy(2, stages=["matmul", "head"]))
    with pytest.raises(InvalidArgumentError, match="expected operations for 8 stages; got"):
        step(lambda x: x @ tf.get_variable("w", [4, 4], tf.float64), strategy(8))


def test_what_needs_a_whole_batch_is_named_not_what_reads_it() -> None:
    def called(x: Any) -> Any:
        h = layers(x, 0, 1)
        return tf.tanh(tf.tanh(tf.py_func(np.sort, [h], tf.float64))) * tf.reduce_sum(h)

    with pytest.raises(InvalidArgumentError, match=r"'PyFunc' needs a whole batch.* vectorized_map"):
        step(called, strategy(2))


def test_the_batch_of_a_queue_is_cut_or_a_warning_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """``dequeue_many`` gives a batch. Only the script knows whether an element is one."""

    def losses(elements: Any, batch_of: Callable[[Any], Any], found: Any = None) -> list[float]:
        with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:

            def net(at: At) -> Net:
                queue = tf.FIFOQueue(50, [tf.float64], [elements.shape[1:]])
                add = queue.enqueue_many([tf.constant(elements)])
                x = batch_of(queue)
                with at(0):
                    h = tf.layers.dense(x, 6, tf.nn.tanh)
                with at(1):
                    loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 4) - x))
                return Net(lambda step: {}, loss, tf.group(adam(loss), name="train")), add

            made, add = built(net, found)
            session.run(tf.global_variables_initializer())
            session.run(add)
            return [float(session.run([made.loss, made.train])[0]) for _ in range(2)]

    rows = np.random.default_rng(0).standard_normal((24, 4))
    whole = losses(rows, lambda queue: queue.dequeue_many(12))
    np.testing.assert_allclose(losses(rows, lambda queue: queue.dequeue_many(12), strategy(2)), whole, 1e-9)
    assert "the batch of this step is whole" not in caplog.text
    batches = rows.reshape(2, 12, 4)
    whole = losses(batches, lambda queue: tf.identity(queue.dequeue()))
    cut = losses(batches, lambda queue: tf.distribute.relayout(queue.dequeue(), ["micro", None]), strategy(2))
    np.testing.assert_allclose(cut, whole, 1e-9)
    assert "the batch of this step is whole" not in caplog.text
    uncut = losses(batches, lambda queue: tf.identity(queue.dequeue()), strategy(2))
    np.testing.assert_allclose(uncut, whole, 1e-9)
    assert "the batch of this step is whole" in caplog.text


def test_a_placeholder_made_before_the_scope_is_told_where_it_belongs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        x = tf.placeholder(tf.float64, [None, 4])
        with strategy(2).scope():
            loss = tf.reduce_mean(tf.square(layers(x, 0, 1)))
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        session.run([loss, train], {x: np.ones((8, 4))})
    assert "That of a placeholder, an iterator or dequeue_many made in the strategy's scope" in caplog.text


def test_a_single_row_needs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with strategy(2).scope():
            x = tf.placeholder(tf.float64, [None, 4])
            loss = tf.reduce_mean(tf.square(layers(x, 0, 1)))
            train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        session.run([loss, train], {x: np.ones((1, 4))})
    assert "the batch of this step is whole" not in caplog.text


def test_an_assertion_that_fails_comes_before_updates() -> None:
    """It is of the whole batch, so layers behind it do not wait for it, but updates do."""
    with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
        with strategy(2).scope():
            x = tf.placeholder(tf.float64, [None, 4])
            h = layers(x, 0)
            limit = tf.constant(10.0, tf.float64)
            with tf.distribute.stage(1), tf.control_dependencies([tf.assert_less(tf.abs(h), limit)]):
                loss = tf.reduce_mean(tf.square(h @ tf.get_variable("w1", [4, 4], tf.float64)))
            train = tf.train.AdamOptimizer(0.1).minimize(loss)
        session.run(tf.global_variables_initializer())
        before = session.run(tf.global_variables())
        with pytest.raises(InvalidArgumentError, match="assertion failed"):
            session.run([loss, train], {x: np.full((8, 4), 1e3)})
        for one, other in zip(before, session.run(tf.global_variables()), strict=True):
            np.testing.assert_array_equal(one, other)
        session.run([loss, train], {x: np.full((8, 4), 1e-3)})


def test_a_mesh_larger_than_the_devices_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"mesh \[stages pp=2, .*\]: expected 2 devices; got 1"):
        step(lambda x: layers(x, 0, 1), strategy(2), devices=1)


def test_lists_and_variables_of_loops_stay_at_their_stage() -> None:
    def apart(x: Any) -> Any:
        with tf.distribute.stage(0):
            w = tf.get_variable("w", [4, 4], tf.float64)
            rows = tf.TensorArray(tf.float64, size=2).write(0, x @ w).write(1, x)
        with tf.distribute.stage(1):
            return tf.reduce_sum(rows.stack(), 0)

    def inside(x: Any) -> Any:
        w = tf.get_variable("w", [4, 4], tf.float64)
        with tf.distribute.stage(0):
            x = x @ w
        with tf.distribute.stage(1):
            rows = lambda i, h: (i + 1, h + tf.nn.embedding_lookup(w, i))  # noqa: E731
            return tf.while_loop(lambda i, h: i < 2, rows, [0, x])[1]

    with pytest.raises(InvalidArgumentError, match="stage 1: expected lists of this stage; got"):
        step(apart, strategy(2))
    with pytest.raises(
        InvalidArgumentError, match="stage 1: expected variables of this stage; got 'w' of stage 0"
    ):
        step(inside, strategy(2))


def test_what_needs_a_whole_batch_is_named_with_its_cycle() -> None:
    normalised = functools.partial(mlp, is_normalised=True)
    cycle = (
        r"'batch_normalization/moments/mean' needs a whole batch, .*: (F\(0,\d\) after )+F\(0,\d\)\. Compute"
    )
    with pytest.raises(InvalidArgumentError, match=cycle):
        trained(normalised, strategy(2))
    agree(trained(normalised, strategy(2, ("dp", 2), m=1)), trained(normalised))


def test_a_step_has_one_pipeline() -> None:
    for other, message in (
        (strategy(2, m=2), "over one mesh"),
        (strategy(2, schedule="gpipe"), "one schedule"),
    ):
        with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
            outputs = []
            for name, each in (("a", strategy(2)), ("b", other)):
                with each.scope(), tf.variable_scope(name):
                    x = tf.placeholder_with_default(np.ones((8, 4)), [8, 4])
                    outputs.append(layers(x, 0, 1))
            with pytest.raises(UnimplementedError, match=message):
                session.run([tf.global_variables_initializer(), *outputs])
