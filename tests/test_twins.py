"""Each program of `tests.twins` gives the same values in flowrt and in TensorFlow; no function is without.

FLOWRT_TENSORFLOW names an interpreter with TensorFlow 2.21, FLOWRT_TENSORFLOW_1 one with TensorFlow 1.15,
for the programs in ``first``.
"""

from __future__ import annotations

import os
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.op_def import OpDef
from tests.twins.running import results_of

FOLDER = Path(__file__).parent / "twins"
INTERPRETERS = {"twins": os.environ.get("FLOWRT_TENSORFLOW"), "first": os.environ.get("FLOWRT_TENSORFLOW_1")}
PROGRAMS = sorted(
    str(path.relative_to(FOLDER).with_suffix(""))
    for path in FOLDER.rglob("*.py")
    if "(tf):" in path.read_text() and path.stem != "running"
)
TOLERANCE = 1e-5


@pytest.mark.parametrize("program", PROGRAMS)
def test_values_are_tensorflows(program: str, tmp_path: Path) -> None:
    source, path = FOLDER / f"{program}.py", tmp_path / "results.npz"
    interpreter = INTERPRETERS[source.parent.name]
    if interpreter is None:
        pytest.skip(f"no interpreter with TensorFlow for {source.parent.name}")
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = [interpreter, str(FOLDER / "__main__.py"), str(source), str(path)]
    subprocess.run(command, check=True, timeout=280, env=quiet)
    with tf.Graph().as_default():
        ours = results_of(str(source), tf)
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
    if ours.dtype.kind in "OSU" or theirs.dtype.kind in "OSU":
        return ours.shape == theirs.shape and bool((ours.astype("S") == theirs.astype("S")).all())
    tolerance = (4 if ours.dtype == np.uint8 else 4 / 255) if nearly else TOLERANCE
    near = np.allclose(
        ours.astype(complex), theirs.astype(complex), rtol=TOLERANCE, atol=tolerance, equal_nan=True
    )
    return ours.shape == theirs.shape and ours.dtype == theirs.dtype and near


COMPARED = (
    "image", "io", "sparse", "lookup", "feature_column", "distributions", "contrib.distributions",
    "contrib.distributions.bijectors", "strings",
    "linalg", "signal", "nn", "math", "bitwise", "audio",
)  # fmt: skip
"""Modules of which every function is in a program."""

ELSEWHERE = {
    **dict.fromkeys(
        ("Bijector", "Distribution", "RegisterKL", "ReparameterizationType", "HasherSpec", "LinearOperator"),
        "computes nothing itself",
    ),
    **dict.fromkeys(("ndtr", "log_ndtr", "ndtri"), "TensorFlow 1.15 has them for its own distributions only"),
    **dict.fromkeys(("gelu", "layer_norm"), "TensorFlow 1 has none"),
    **dict.fromkeys(
        ("log_uniform_candidate_sampler", "uniform_candidate_sampler"), "draws differ: see tests.test_sampled"
    ),
}
"""Functions and classes in no program, and why."""


class Watched:
    """A module that notes which of its functions and classes are looked up, here and in modules below."""

    def __init__(self, module: types.ModuleType, seen: set[int]) -> None:
        self._module, self._seen = module, seen

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._module, name)
        if isinstance(found, types.ModuleType):
            return Watched(found, self._seen)
        self._seen.add(id(found))
        return found


def functions_of(path: str) -> Iterator[tuple[str, Any]]:
    module: Any = tf
    for part in path.split("."):
        module = getattr(module, part)
    for name in getattr(module, "__all__", dir(module)):
        found = getattr(module, name)
        if callable(found) and not name.startswith(("_", "missing_")) and found is not Any:
            yield name, found


@pytest.mark.slow
def test_every_function_is_in_a_program() -> None:
    seen = set[int]()
    for program in PROGRAMS:
        with tf.Graph().as_default():
            results_of(str(FOLDER / f"{program}.py"), Watched(tf, seen))
    missing = {
        f"{path}.{name}"
        for path in COMPARED
        for name, found in functions_of(path)
        if id(found) not in seen and not isinstance(found, OpDef)  # of which every sample is compared
    }
    assert {name for name in missing if name.rpartition(".")[2] not in ELSEWHERE} == set()
