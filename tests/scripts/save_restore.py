"""Saver in two graphs: train and save every few steps, restore the latest checkpoint elsewhere."""

import os
import tempfile

import numpy as np

import flowrt as tf

model_dir = tempfile.mkdtemp()
model_path = os.path.join(model_dir, "model.ckpt")


def build():
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    b = tf.get_variable("b", initializer=tf.constant(0.5))
    out = tf.add(tf.matmul(x, w), b, name="out")
    return x, w, b, out


data = np.arange(12, dtype=np.float32).reshape(4, 3) / 10
with tf.Graph().as_default():
    x, w, b, out = build()
    step = tf.Variable(0, trainable=False, name="step")
    train = tf.train.GradientDescentOptimizer(0.05).minimize(tf.reduce_mean(tf.square(out - 1.0)), step)
    saver = tf.train.Saver(max_to_keep=2)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(4):
            sess.run(train, {x: data})
            save_path = saver.save(sess, model_path, global_step=step)
            print("saved", os.path.basename(save_path))
        expected = sess.run(out, {x: data})
        print("kept", [os.path.basename(p) for p in saver.last_checkpoints])

with tf.Graph().as_default() as g:
    x, w, b, out = build()
    saver = tf.train.Saver({"w": w, "b": b})
    with tf.Session(graph=g) as sess:
        ckpt = tf.train.get_checkpoint_state(model_dir)
        if ckpt and ckpt.model_checkpoint_path:
            saver.restore(sess, ckpt.model_checkpoint_path)
        print("global step", ckpt.model_checkpoint_path.split("/")[-1].split("-")[-1])
        print("same", np.allclose(expected, sess.run("out:0", {"x:0": data})), sess.run(b).round(4))
        print(tf.train.latest_checkpoint(model_dir) == ckpt.model_checkpoint_path)
        print([(n, s) for n, s in tf.train.list_variables(model_dir)])
        try:
            saver.restore(sess, os.path.join(model_dir, "nothing"))
        except (ValueError, tf.errors.NotFoundError):
            print("no such checkpoint")
