"""py_func, Print, Assert, control dependencies and tuple/group."""

import numpy as np

import flowrt as tf


def my_func(x, y):
    return np.sinh(x) + y, np.int64(x.size)


inp = tf.placeholder(tf.float32, [None])
out, size = tf.py_func(my_func, [inp, 1.0], [tf.float32, tf.int64], name="mine")
out.set_shape([None])
printed = tf.Print(out, [out, tf.shape(out)], message="This is out: ", summarize=4)
with tf.control_dependencies([tf.Assert(tf.reduce_all(inp >= 0), [inp], summarize=3)]):
    safe = tf.identity(tf.sqrt(inp))

counter = tf.Variable(0, name="counter")
increment = tf.assign_add(counter, 1)
with tf.control_dependencies([increment]):
    after = tf.identity(printed)
first, second = tf.tuple([printed, inp * 2])
everything = tf.group(increment, second.op)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print(np.round(sess.run(after, {inp: [0.0, 1.0]}), 4), sess.run(counter), sess.run(size, {inp: [1, 2, 3]}))
    print(np.round(sess.run(safe, {inp: [4.0, 9.0]}), 4))
    try:
        sess.run(safe, {inp: [-1.0]})
    except tf.errors.InvalidArgumentError as e:
        print("assertion failed:", "assertion failed" in e.message)
    print(sess.run(everything, {inp: [1.0]}), sess.run(counter))
    try:
        sess.run(tf.check_numerics(tf.log(inp), "bad log"), {inp: [0.0]})
    except tf.errors.InvalidArgumentError as e:
        print("bad log" in str(e))
