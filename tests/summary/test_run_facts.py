"""The facts of a run, recorded beside its event files."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from flowrt.cli import machine
from flowrt.errors import DataLossError
from flowrt.summary import FileWriter
from flowrt.summary.event_file import read_events
from flowrt.summary.run_facts import is_facts_file, read_facts

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys
from absl import flags as absl_flags
import flowrt as tf

flags = tf.app.flags
flags.DEFINE_float("rate", 0.1, "learning rate")
flags.DEFINE_string("name", "a", "name")
flags.DEFINE_list("layers", "64,10", "sizes")
absl_flags.DEFINE_integer("depth", 2, "depth")

def main(_):
    tf.summary.FileWriter("train").close()
    tf.summary.FileWriter("eval").close()

tf.app.run()
"""


def test_a_process_records_what_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), "--rate", "0.2", "--name=two words", "--depth=3"]
    variables = {"FLOWRT_JIT": "off", "FLOWRT_TOKEN_PATH": "/secret", "AWS_KEY": "secret"}
    environment = {n: v for n, v in os.environ.items() if not n.startswith("FLOWRT_")} | variables
    environment["PYTHONPATH"] = str(ROOT)
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    (path,) = filter(is_facts_file, (tmp_path / "train").iterdir())
    (other,) = filter(is_facts_file, (tmp_path / "eval").iterdir())
    assert path.name == other.name
    assert path.read_bytes() == other.read_bytes()
    facts = read_facts(path)
    assert facts.sections["run"] == {
        "script": str(script),
        "command": f"{sys.executable} {script} --rate 0.2 '--name=two words' --depth=3",
        "directory": str(tmp_path),
    }
    assert facts.sections["hyper-parameters"] == {
        "rate": "0.2", "name": "two words", "layers": "['64', '10']", "depth": "3",
    }  # fmt: skip
    assert facts.defaults == {"rate": "0.1", "name": "a", "layers": "['64', '10']", "depth": "2"}
    assert facts.sections["environment"] == {"FLOWRT_JIT": "off", "FLOWRT_TOKEN_PATH": "***"}
    assert facts.sections["host"]["name"] == platform.node()
    assert facts.sections["host"]["processor"] == machine.processor_name()
    versions = facts.sections["versions"]
    assert versions["numpy"] == version("numpy")
    assert versions["Python"].split()[0] == platform.python_version()
    assert {"flowrt", "llvmlite", "onednn-cpu-gomp", "cupy"} <= versions.keys()
    assert "secret" not in path.read_text()


def test_readers_of_event_files_find_what_they_did(tmp_path: Path) -> None:
    for _ in range(2):
        FileWriter(tmp_path).close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.partition(".")[0] for name in names] == ["events", "events", "run_facts"]
    assert "tfevents" not in names[-1]
    assert [event.file_version for event in read_events(tmp_path / names[0])] == ["brain.Event:2"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "null", '{"start": 0}', '{"start": "x", "sections": {}, "defaults": {}}',
     '{"start": 0, "sections": {"run": 1}, "defaults": {}}', "[" * 100_000],
    ids=["empty", "list", "null", "part", "time", "section", "deep"],
)  # fmt: skip
def test_damaged_facts(tmp_path: Path, content: str) -> None:
    path = tmp_path / "run_facts.1.host.2.json"
    path.write_text(content)
    with pytest.raises(DataLossError, match=r"host\.2\.json: expected the facts of a run; got "):
        read_facts(path)


def test_bytes_lost_or_changed_are_facts_or_an_error(tmp_path: Path) -> None:
    FileWriter(tmp_path).close()
    (path,) = filter(is_facts_file, tmp_path.iterdir())
    data, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(100):
        at, length = random.integers(0, len(data)), random.integers(1, 20)
        path.write_bytes(data[:at] + random.bytes(int(random.integers(0, 4))) + data[at + length :])
        try:
            facts = read_facts(path)
        except DataLossError:
            continue
        assert all(isinstance(v, str) for each in facts.sections.values() for v in each.values())
