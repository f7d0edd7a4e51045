"""Writes `fixtures`, in an environment with TensorFlow: python -m tests.storage.write_fixtures FOLDER"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import tensorflow.compat.v1 as tf

from tests.storage.cases import IN_VERSION_1, PARTS, RATE, STEPS, batch, tensors
from tests.storage.network import train


def save_tensors(folder: Path) -> None:
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        for i, (name, value) in enumerate(tensors().items()):
            parts = PARTS.get(name, 1)
            partitioner = (
                tf.fixed_size_partitioner(parts, axis=int(name == "by_columns")) if parts > 1 else None
            )
            with tf.device(f"/cpu:{i % 2}"):
                tf.get_variable(name, initializer=tf.constant(value), partitioner=partitioner)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(folder / "all"), write_meta_graph=False)
        tf.train.Saver(sharded=True).save(session, str(folder / "sharded"), 7, write_meta_graph=False)
        old = [v for v in tf.global_variables() if v.op.name.split("/")[0] in (*IN_VERSION_1, *PARTS)]
        saver = tf.train.Saver(old, write_version=tf.train.SaverDef.V1)
        saver.save(session, str(folder / "version_1"), write_meta_graph=False)


def save_training(folder: Path) -> None:
    losses = {}
    for name in ("Adam", "Momentum", "RMSProp", "Adagrad"):
        with tf.Graph().as_default(), tf.Session() as session:
            given = {"momentum": 0.9} if name == "Momentum" else {}
            x, y, loss, update = train(tf, getattr(tf.train, f"{name}Optimizer")(RATE, **given))
            session.run(tf.global_variables_initializer())
            for step in range(2 * STEPS):
                if step == STEPS:
                    tf.train.Saver().save(session, str(folder / name), write_meta_graph=False)
                fed = dict(zip((x, y), batch(step), strict=True))
                losses.setdefault(name, []).append(float(session.run([loss, update], fed)[0]))
    (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    tf.disable_v2_behavior()
    folder = Path(sys.argv[1])
    save_tensors(folder)
    save_training(folder)
    (folder / "checkpoint").unlink()
