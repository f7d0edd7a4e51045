"""Run public TensorFlow 1 programs as they are, on flowrt.

    python -m tests.scripts.public CLONES [NAME ...]

CLONES holds a clone of each repository of `programs.txt` at ``owner/name``. A program either ends, or still
runs after its seconds, or fails: then its last line is shown, and the exit status is 1. It needs what its
authors needed: gym 0.17, NumPy before 2.3, networkx, mpi4py, OpenCV; nothing of this is in our environment.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

TABLE = Path(__file__).with_name("programs.txt")
ROOT = Path(__file__).parents[3]


class Program(NamedTuple):
    """A program in ``folder`` below the clones, which may run for ``seconds``."""

    name: str
    seconds: int
    folder: str
    words: list[str]


def read_programs(text: str) -> list[Program]:
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    return [Program(name, int(seconds), folder, words) for name, seconds, folder, *words in rows]


def make_bert_files(clones: Path, work: Path) -> None:
    """A vocabulary of the repository's sample text, and a small model's settings."""
    text = (clones / "google-research/bert/sample_text.txt").read_text("utf-8").lower()
    letters, words = sorted(set(text) - set(" \n\t")), sorted(set(re.findall("[a-z]+", text)))
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = list(dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *words]))
    (work / "vocab.txt").write_text("\n".join(tokens) + "\n", "utf-8")
    settings = {
        "vocab_size": len(tokens), "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 64, "max_position_embeddings": 64, "hidden_act": "gelu", "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "initializer_range": 0.02,
    }  # fmt: skip
    (work / "config.json").write_text(json.dumps(settings))


def run(program: Program, clones: Path, work: Path) -> str:
    """How the program went: "ended", "still running", or its last line."""
    beside = (clones / program.folder).parent  # where a package of the repository is found by its name
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", ""), str(beside)])
    settings = {**os.environ, "PYTHONPATH": path, "FLOWRT_MNIST": "digits", "MPLBACKEND": "agg"}
    words = [word.replace("{work}", str(work)) for word in program.words]
    command = [sys.executable, "-m", "flowrt.cli.tf1", *words]
    try:
        done = subprocess.run(
            command, cwd=clones / program.folder, env=settings, timeout=program.seconds, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "still running"
    return "ended" if done.returncode == 0 else "failed: " + done.stdout.strip().rpartition("\n")[2]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run public TensorFlow 1 programs on flowrt.")
    parser.add_argument("clones", type=Path)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work, clones = Path(folder), arguments.clones.resolve()
        if (clones / "google-research/bert").exists():
            make_bert_files(clones, work)
        for program in read_programs(TABLE.read_text()):
            if not arguments.names or program.name in arguments.names:
                went = run(program, clones, work)
                failed += went not in ("ended", "still running")
                print(f"{program.name:15} {went}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
