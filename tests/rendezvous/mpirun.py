"""Open MPI's ``mpirun``, for tests; skipped, with the reason, where it or mpi4py is missing."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flowrt.distribute.resolvers import VARIABLES

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 90
_OPTIONS = ("--oversubscribe", "--allow-run-as-root")  # more ranks than cores; containers


def mpirun(*programs: tuple[str, ...], options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run one rank of each of ``programs``, the arguments of this Python, with the transport "mpi"."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
    if importlib.util.find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed (the extra `mpi`)")
    ranks = [f"-n 1 {shlex.join([sys.executable, *program])}" for program in programs]
    command = ["mpirun", *_OPTIONS, *options, *shlex.split(" : ".join(ranks))]
    inherited = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environ = inherited | {"FLOWRT_TRANSPORT": "mpi", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
