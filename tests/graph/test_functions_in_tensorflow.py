"""TensorFlow runs the branches, loops, lists and calls that flowrt writes, and their gradients, to equal
values.

Runs where FLOWRT_TENSORFLOW names an interpreter with TensorFlow; the two meet in files only.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.messages.graph_def import WRITTEN_AS
from flowrt.graph.op_def import registered_ops
from tests.graph.nested_programs import CONSTRUCTS, STEPS, graph_of

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
FEEDS = [0.5, 1.5, 2.5]
PROGRAMS = 40

pytestmark = pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")


def random_program(rng: random.Random, depth: int = 3) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(sorted(STEPS))
    kind, count = rng.choice(sorted(CONSTRUCTS.items()))
    return (kind, *[random_program(rng, depth - 1) for _ in range(count)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What flowrt has written, and TensorFlow's answers; ours.json has flowrt's values."""
    folder = tmp_path_factory.mktemp("graphs")
    rng, ours = random.Random(0), {}
    for number in range(PROGRAMS):
        graph = graph_of(random_program(rng))
        (folder / f"{number}.pb").write_bytes(graph.as_graph_def(add_shapes=True).SerializeToString())
        with tf.Session(graph=graph) as session:
            session.run("v/Assign")
            found = [session.run(["y:0", "dy:0"], {"x:0": feed}) for feed in FEEDS]
        ours[str(number)] = [[float(v) for v in pair] for pair in found]
    (folder / "ours.json").write_text(json.dumps(ours))
    (folder / "feeds.json").write_text(json.dumps(FEEDS))
    (folder / "ops.json").write_text(json.dumps(list(registered_ops())))
    script = Path(__file__).with_name("run_in_tensorflow.py")
    subprocess.run([str(INTERPRETER), str(script), str(folder)], check=True, timeout=300)
    return folder


def test_values_and_gradients_are_tensorflows(folder: Path) -> None:
    ours, theirs = (json.loads((folder / name).read_text()) for name in ("ours.json", "values.json"))
    assert ours.keys() == theirs.keys()
    for number in ours:
        np.testing.assert_allclose(ours[number], theirs[number], rtol=1e-5, err_msg=number)


def test_outputs_have_tensorflows_names(folder: Path) -> None:
    outputs = json.loads((folder / "outputs.json").read_text())
    ops = {name: op for name, op in registered_ops().items() if name not in WRITTEN_AS}
    ours = {name: [output.name for output in op.outputs] for name, op in ops.items()}
    assert ours == {name: outputs[name] or found for name, found in ours.items()}
