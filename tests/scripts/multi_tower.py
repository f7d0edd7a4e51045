"""Data-parallel towers on two CPU devices whose gradients are averaged, as the CIFAR-10 multi-GPU script does."""

import numpy as np

import flowrt as tf

NUM = 2
rng = np.random.RandomState(6)
inputs = rng.randn(40, 4).astype(np.float32)
targets = (inputs.dot([1.0, -2.0, 0.5, 3.0]) + 1).astype(np.float32)


def tower_loss(scope, x, y):
    w = tf.get_variable("w", [4], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * w, axis=1) + b - y))
    tf.add_to_collection("losses", loss)
    return tf.add_n(tf.get_collection("losses", scope), name="total_loss")


def average_gradients(tower_grads):
    average_grads = []
    for grad_and_vars in zip(*tower_grads):
        grads = []
        for g, _ in grad_and_vars:
            grads.append(tf.expand_dims(g, 0))
        grad = tf.reduce_mean(tf.concat(axis=0, values=grads), 0)
        average_grads.append((grad, grad_and_vars[0][1]))
    return average_grads


with tf.Graph().as_default(), tf.device("/cpu:0"):
    global_step = tf.get_variable("global_step", [], initializer=tf.constant_initializer(0), trainable=False)
    x = tf.placeholder(tf.float32, [None, 4])
    y = tf.placeholder(tf.float32, [None])
    opt = tf.train.GradientDescentOptimizer(0.1)
    tower_grads = []
    xs, ys = tf.split(x, NUM), tf.split(y, NUM)
    with tf.variable_scope(tf.get_variable_scope()):
        for i in range(NUM):
            with tf.device("/cpu:%d" % i):
                with tf.name_scope("%s_%d" % ("tower", i)) as scope:
                    loss = tower_loss(scope, xs[i], ys[i])
                    tf.get_variable_scope().reuse_variables()
                    tower_grads.append(opt.compute_gradients(loss))
    grads = average_gradients(tower_grads)
    train_op = opt.apply_gradients(grads, global_step=global_step)
    config = tf.ConfigProto(allow_soft_placement=True, device_count={"CPU": NUM})
    config.gpu_options.allow_growth = True
    with tf.Session(config=config) as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(60):
            _, loss_value = sess.run([train_op, loss], {x: inputs, y: targets})
            assert not np.isnan(loss_value), "Model diverged with loss = NaN"
        print("%.5f" % loss_value, sess.run(global_step))
        with tf.variable_scope("", reuse=True):
            print(np.round(sess.run(tf.get_variable("w", [4])), 2), loss.device)
        print(len([d for d in sess.list_devices() if d.device_type == "CPU"]))
