"""Flags and tf.app.run, as every research script begins."""

from __future__ import absolute_import, division, print_function

import flowrt as tf

flags = tf.app.flags
flags.DEFINE_integer("max_steps", 20, "Number of steps to run trainer.")
flags.DEFINE_float("learning_rate", 0.1, "Initial learning rate.")
flags.DEFINE_string("model_dir", "/tmp/x", "Directory for the model")
flags.DEFINE_boolean("use_fp16", False, "Train the model using fp16.")
tf.flags.DEFINE_enum("mode", "train", ["train", "eval"], "What to do")
FLAGS = flags.FLAGS


def data_type():
    return tf.float16 if FLAGS.use_fp16 else tf.float32


def train():
    with tf.Graph().as_default():
        v = tf.Variable(5.0, dtype=data_type())
        step = tf.train.GradientDescentOptimizer(FLAGS.learning_rate).minimize(tf.square(v))
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            for _ in range(FLAGS.max_steps):
                sess.run(step)
            print("%.5f" % sess.run(v), FLAGS.mode, FLAGS.model_dir)


def main(_):
    tf.logging.set_verbosity(tf.logging.ERROR)
    tf.logging.info("not shown")
    train()


if __name__ == "__main__":
    tf.app.run()
