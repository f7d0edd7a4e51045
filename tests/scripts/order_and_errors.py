"""Order of reads and writes under control dependencies; the exceptions that scripts catch."""

import numpy as np

import flowrt as tf

a = tf.Variable(1.0, name="a")
b = tf.Variable(a.initialized_value() * 3.0, name="b")
late = tf.Variable(0.0, name="late")
with tf.control_dependencies([tf.assign(a, a + 1)]):
    c = a.read_value() * 10
swap = tf.group(late.assign(b))

with tf.Session() as sess:
    try:
        sess.run(a)
    except tf.errors.FailedPreconditionError as e:
        print("uninitialized:", "a" in e.message)
    sess.run(tf.variables_initializer([a, b]))
    print(sess.run([a, b]), sess.run(c), sess.run(a))
    print(sess.run(tf.report_uninitialized_variables()).tolist(), sess.run(tf.is_variable_initialized(late)))
    sess.run(swap)
    late.load(7.5, sess)
    print(sess.run(late), late.eval(), a.eval(session=sess))

    x = tf.placeholder(tf.float32, [None, 3], name="x")
    doubled = x * 2
    print(sess.run(doubled + 1, {doubled: np.zeros((1, 3))}).tolist())
    other = tf.Graph()
    with other.as_default():
        tf.constant(1.0)
    nothing = tf.placeholder_with_default([5], [1])
    for expected, label, function in [
        (tf.errors.InvalidArgumentError, "not fed", lambda: sess.run(doubled)),
        (ValueError, "wrong shape fed", lambda: sess.run(doubled, {x: np.zeros((2, 2))})),
        (ValueError, "shapes differ", lambda: tf.add(tf.zeros([2]), tf.zeros([3]))),
        (TypeError, "dtypes differ", lambda: tf.add(tf.zeros([2]), tf.zeros([2], tf.int32))),
        (KeyError, "unknown name", lambda: tf.get_default_graph().get_tensor_by_name("nothing:0")),
        (TypeError, "bool of a tensor", lambda: bool(tf.zeros([]) > 1)),
        (TypeError, "iteration", lambda: list(tf.placeholder(tf.float32))),
        (ValueError, "reshape", lambda: tf.reshape(tf.zeros([4]), [3])),
        (ValueError, "concat ranks", lambda: tf.concat([tf.zeros([2]), tf.zeros([2, 2])], 0)),
        (TypeError, "not a fetch", lambda: sess.run(3)),
        (ValueError, "other graph", lambda: tf.Session(graph=other).run(doubled)),
        (tf.errors.InvalidArgumentError, "bad gather", lambda: sess.run(tf.gather([1, 2], nothing))),
        (ValueError, "no gradients", lambda: tf.train.AdamOptimizer().minimize(tf.constant(1.0))),
        (ValueError, "exists", lambda: (tf.get_variable("v", []), tf.get_variable("v", []))),
    ]:
        try:
            function()
            print(label, "passed")
        except expected:
            print(label, expected.__name__)
sess.close()
try:
    sess.run(a)
except RuntimeError:
    print("closed")
