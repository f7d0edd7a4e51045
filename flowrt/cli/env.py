"""``flowrt env``: the facts about the machine for a bug report, ready to paste.

It shows only the environment variables of `NAMES` and `PREFIXES`, with values that look like secrets masked,
and names those that look like flowrt's but are not: they are probably misspelled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from flowrt.base.environment import unknown_variables
from flowrt.cli import machine
from flowrt.cli.devices import device_row
from flowrt.device.cuda.cuda import why_no_gpu
from flowrt.profiler.text_table import aligned, gib

EXAMPLES = """
  flowrt env               what a bug report should hold
"""
NAMES = ("TF_CONFIG",)
PREFIXES = ("FLOWRT_", "CUDA_", "CUPY_", "OMP_", "OPENBLAS_", "MKL_")
"""Prefixes of variables read by flowrt and its compute libraries. Not ``TF_``, which Terraform uses too."""

SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|KEY")
USER_INFO = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""Name and password in an address."""

MASK = "***"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def run(arguments: argparse.Namespace) -> int:
    report = gather()
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(lines(report)))
    return 0


def gather() -> dict[str, dict[str, str]]:
    """The report: facts as text, by section."""
    return {
        "system": _system(),
        "libraries": machine.library_versions() | machine.cuda_versions(),
        "environment": shown_variables(os.environ),
        "unknown variables": unknown_variables(os.environ),
        "devices": _devices(),
    }


def lines(report: dict[str, dict[str, str]]) -> list[str]:
    """``report`` as text: one heading per section, one line per fact."""
    found = []
    for heading, facts in report.items():
        found += [f"[{heading}]", *aligned(facts.items() or [("none", "")]), ""]
    return found[:-1]


def flowrt_version() -> str:
    """flowrt's version; in a checkout also the commit, with ``-dirty`` if files have changed."""
    number: str = sys.modules["flowrt"].__version__
    commit = _commit(Path(__file__).resolve().parents[2])
    return f"{number} ({commit})" if commit else number


def shown_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that may affect flowrt, by name, without secrets."""
    return {
        name: MASK if SECRET.search(name) else USER_INFO.sub(MASK, value)
        for name, value in sorted(variables.items())
        if name in NAMES or name.startswith(PREFIXES)
    }


def _commit(root: Path) -> str:
    if not (root / ".git").exists():
        return ""
    describe = ("describe", "--always", "--dirty", "--exclude=*")
    command = ["git", "--no-optional-locks", "-C", str(root), *describe]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _system() -> dict[str, str]:
    there, usable = machine.cores()
    host = machine.local_devices()[0]
    blas = "; ".join(f"{b.name} {b.version}, {b.threads} threads" for b in machine.blas_libraries())
    return {
        "flowrt": flowrt_version(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "OS": platform.platform(),
        "processor": f"{machine.processor_name()} ({platform.machine()})",
        "cores": f"{there}, {usable} usable by this process",
        "memory": f"{gib(host.free_bytes)} free of {gib(host.total_bytes)}",
        "BLAS": blas or "none found",
    }


def _devices() -> dict[str, str]:
    rows = {device.name: _device_line(device) for device in machine.local_devices()}
    why = why_no_gpu()
    return rows if why is None else rows | {"no GPU": why}


def _device_line(device: machine.DeviceFacts) -> str:
    _, free, total, capability, model = device_row(device)
    line = f"{model}, {free} free of {total}"
    return line if device.compute_capability is None else f"{line}, compute capability {capability}"
