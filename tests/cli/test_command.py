"""What the installed commands start."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import flowrt_command
from flowrt.base.user_frames import is_library
from tests.each import nightly

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 120
SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]


@pytest.mark.parametrize("name", nightly(SCRIPTS, 1))
def test_a_command_is_the_one_of_its_name(name: str) -> None:
    module, _, function = SCRIPTS[name].partition(":")
    started = subprocess.run(
        [sys.executable, "-c", f"import sys, {module}; sys.exit({module}.{function}())", "--version"],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert (started.returncode, started.stderr) == (0, "")
    assert started.stdout.startswith(f"{name} ")


def test_the_list_of_commands_does_not_wait_for_flowrt() -> None:
    code = "import sys, flowrt_command; sys.argv[1:] = ['--help']; status = flowrt_command.flowrt()"
    started = subprocess.run(
        [sys.executable, "-c", f"{code}; print(status, 'flowrt' in sys.modules)"],
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=True,
    )  # fmt: skip
    assert started.stdout.endswith("\n0 False\n")
    assert all(f"\n    {name}" in started.stdout for name in flowrt_command.COMMANDS)


def test_the_line_that_starts_a_command_is_not_the_users() -> None:
    assert is_library(flowrt_command.__file__)
