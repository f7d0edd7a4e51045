"""RegisterGradient with gradient_override_map, tf.custom_gradient, stop_gradient, straight-through estimators."""

import numpy as np

import flowrt as tf


@tf.RegisterGradient("GuidedRelu")
def _guided_relu_grad(op, grad):
    return tf.where(grad > 0.0, tf.where(op.outputs[0] > 0.0, grad, tf.zeros_like(grad)), tf.zeros_like(grad))


@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)

    def grad(dy):
        return dy * (1 - 1 / (1 + e))

    return tf.log(1 + e), grad


x = tf.placeholder(tf.float32, [None])
w = tf.constant([1.0, -1.0, 2.0, -3.0])
with tf.get_default_graph().gradient_override_map({"Relu": "GuidedRelu"}):
    guided = tf.gradients(tf.nn.relu(x) * w, x)[0]
plain = tf.gradients(tf.nn.relu(x) * w, x)[0]
stable = tf.gradients(log1pexp(x), x)[0]
binary = x + tf.stop_gradient(tf.sign(x) - x)
through = tf.gradients(binary * w, x)[0]
clipped = tf.gradients(tf.clip_by_value(x, -1.0, 1.5), x)[0]
weighted = tf.gradients([x * 2, x * x], x, grad_ys=[w, tf.ones_like(x)])[0]

with tf.Session() as sess:
    feed = {x: [1.0, 2.0, -1.0, 0.5]}
    print(sess.run(guided, feed), sess.run(plain, feed))
    print(np.round(sess.run(stable, {x: [0.0, 100.0]}), 4))
    print(sess.run(binary, feed), sess.run(through, feed))
    print(sess.run(clipped, {x: [-2.0, 0.0, 1.0, 3.0]}), sess.run(weighted, feed))
