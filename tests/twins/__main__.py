"""Runs in an environment with TensorFlow: ``PYTHON twins/__main__.py PROGRAM RESULTS.npz``."""

from __future__ import annotations

import sys

import numpy as np
import tensorflow
from running import results_of  # this script's folder is the first on the path

tf = tensorflow if tensorflow.__version__.startswith("1.") else tensorflow.compat.v1
if tf is not tensorflow:
    tf.disable_v2_behavior()
program, path = sys.argv[1:]
arrays = {name: np.asarray(value) for name, value in results_of(program, tf).items()}
np.savez(path, **{name: a.astype("S") if a.dtype == object else a for name, a in arrays.items()})
