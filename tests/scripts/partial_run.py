"""partial_run: feed and fetch a step in pieces; and make_callable."""

import numpy as np

import flowrt as tf

a = tf.placeholder(tf.float32, shape=[])
b = tf.placeholder(tf.float32, shape=[])
c = tf.placeholder(tf.float32, shape=[])
r1 = tf.add(a, b)
r2 = tf.multiply(r1, c)
with tf.Session() as sess:
    h = sess.partial_run_setup([r1, r2], [a, b, c])
    res = sess.partial_run(h, r1, feed_dict={a: 1, b: 2})
    print(res)
    res = sess.partial_run(h, r2, feed_dict={c: res * 10})
    print(res)
    f = sess.make_callable([r1, {"product": r2}], feed_list=[a, b, c])
    print(f(1.0, 2.0, np.float32(4)))
    print(sess.run({"x": (r1, [r2, r1])}, {a: 1, b: 1, c: 5}))
