"""Scalars and histograms merged and written; the file is read back with summary_iterator."""

import glob
import os
import tempfile

import numpy as np

import flowrt as tf

logdir = tempfile.mkdtemp()


def variable_summaries(var, name):
    with tf.name_scope("summaries"):
        mean = tf.reduce_mean(var)
        tf.summary.scalar("mean/" + name, mean)
        tf.summary.histogram(name, var)


x = tf.placeholder(tf.float32, [None, 2])
with tf.name_scope("layer"):
    w = tf.Variable(np.ones((2, 1), np.float32), name="w")
    variable_summaries(w, "weights")
loss = tf.reduce_mean(tf.square(tf.matmul(x, w) - 3.0))
tf.summary.scalar("loss", loss)
merged = tf.summary.merge_all()
train = tf.train.GradientDescentOptimizer(0.1).minimize(loss)
data = np.array([[1, 2], [0, 1]], np.float32)

with tf.Session() as sess:
    writer = tf.summary.FileWriter(logdir, sess.graph)
    sess.run(tf.global_variables_initializer())
    for i in range(3):
        writer.add_summary(sess.run(merged, {x: data}), i)
        sess.run(train, {x: data})
    note = tf.Summary(value=[tf.Summary.Value(tag="by_hand", simple_value=0.25)])
    writer.add_summary(note, 3)
    writer.flush()
    writer.close()

(path,) = glob.glob(os.path.join(logdir, "events.out.tfevents.*"))
for event in tf.train.summary_iterator(path):
    for value in event.summary.value:
        if value.HasField("simple_value"):
            print(event.step, value.tag, "%.4f" % value.simple_value)
        elif value.HasField("histo"):
            print(event.step, value.tag, "histogram of", value.histo.num)
