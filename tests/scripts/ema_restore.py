"""Moving averages of the weights, saved, and restored into the weights by variables_to_restore."""

import os
import tempfile

import flowrt as tf

MOVING_AVERAGE_DECAY = 0.9
path = os.path.join(tempfile.mkdtemp(), "ema.ckpt")

with tf.Graph().as_default():
    global_step = tf.train.get_or_create_global_step()
    w = tf.get_variable("w", initializer=4.0)
    b = tf.get_variable("b", initializer=[1.0, -1.0])
    loss = tf.square(w) + tf.reduce_sum(tf.square(b))
    opt = tf.train.GradientDescentOptimizer(0.1)
    apply_gradient_op = opt.apply_gradients(opt.compute_gradients(loss), global_step=global_step)
    variable_averages = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY, global_step)
    with tf.control_dependencies([apply_gradient_op]):
        variables_averages_op = variable_averages.apply(tf.trainable_variables())
    with tf.control_dependencies([apply_gradient_op, variables_averages_op]):
        train_op = tf.no_op(name="train")
    saver = tf.train.Saver(tf.global_variables())
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for _ in range(6):
            sess.run(train_op)
        print("%.5f" % sess.run(w), "%.5f" % sess.run(variable_averages.average(w)))
        print(variable_averages.average_name(w), [v.op.name for v in tf.global_variables()])
        saver.save(sess, path)

with tf.Graph().as_default():
    w = tf.get_variable("w", initializer=0.0)
    b = tf.get_variable("b", [2])
    variables_to_restore = tf.train.ExponentialMovingAverage(MOVING_AVERAGE_DECAY).variables_to_restore()
    print(sorted(variables_to_restore))
    saver = tf.train.Saver(variables_to_restore)
    with tf.Session() as sess:
        saver.restore(sess, path)
        print("%.5f" % sess.run(w), sess.run(b).round(5).tolist())
