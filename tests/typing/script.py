"""A TensorFlow 1 script as users write them, without annotations: type checkers find nothing in it."""

import numpy as np

import flowrt as tf


def model(images, training):
    net = tf.reshape(images, [-1, 28, 28, 1])
    net = tf.layers.conv2d(net, 8, 3, strides=2, padding="same", activation=tf.nn.relu)
    kernel = tf.get_variable("kernel", [3, 3, 8, 16], initializer=tf.truncated_normal_initializer(stddev=0.1))
    net = tf.nn.conv2d(net, kernel, strides=[1, 1, 1, 1], padding="SAME")
    net = tf.nn.max_pool(net, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    net = tf.layers.batch_normalization(net, training=training)
    net = tf.reshape(net, [-1, int(net.shape[1] * net.shape[2] * net.shape[3])])
    net = tf.layers.dropout(net, rate=0.4, training=training)
    return tf.layers.dense(net, 10, kernel_initializer=tf.glorot_uniform_initializer())


tf.set_random_seed(1)
images = tf.placeholder(tf.float32, [None, 784], name="images")
labels = tf.placeholder(tf.int64, [None])
training = tf.placeholder_with_default(False, shape=())
with tf.variable_scope("model", reuse=tf.AUTO_REUSE), tf.device("/cpu:0"):
    logits = model(images, training)

loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
also = tf.losses.sparse_softmax_cross_entropy(labels, logits, reduction=tf.losses.Reduction.MEAN)
hot = tf.losses.softmax_cross_entropy(tf.one_hot(labels, 10), logits)
correct = tf.equal(tf.argmax(logits, axis=1), labels)
accuracy = tf.reduce_mean(tf.cast(correct, "float32"), reduction_indices=[0], keep_dims=True)
counted, update = tf.metrics.accuracy(labels, tf.argmax(logits, 1))

# operators, indices and slices
x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
b = tf.Variable(tf.zeros([2]), name="b")
y = (1 - x) / 2 + x @ x * b - x**2 + -x % 3 + abs(x)
first, rest, last = y[0], y[1:, tf.newaxis], y[..., -1]
big = tf.logical_and(x > 1.0, x <= np.float32(3)) & ~(x < b)
rows = tf.concat([x, y, np.ones([1, 2], np.float32)], 0)
parts = tf.split(rows, num_or_size_splits=[2, 3], axis=0)
padded = tf.pad(x, [[1, 1], [0, 0]], "CONSTANT")
same = tf.reshape(x, tf.shape(y)), tf.zeros([2] + x.shape.as_list()), tf.tile(x, [1, x.shape[1]])
text = tf.string_join([tf.as_string(tf.range(3)), "!"], separator=" ")

# control flow
branch = tf.cond(loss > 1.0, lambda: loss, lambda: loss * 2.0)
_, total = tf.while_loop(
    lambda i, s: i < 10, lambda i, s: [i + 1, s + 1.0], [tf.constant(0), tf.constant(0.0)]
)
squares = tf.map_fn(lambda each: each * each, tf.range(4), dtype=tf.int32)
array = tf.TensorArray(tf.float32, size=3).unstack(tf.zeros([3, 2])).stack()
cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.LSTMCell(8) for _ in range(2)])
outputs, state = tf.nn.dynamic_rnn(cell, tf.zeros([2, 5, 3]), dtype=tf.float32)

small = tf.keras.Sequential([tf.keras.layers.Dense(4, activation="relu", input_shape=(3,))])
small.compile("sgd", "mse")

# training
global_step = tf.train.get_or_create_global_step()
rate = tf.train.exponential_decay(0.1, global_step, decay_steps=100, decay_rate=0.9, staircase=True)
optimizer = tf.train.MomentumOptimizer(rate, 0.9)
gradients, variables = zip(*optimizer.compute_gradients(loss))
gradients, norm = tf.clip_by_global_norm(gradients, 5.0)
with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
    train_op = optimizer.apply_gradients(zip(gradients, variables), global_step=global_step)
step_op = tf.group(train_op, tf.assign_add(b, [1.0, 1.0]), update)
(slope,) = tf.gradients(y, x)

# input
dataset = tf.data.Dataset.from_tensor_slices((np.zeros([8, 784], "float32"), np.zeros([8], "int64")))
dataset = dataset.map(lambda image, label: (image / 255.0, label)).shuffle(8).repeat().batch(4).prefetch(1)
next_images, next_labels = dataset.make_one_shot_iterator().get_next()

tf.summary.scalar("loss", loss)
tf.summary.histogram("logits", logits)
merged = tf.summary.merge_all()
saver = tf.train.Saver(max_to_keep=2)
config = tf.ConfigProto(device_count={"CPU": 2}, allow_soft_placement=True)
config.gpu_options.allow_growth = True

with tf.Session(config=config) as sess:
    sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    writer = tf.summary.FileWriter("runs/script", sess.graph)
    for step in range(2):
        batch, targets = sess.run([next_images, next_labels])
        feed = {images: batch, labels: targets, training: True}
        _, value, summary = sess.run([step_op, loss, merged], feed_dict=feed)
        results = sess.run({"loss": loss, "b": b, "name": "b:0"}, feed)
        writer.add_summary(summary, step)
        tf.logging.info("step %d: %.3f %s", step, value, results["b"].shape)
    print(loss.eval(feed_dict={images: np.zeros([1, 784]), labels: [1]}), b.eval(sess))
    saver.save(sess, "runs/script/model", global_step=global_step)

with tf.train.MonitoredTrainingSession(hooks=[tf.train.StopAtStepHook(last_step=1)]) as monitored:
    while not monitored.should_stop():
        monitored.run(global_step)
