"""Runs of the examples as a user runs them: by name, in an empty folder, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_example(name: str, *arguments: str, folder: Path) -> str:
    """What ``python examples/NAME ARGUMENTS`` prints."""
    done = run_python("-W", "error", str(ROOT / "examples" / name), *arguments, folder=folder)
    assert not done.stderr
    return done.stdout


def run_launched(name: str, *arguments: str, folder: Path, processes: int = 2) -> str:
    """What ``flowrt-run --standalone --nproc PROCESSES examples/NAME ARGUMENTS`` prints."""
    launcher = ("-m", "flowrt.cli.run", "--standalone", "--nproc", str(processes))
    return run_python(*launcher, str(ROOT / "examples" / name), *arguments, folder=folder).stdout


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def number_after(words: str, text: str) -> float:
    found = re.search(rf"{re.escape(words)}\s+([0-9.]+)", text)
    assert found, f"expected {words!r} and a number; got {text!r}"
    return float(found[1])


def difference_in(text: str) -> float:
    """The largest difference of a loss to one device's."""
    found = re.search(r"largest difference (\S+)", text)
    assert found is not None
    return float(found[1])


def path_after(word: str, text: str, folder: Path) -> Path:
    found = re.search(rf"^{re.escape(word)}\s+(\S+)", text, re.MULTILINE)
    assert found, f"expected {word!r} and a path; got {text!r}"
    return folder / found[1]
