"""Each program of `tests.twins` gives the same values in flowrt and in TensorFlow."""

from __future__ import annotations

import os
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

import flowrt as tf

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
FOLDER = Path(__file__).parent / "twins"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))
TOLERANCE = 1e-5


@pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_are_tensorflows(program: str, tmp_path: Path) -> None:
    source, path = FOLDER / f"{program}.py", tmp_path / "results.npz"
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [str(INTERPRETER), str(FOLDER / "__main__.py"), str(source), str(path)]
    subprocess.run(command, check=True, timeout=110, env=quiet)
    with tf.Graph().as_default():
        ours = runpy.run_path(str(source))["results"](tf)
    with np.load(path) as theirs:
        assert ours.keys() == set(theirs)
        wrong = [
            name
            for name in theirs
            if not same(np.asarray(ours[name]), theirs[name], name.startswith("about_"))
        ]
        told = "; ".join(f"{name}: {np.asarray(ours[name])!r:.300} {theirs[name]!r:.300}" for name in wrong)
    assert not wrong, told


def same(ours: np.ndarray, theirs: np.ndarray, nearly: bool) -> bool:
    if ours.dtype == object:
        return ours.shape == theirs.shape and bool((ours.astype("S") == theirs).all())
    tolerance = (4 if ours.dtype == np.uint8 else 4 / 255) if nearly else TOLERANCE
    near = np.allclose(
        ours.astype(float), theirs.astype(float), rtol=TOLERANCE, atol=tolerance, equal_nan=True
    )
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and near
