"""`StepProgress`: what a step is told to be at is its own."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.worker.step_progress import StepProgress
from flowrt.rendezvous.remote import RemoteRendezvous


@pytest.mark.parametrize("is_left", [False, True])
def test_what_a_thread_runs_is_its_steps_until_it_has_left_it(is_left: bool) -> None:
    progress, said = StepProgress(), list[str]()
    progress.begin(1, RemoteRendezvous("/job:worker/task:0", lambda task, keys: None))
    progress.run_here(1)
    if is_left:
        progress.left(1)

    def look() -> np.float32:
        said.append(progress.describe(1))
        return np.float32(0)

    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.py_func(look, [], tf.float32, name="looks"))
    assert ("is at PyFunc 'looks'" in said[0]) == (not is_left)
