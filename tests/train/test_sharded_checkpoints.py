"""Training that is saved fully sharded, at any stage on 1, 2 or 4 devices, goes on at any stage on 1 to 4."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from tests.each import daily

STEPS = 2
FEED = np.random.default_rng(0).standard_normal((12, 6))


class Form(NamedTuple):
    """How many devices share the parts; 0: no mesh."""

    devices: int
    stage: int = 0
    offload: str | None = None

    def scope(self) -> Any:
        if self.devices == 0:
            return nullcontext()
        mesh = tf.distribute.Mesh([("dp", self.devices)])
        strategy = tf.distribute.FullyShardedStrategy(
            mesh, stage=self.stage, min_bytes=0, offload=self.offload
        )
        return strategy.scope()


SAVED = [Form(0), *[Form(n, stage) for n in (1, 2, 4) for stage in (0, 1, 2, 3)], Form(2, 3, "parameters")]
LOADED = [Form(0), *[Form(n, stage) for n in (1, 2, 3, 4) for stage in (0, 1, 2, 3)], Form(4, 2, "optimizer")]


def losses(form: Form, prefix: str, restores: bool) -> list[float]:
    """Of some steps that go on from a checkpoint, or after which one is saved; Adam has states of its own."""
    tf.reset_default_graph()
    tf.set_random_seed(3)
    with form.scope():
        x = tf.placeholder(tf.float64, [12, 6])
        h = tf.layers.dense(x, 8, tf.nn.tanh, name="a")  # [6, 8] and [8], which 3 and 4 cut unevenly or not
        loss = tf.reduce_mean(tf.square(tf.layers.dense(h, 6, name="b") - x))
        train = tf.train.AdamOptimizer(0.1).minimize(loss)
    saver = tf.train.Saver()
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
        if restores:
            saver.restore(session, prefix)
        else:
            session.run(tf.global_variables_initializer())
        found = [float(session.run([loss, train], {x: FEED})[0]) for _ in range(STEPS)]
        if not restores:
            saver.save(session, prefix)
        return found


@functools.cache
def uninterrupted(directory: Path) -> list[float]:
    """The losses of twice as many steps of one device, the last of which a restored training has."""
    prefix = f"{directory}/one"
    return [*losses(Form(0), prefix, False), *losses(Form(0), prefix, True)]


@pytest.mark.parametrize("saved", daily(zip(SAVED), lambda form: form.stage + 1 == form.devices), ids=str)
def test_training_goes_on_in_any_form(saved: Form, tmp_path_factory: pytest.TempPathFactory) -> None:
    expected = uninterrupted(tmp_path_factory.getbasetemp())
    prefix = f"{tmp_path_factory.mktemp('saved')}/model"
    np.testing.assert_allclose(losses(saved, prefix, False), expected[:STEPS], 1e-12)
    for form in LOADED:
        np.testing.assert_allclose(losses(form, prefix, True), expected[STEPS:], 1e-12, err_msg=str(form))
