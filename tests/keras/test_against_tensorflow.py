"""Models of `tests.keras.models` train as TensorFlow 1's Keras trains them, from equal weights."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import keras
from tests.keras import models

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Any]]:
    """Results of all models here, and TensorFlow's from the same weights, which are those of every run. With
    two of twenty others, rounding takes `residual` to the other side of a ReLU, and its evaluation differs by
    20 tolerances. TensorFlow's does then, too, if its inputs are changed by 1.2e-7.
    """
    folder = tmp_path_factory.mktemp("keras")
    weights, ours = {}, {}
    for case in models.CASES:
        with tf.Graph().as_default():
            tf.set_random_seed(3)
            initial, *ours[case] = models.run(keras, case)
        weights |= {f"{case}/{i}": value for i, value in enumerate(initial)}
    np.savez(folder / "weights.npz", **weights)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", "TF_USE_LEGACY_KERAS": "1"}
    command = [str(INTERPRETER), models.__file__, str(folder / "weights.npz"), str(folder / "theirs.npz")]
    subprocess.run([*command, *models.CASES], check=True, timeout=400, env=os.environ | quiet)
    with np.load(Path(folder / "theirs.npz")) as theirs:
        yield ours, dict(theirs)


TENSORFLOW = pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")


@pytest.mark.slow
@pytest.mark.timeout(500)
@TENSORFLOW
@pytest.mark.parametrize("case", models.CASES)
def test_results_of_twenty_steps_are_tensorflows(case: str, both: tuple[dict[str, Any], Any]) -> None:
    ours, theirs = both
    for found, expected in zip(ours[case], (theirs[f"{case}/steps"], theirs[f"{case}/end"]), strict=True):
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(500)
@TENSORFLOW
def test_metrics_and_losses_are_tensorflows(both: tuple[dict[str, Any], Any]) -> None:
    with tf.Graph().as_default():
        ours = models.measures(keras)
    for name, value in ours.items():
        np.testing.assert_allclose(value, both[1][name], rtol=1e-5, atol=1e-6, err_msg=name)
