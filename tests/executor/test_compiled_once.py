"""Long chains are cut, and equal loops are compiled once: in a plan, in a process, on a machine."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels import loop_layout
from flowrt.graph.passes.fusion.fuse import MAX_MEMBERS
from tests.executor.fused_sessions import fused_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

SOON_S = 100


@pytest.fixture
def texts(monkeypatch):
    """What is compiled, in sessions that compile before their first step."""
    found = []

    def compile_loop(text):
        found.append(text)
        return host_jit.compile_loop(text)

    monkeypatch.setenv("FLOWRT_JIT", "eager")
    monkeypatch.setattr(loop_layout, "compile_loop", compile_loop)
    return found


def chain(length, shape):
    x = y = tf.placeholder(tf.float32, shape)
    for _ in range(length):
        y = tf.sin(y) * 0.5
    return x, y


def test_a_long_chain_is_cut_into_equal_loops_that_are_compiled_once(texts):
    x, y = chain(MAX_MEMBERS * 3, [64])
    value = np.linspace(-2, 2, 64).astype("f")
    with tf.Session() as session:
        found = session.run(y, {x: value})
        groups = fused_of(session)
    assert list(map(len, groups)) == [MAX_MEMBERS] * 6
    assert len(set(texts)) <= 2  # the last may lie in other memory
    expected = value
    for _ in range(MAX_MEMBERS * 3):
        expected = np.sin(expected) * np.float32(0.5)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_equal_layers_and_sessions_share_their_loops(texts):
    def activations(count):
        x = y = tf.placeholder(tf.float32, [6, 10])
        for _ in range(count):
            y = tf.tanh(tf.matmul(y, tf.ones([10, 10])) * 0.05 + 0.25)
        return x, y

    counts = []
    for count in (2, 8):
        x, y = activations(count)
        with tf.Session() as session:
            session.run(y, {x: np.ones((6, 10))})
            assert fused_of(session) == [["Mul", "AddV2", "Tanh"]] * count
        counts.append(len(set(texts)))
    assert counts[0] == counts[1] <= 3  # a product's, a layer's, the last layer's


# --- the cache on disk, of real processes


SCRIPT = """
import logging, sys
import numpy as np, flowrt as tf
from flowrt.device.llvm import host_jit
compiled = []
optimised = host_jit._Compiler._optimised
host_jit._Compiler._optimised = lambda self, text: compiled.append(text) or optimised(self, text)
logging.basicConfig(format="%(message)s", stream=sys.stdout)
x = tf.placeholder(tf.float64, [100])
y = tf.reduce_sum(tf.exp(x) * x + 1.0)
with tf.Session() as session:
    found = session.run(y, {x: np.linspace(0, 1, 100)})
plain = (np.exp(np.linspace(0, 1, 100)) * np.linspace(0, 1, 100) + 1).sum()
assert abs(found - plain) < 1e-9, (found, plain)
print("compiled", len(compiled))
"""


def begin(folder, script=SCRIPT):
    kept = {key: value for key, value in os.environ.items() if key != "FLOWRT_LOG"}
    environment = {**kept, "FLOWRT_JIT": "eager", "FLOWRT_CACHE_DIR": str(folder)}
    return subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said_by(process):
    said, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 0, said
    return said


def test_what_a_process_compiled_the_next_ones_load_and_a_damaged_entry_is_made_again(tmp_path):
    assert "compiled 0" not in said_by(begin(tmp_path))
    entries = sorted(tmp_path.iterdir())
    assert "compiled 0" in said_by(begin(tmp_path))
    for entry in entries:
        content = bytearray(entry.read_bytes())
        content[-1] ^= 1
        entry.write_bytes(content)
    said = said_by(begin(tmp_path))
    assert said.count("is damaged and is removed") == len(entries)
    assert f"compiled {len(entries)}" in said
    assert sorted(tmp_path.iterdir()) == entries
    assert "compiled 0" in said_by(begin(tmp_path))


@pytest.mark.slow
def test_processes_that_compile_the_same_at_once_leave_one_entry_each(tmp_path):
    processes = [begin(tmp_path) for _ in range(3)]
    assert all("compiled" in said_by(process) for process in processes)
    assert "compiled 0" in said_by(begin(tmp_path))
    assert all(len(entry.name) == 64 for entry in tmp_path.iterdir())


def test_a_process_keeps_the_folder_below_its_limit(tmp_path):
    """Which entries go: `tests/device/test_code_cache.py`."""
    limited = "from flowrt.device.llvm import code_cache\ncode_cache.LIMIT_BYTES = 30_000\n" + SCRIPT.replace(
        "with tf.Session",
        "z = [tf.reduce_sum(tf.tanh(x) * k + 1.0 / k) for k in range(1, 40)]\nwith tf.Session",
    ).replace("session.run(y,", "session.run([y, *z],").replace("found =", "found, *_ =")
    said_by(begin(tmp_path, limited))
    sizes = [entry.stat().st_size for entry in tmp_path.iterdir()]
    assert 0 < sum(sizes) <= 30_000
