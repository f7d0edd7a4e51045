"""The sides of the comparison, flowrt and its peers, seen from the process that runs them.

A side is an interpreter that runs `worker.py`. Each measurement is a process of its own, so that nobody
inherits another's threads, caches or memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import Outcome

WORKER = Path(__file__).resolve().parent / "worker.py"
TIMEOUT_S = 900  # TensorFlow's first run of 100,000 operations takes a minute, twice that on a busy machine
VERSION_S = 60
"""An interpreter on a slow disk tells its version within this."""

TITLES = {
    "flowrt": "flowrt",
    "tensorflow": "TensorFlow",
    "torch": "PyTorch",
    "torch_compile": "torch.compile",
    "jax": "JAX",
}
PEERS = tuple(name for name in TITLES if name != "flowrt")


class NoInterpreter(Exception):
    """What was named as a side's interpreter is none."""


class Side(NamedTuple):
    """``interpreter`` has version ``version`` of ``name``, which has ``cases``."""

    name: str
    interpreter: Path
    version: str
    cases: tuple[str, ...]


class NotRun(NamedTuple):
    """Why there is no figure: the side lacks an operation, or the case failed there."""

    reason: str
    is_failure: bool


def find_side(name: str, interpreter: Path) -> Side | NotRun:
    """Ask ``interpreter`` for side ``name``; `NotRun` where it has none."""
    answer = _ask(interpreter, name)
    if isinstance(answer, NotRun):
        return answer
    return Side(name, interpreter, answer["version"], tuple(answer["cases"]))


def measure(side: Side, case: str) -> Outcome | NotRun:
    """Run ``case`` once on ``side``, in a process of its own."""
    answer = _ask(side.interpreter, side.name, case)
    if isinstance(answer, NotRun):
        return answer
    if "not_there" in answer:
        return NotRun(answer["not_there"], is_failure=False)
    return Outcome(answer["figures"], answer["value"])


def find_interpreter(path: Path) -> Path:
    """The interpreter that ``path`` is, or that is in the environment there. Raises `NoInterpreter`."""
    found = path / "bin" / "python" if path.is_dir() else path
    if not found.is_file():
        raise NoInterpreter(f"peers: expected an environment or an interpreter; got {path}")
    why = _why_no_python(found)
    if why is not None:
        raise NoInterpreter(f"peers: expected a Python interpreter; got {found}: {why}")
    return found


def _why_no_python(path: Path) -> str | None:
    command = [path, "-V"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_S, check=False
        )
    except OSError as error:
        return error.strerror
    except subprocess.TimeoutExpired:
        return f"no version after {VERSION_S} s"
    return None if done.stdout.startswith(b"Python 3") else "it does not say that it is Python 3"


def ours() -> Side | NotRun:
    return find_side("flowrt", Path(sys.executable))


def _ask(interpreter: Path, *arguments: str) -> dict[str, Any] | NotRun:
    command = [str(interpreter), str(WORKER), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return NotRun(f"not done after {TIMEOUT_S} s", is_failure=True)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}, no message"]
        return NotRun(last[0], is_failure=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
