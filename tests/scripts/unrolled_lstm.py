"""An LSTM cell written by hand and unrolled over unstack, trained on a sum task with clipped gradients."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(13)
steps, units, batch = 6, 5, 16
kernel0 = (rng.randn(1 + units, 4 * units) * 0.4).astype(np.float32)
head0 = (rng.randn(units, 1) * 0.4).astype(np.float32)

x = tf.placeholder(tf.float32, [batch, steps, 1])
y = tf.placeholder(tf.float32, [batch, 1])


def lstm_cell(inputs, state):
    c, h = state
    with tf.variable_scope("lstm", reuse=tf.AUTO_REUSE):
        kernel = tf.get_variable("kernel", initializer=kernel0)
        bias = tf.get_variable("bias", [4 * units], initializer=tf.zeros_initializer())
    gates = tf.nn.bias_add(tf.matmul(tf.concat([inputs, h], 1), kernel), bias)
    i, j, f, o = tf.split(value=gates, num_or_size_splits=4, axis=1)
    new_c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    return new_c, tf.tanh(new_c) * tf.sigmoid(o)


state = (tf.zeros([batch, units]), tf.zeros([batch, units]))
outputs = []
for t, inputs in enumerate(tf.unstack(x, num=steps, axis=1)):
    state = lstm_cell(inputs, state)
    outputs.append(state[1])
output = tf.stack(outputs, axis=1)
prediction = tf.matmul(output[:, -1, :], tf.get_variable("head", initializer=head0))
loss = tf.losses.mean_squared_error(y, prediction)
optimizer = tf.train.AdamOptimizer(0.02)
gradients, variables = zip(*optimizer.compute_gradients(loss))
gradients, norm = tf.clip_by_global_norm(gradients, 1.0)
train = optimizer.apply_gradients(zip(gradients, variables))
print(output.get_shape(), [v.name for v in variables])

data = rng.rand(batch, steps, 1).astype(np.float32)
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    for i in range(61):
        _, l, n = sess.run([train, loss, norm], {x: data, y: data.sum(1)})
        if i % 20 == 0:
            print(i, "%.4f %.4f" % (l, n))
