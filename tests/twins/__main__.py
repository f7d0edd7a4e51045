"""Runs in an environment with TensorFlow: ``PYTHON twins/__main__.py PROGRAM RESULTS.npz``."""

from __future__ import annotations

import runpy
import sys

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
program, path = sys.argv[1:]
results = runpy.run_path(program)["results"](tf)
arrays = {name: np.asarray(value) for name, value in results.items()}
np.savez(path, **{name: a.astype("S") if a.dtype == object else a for name, a in arrays.items()})
