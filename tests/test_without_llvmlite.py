"""An environment that has what flowrt requires and nothing else: all that loops compute runs without them."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

SCRIPT = """
import importlib.util
import numpy as np
import flowrt as tf

assert not any(map(importlib.util.find_spec, ("llvmlite", "numba", "cupy")))
tf.set_random_seed(1)
rng = np.random.default_rng(0)
x, labels = tf.placeholder(tf.float32, [8, 12, 12, 1]), tf.placeholder(tf.int64, [8])
h = tf.layers.conv2d(x, 4, 3, padding="same", activation=tf.nn.relu)
h = tf.layers.max_pooling2d(h, 2, 2)
h = tf.layers.dense(tf.layers.flatten(h), 16, tf.tanh)
_, h = tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, tf.sigmoid(h) * 1.5), (0, h))
mean, variance = tf.nn.moments(h, [-1], keepdims=True)
h = tf.nn.dropout((h - mean) * tf.rsqrt(variance + 1e-5), rate=0.1)
h += tf.nn.embedding_lookup(tf.get_variable("table", [10, 16]), labels)
loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.layers.dense(h, 10))
step = tf.train.AdamOptimizer(0.01).minimize(loss)
feeds = {x: rng.normal(size=x.shape.as_list()), labels: rng.integers(0, 10, 8)}
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    losses = [session.run([loss, step], feeds)[0] for _ in range(20)]
assert losses[-1] < losses[0]
print(losses)
"""


def distributions(names: list[str]) -> Iterator[metadata.Distribution]:
    """Those of these names, and what they require."""
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name not in seen:
            seen.add(name)
            found = metadata.distribution(name)
            yield found
            names += required_by(found)


def required_by(distribution: metadata.Distribution) -> list[str]:
    return [re.split(r"[^\w.-]", line)[0] for line in distribution.requires or () if "extra ==" not in line]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that finds this flowrt and what it requires, linked to where it is installed here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in distributions(required_by(metadata.distribution("flowrt"))):
        for name in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(distribution.locate_file(name))))
    (packages / "flowrt.pth").write_text(f"{ROOT}\n")
    return folder / "bin" / "python"


def run(python: Path, jit: str) -> tuple[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FLOWRT_"))}
    done = subprocess.run(
        [python, "-c", SCRIPT],
        env={**kept, "FLOWRT_JIT": jit, "FLOWRT_LOG": "info"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=python.parent,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_script_runs_in_every_mode_and_gives_the_same(python: Path) -> None:
    losses, _ = run(python, "off")
    for jit in ("eager", "background"):
        found, said = run(python, jit)
        assert found == losses
        assert said.count("INFO:flowrt:loops are not compiled: llvmlite: expected the package") == 1
        assert "Install flowrt[jit]" in said
