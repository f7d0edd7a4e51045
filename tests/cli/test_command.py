"""What the installed commands start."""

from __future__ import annotations

import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import flowrt_command

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]

INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "flowrt.errors":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
import flowrt_command
sys.exit(flowrt_command.{function}())
"""


def started(script: str, *arguments: str) -> Any:
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_is_the_one_of_its_name(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    assert module == flowrt_command.__name__
    done = started(f"import {module}, sys; sys.exit({module}.{function}())", "--version")
    assert done.stdout.startswith(f"{name} ")
    assert done.returncode == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_interrupt_while_flowrt_is_imported_says_nothing(name: str) -> None:
    done = started(INTERRUPTED.format(function=SCRIPTS[name].partition(":")[2]))
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_what_is_ignored_stays_so() -> None:
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    done = started(script + INTERRUPTED.format(function="flowrt"), "--version")
    assert (done.returncode, done.stderr) == (0, "")
