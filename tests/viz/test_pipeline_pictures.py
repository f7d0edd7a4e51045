"""Pictures and texts of pipelines have each operation's stage and action; a step is drawn as it ran."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from flowrt.cli.main import main
from flowrt.errors import InvalidArgumentError
from flowrt.graph.pipeline.actions import Action
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times
from flowrt.profiler.always_on import kept_steps, recent_step_stats
from flowrt.protos.step_stats_pb2 import StepStats
from flowrt.viz.formats.dot import COLLECTIVES
from flowrt.viz.laid_out import LaidOut, laid_out
from flowrt.viz.measured_schedule import measured, predicted
from flowrt.viz.schedule_picture import schedule_svg, schedules_svg
from flowrt.viz.script import main_request, requests_of_script
from tests.profiler.made_stats import BASE, DEVICES, add

NS_PER_MS = 10**6

SCRIPT = """
import sys

import numpy as np
import flowrt as tf

tf.reset_default_graph()
mesh, schedule = tf.distribute.Mesh([("pp", 2), ("dp", 2)]), sys.argv[1]
strategy = tf.distribute.PipelineStrategy(mesh, micro_batches=4, schedule=schedule, batch="dp")
with strategy.scope():
    x, y = tf.placeholder(tf.float32, [16, 6], name="x"), tf.placeholder(tf.float32, [16, 3], name="y")
    with tf.distribute.stage(0):
        h = tf.layers.dense(x, 8, tf.nn.relu, name="hidden")
    with tf.distribute.stage(1):
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 3, name="logits") - y), name="loss")
    train = tf.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
    session.run(tf.global_variables_initializer())
    for _ in range(4):
        session.run([loss, train], {x: np.ones((16, 6)), y: np.zeros((16, 3))})
"""


def ran(path: Path, schedule: str = "1f1b") -> tuple[LaidOut, list[object]]:
    """The training step of the script in its layouts, and the traced steps."""
    path.write_text(SCRIPT)
    with kept_steps():
        asked = requests_of_script(str(path), [schedule])
        stats = recent_step_stats()
    found = laid_out(main_request(asked))
    assert found is not None
    return found, stats


def test_the_text_has_stage_and_action(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert main(["explain", "--layouts", str(path), "--", "zb_h1"]) == 0
    text = capsys.readouterr().out
    rows = [re.split(r"\s{2,}", line) for line in text.splitlines() if "train.py:" in line]
    stages = {row[0]: row[-2] for row in rows}
    assert stages["hidden/kernel"] == "0"
    assert stages["hidden/MatMul"] == "0 F"
    assert stages["logits/MatMul"] == "1 F"
    assert stages["gradients/logits/MatMul_grad/MatMul"] == "1 I"
    assert stages["gradients/logits/MatMul_grad/MatMul_1"] == "1 W"
    assert re.search(r"hidden/Relu:0 +Send +pp ", text)


@pytest.mark.skipif(find_spec("igraph") is None, reason="igraph is not installed: pip install 'flowrt[viz]'")
def test_the_page_has_stages_and_actions(tmp_path: Path) -> None:
    from tests.viz.test_html import decoded  # which needs igraph, too

    path, out = tmp_path / "train.py", tmp_path / "step.html"
    path.write_text(SCRIPT)
    assert main(["export", str(path), "--out", str(out), "--", "1f1b"]) == 0
    data: Any = decoded(out.read_text())  # type: ignore[no-untyped-call]
    texts = {tuple(data["strings"][row] for row in attrs) for attrs in data["attrs"]}
    pairs = {pair for attrs in texts for pair in zip(attrs[::2], attrs[1::2], strict=True)}
    every = {("action", str(action)) for line in order("1f1b", 2, 4).actions for action in line}
    assert every <= pairs
    assert {("pass", "F"), ("pass", "B")} <= pairs
    assert {"stage 0", "stage 1", "Send"} <= set(data["strings"])


def test_a_drawing_has_a_colour_for_each_stage_and_marks_what_is_sent(tmp_path: Path) -> None:
    path, out = tmp_path / "train.py", tmp_path / "step.dot"
    path.write_text(SCRIPT)
    assert (
        main(["export", str(path), "--view", "layouts", "--depth", "9", "--out", str(out), "--", "1f1b"]) == 0
    )
    text = out.read_text()
    legend = dict(re.findall(r'device\d \[label="(stage \d)", fillcolor="(#\w+)"\]', text))
    assert set(legend) == {"stage 0", "stage 1"}
    assert re.search(rf'hidden/MatMul.*fillcolor="{legend["stage 0"]}"', text)
    assert rf'[color="{COLLECTIVES["Send"]}", fontcolor="{COLLECTIVES["Send"]}", label=' in text
    assert r"\nSend over pp, " in text


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_a_traced_step_ran_in_the_order_of_its_schedule(schedule: str, tmp_path: Path) -> None:
    found, stats = ran(tmp_path / "train.py", schedule)
    played = measured(found, stats)
    assert played.schedule == order(schedule, 2, 4)
    for line in played.schedule.actions:
        starts = [played.start[action] for action in line]
        assert starts == sorted(starts)
    assert min(played.start.values()) == 0
    for action, start in played.start.items():
        is_empty = (action.kind, action.stage) == ("I", 0)  # there is no stage before that would want it
        assert (played.end[action] == start) is is_empty


def test_an_action_lasts_from_its_first_operation_to_its_last_one_without_waits(tmp_path: Path) -> None:
    found, _ = ran(tmp_path / "train.py")
    expected = replay(order("1f1b", 2, 4), Times(2, 3, 1))
    waits = Action("B", 0, 0)  # its first operation runs, and then the device waits for 1 ms
    step, seen = StepStats(), set()
    for name, action in found.lowered.actions.items():
        if action is not None:
            device = found.lowered.subgraph.nodes[name].device
            start, end = (BASE + int(each[action] * NS_PER_MS) for each in (expected.start, expected.end))
            middle = (start + end) // 2
            if (action, device) in seen:
                add(step, device, f"{name} = Op()", middle, end)
            elif action == waits:
                add(step, device, f"{name} = Op()", start - NS_PER_MS, start - NS_PER_MS)
                add(step, device, f"x = _Recv(x:0 @{DEVICES[1]})", start - NS_PER_MS, start)
            else:
                add(step, device, f"{name} = Op()", start, middle)
            seen.add((action, device))
    assert measured(found, [step]) == expected


def test_a_replay_with_the_times_of_a_replay_is_this_replay() -> None:
    for name, times in (
        ("1f1b", [Times(2, 3, 1), Times(1, 1, 2)]),
        ("zb_h1", [Times(2, 3, 1), Times(4, 1, 2)]),
    ):
        played = replay(order(name, 2, 4), times)
        assert predicted(played) == played


def test_what_was_not_traced(tmp_path: Path) -> None:
    found, stats = ran(tmp_path / "train.py")
    with pytest.raises(InvalidArgumentError, match="a traced step with all 16 actions; got none in 1 steps"):
        measured(found, stats[:1])  # the initializer
    with pytest.raises(InvalidArgumentError, match="expected a step of a PipelineStrategy; got one without"):
        measured(None, stats)


def test_the_command_draws_the_run_above_its_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, picture, text = tmp_path / "train.py", tmp_path / "run.svg", tmp_path / "run.txt"
    path.write_text(SCRIPT)
    assert main(["export", "--schedule", str(path), "--out", str(picture), "--", "1f1b"]) == 0
    titles = [each.text or "" for each in ET.parse(picture).iter() if each.get("class") == "title"]
    assert [title.partition(": ")[0] for title in titles] == ["measured, in ms", "replayed with mean times"]
    assert main(["export", "--schedule", str(path), "--out", str(text), "--", "1f1b"]) == 0
    assert text.read_text() == "F0 F1 B0 F2 B1 F3 B2 B3\nF0 B0 F1 B1 F2 B2 F3 B3\n"
    sizes = ["--devices", "2"]
    assert main(["export", "--schedule", str(path), *sizes, "--out", str(text), "--", "1f1b"]) == 2
    assert "--devices: expected none with a file, which has its own" in capsys.readouterr().err


def test_pictures_below_each_other_have_the_scale_of_the_last() -> None:
    long, short = replay(order("gpipe", 2, 4), Times(2, 2, 2)), replay(order("1f1b", 2, 2))
    alone, both = widths(schedule_svg(short)), widths(schedules_svg({"long ": long, "short ": short}))
    assert both["F(0,0)"] == [2 * alone["F(0,0)"][0], *alone["F(0,0)"]]


def widths(svg: str) -> dict[str, list[float]]:
    """The widths of an action's boxes, from top to bottom."""
    found: dict[str, list[float]] = {}
    for group in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}g"):
        action = (group[0].text or "").partition(":")[0]
        found.setdefault(action, []).append(float(group[1].get("width", "")))
    return found
