"""`PipelineStrategy`: losses and variables are those of one device; order, memory, and what is an error."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, UnimplementedError
from tests.distribute.strategies.nets_in_stages import (
    BATCH,
    CONFIG,
    PLAN,
    Net,
    Trained,
    agree,
    built,
    clipped,
    embeddings,
    fed_by_dataset,
    gpt,
    lstm,
    mlp,
    trained,
)

Axis, Mesh, Strategy = tf.distribute.Axis, tf.distribute.Mesh, tf.distribute.PipelineStrategy

EIGHT = functools.partial(gpt, blocks=8)
NETS: dict[str, Callable[..., Net]] = {
    "gpt": gpt,
    "gpt of 8 blocks": EIGHT,
    "gpt of many lengths": functools.partial(gpt, lengths=(5, 3, 6)),
    "gpt of even batches": functools.partial(gpt, batches=(16, 8, 24)),
    "gpt, clipped": functools.partial(gpt, optimizer=clipped),
    "mlp": functools.partial(mlp, batches=(12, 10, 7, 3, 1)),
    "lstm": lstm,
    "dataset": fed_by_dataset,
    "embeddings": embeddings,
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
        ("gpt", 4, 4, "gpipe", {}),
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
        ([("dp", 2)], {"schedule": "zb_h1"}),
        ([("tp", 2)], {"plan": PLAN, "sequence": True, "schedule": "zb_h1"}),
        ([("dp", 2), ("tp", 2)], {"plan": PLAN, "remat": "stage"}),
    ],
    ids=str,
)
def test_pipelines_compose_with_data_and_tensor_parallelism(axes: Any, options: dict[str, Any]) -> None:
    check("gpt", strategy(2, *axes, **options))


def test_the_axis_of_stages_may_be_any_of_the_mesh() -> None:
    mesh = Mesh([("dp", 2), ("pp", 2)], [f"/cpu:{i}" for i in range(4)])
    found = Strategy(mesh, "pp", 4, batch="dp")
    check("gpt", found)
    assert found.mesh.device((0, 1), position=1) == "/device:CPU:3"
    assert found.mesh.device((0, 1), position=0) == "/device:CPU:2"


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_stages_are_found_by_costs(schedule: str) -> None:
    check("gpt", strategy(2, schedule=schedule), is_staged=False)


def test_stages_are_those_of_name_scopes() -> None:
    stages = [["block0", "block1"], "block2", "block3", []]
    with pytest.raises(InvalidArgumentError, match="expected operations at each of 4 stages; got none at stage 3"):
        trained(gpt, strategy(4, stages=stages), is_staged=False)
    check("gpt", strategy(2, stages=[["block0", "block1"], ["block2", "block3/"]]), is_staged=False)


def test_a_schedule_is_read_from_a_file(tmp_path: Path) -> None:
    """Both forward passes of the first stage before any of the second."""
    path = tmp_path / "mine.txt"
    path.write_text("F0 F1 B1 B0  # backwards\nF1 F0 B1 B0\n")
    found = strategy(2, m=2, schedule=path)
    check("embeddings", found)
    assert [str(action) for action in found.schedule.actions[1]] == ["F(1,1)", "F(1,0)", "B(1,1)", "B(1,0)"]


@pytest.mark.parametrize(
    ("net", "found"),
    [
        ("gpt of many lengths", strategy(2, schedule="zb_h2")),
        ("gpt of even batches", strategy(2, ("dp", 2))),
        ("gpt, clipped", strategy(2)),
        ("lstm", strategy(2, ("dp", 2), m=3, schedule="zb_h1")),
        ("lstm", strategy(2, m=4, remat="stage")),
        ("dataset", strategy(2, ("dp", 2), m=3, schedule="zbv")),
        ("embeddings", strategy(2, ("dp", 2), schedule="zb_h1", remat="stage")),
    ],
    ids=str,
)
def test_nets_of_all_kinds_give_the_numbers_of_one_device(net: str, found: Any) -> None:
    check(net, found)


@pytest.mark.parametrize(
    "found",
    [strategy(2), strategy(2, ("dp", 2), schedule="zb_h2", remat="stage"), strategy(2, m=8, schedule="gpipe")],
    ids=str,
)
def test_micro_batches_may_be_uneven_empty_and_change(found: Any) -> None:
    """Of 12, 10, 7, 3 rows and of one."""
    check("mlp", found, steps=5)


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
    expected = on_one_device("gpt", 6).losses
    found: list[float] = []
    for number, given in enumerate([strategy(2), None, strategy(4, ("dp", 2), m=2)]):
        with tf.Graph().as_default(), tf.Session(config=CONFIG) as session:
            net, saver = built(gpt, given), tf.train.Saver()
            if number:
                saver.restore(session, f"{tmp_path}/model")
            else:
                session.run(tf.global_variables_initializer())
            found += [
                session.run([net.loss, net.train], net.feeds(2 * number + i))[0] for i in range(2)
            ]
            saver.save(session, f"{tmp_path}/model")
    # a session's draws begin anew, as they do on one device
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[:2], expected[:2], 1e-9)
