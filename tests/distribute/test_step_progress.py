"""`StepProgress`: what a step is told to be at is its own."""

from __future__ import annotations

import numpy as np

import flowrt as tf
from flowrt.distribute.worker.step_progress import StepProgress
from flowrt.rendezvous.remote import RemoteRendezvous


def test_a_step_is_at_an_operation_while_its_programs_run() -> None:
    progress, said = StepProgress(), list[str]()
    rendezvous = RemoteRendezvous("/job:worker/task:0", lambda task, keys: None)

    def look() -> np.float32:
        (control,) = session._running
        progress.begin(1, control, rendezvous)
        said.append(progress.describe(1))
        return np.float32(0)

    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.py_func(look, [], tf.float32, name="looks"))
    said.append(progress.describe(1))
    progress.end(1)
    said.append(progress.describe(1))
    assert "is at PyFunc 'looks'" in said[0]
    assert said[1:] == ["runs the step", "does not run the step"]
