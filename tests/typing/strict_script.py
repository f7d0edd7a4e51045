"""A TensorFlow 1 script without functions of its own: pyright's strict mode finds nothing in it."""

import numpy as np

import flowrt as tf

images = tf.placeholder(tf.float32, [None, 28, 28, 1], name="images")
labels = tf.placeholder(tf.int64, [None])
net = tf.layers.conv2d(images, 8, 3, strides=2, padding="same", activation=tf.nn.relu)
net = tf.layers.max_pooling2d(net, 2, 2)
logits = tf.layers.dense(tf.layers.flatten(net), 10)
loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
_, total = tf.while_loop(lambda i, s: i < 10, lambda i, s: (i + 1, s + 1.0), [0, tf.constant(0.0)])
largest = tf.cond(loss > 1.0, lambda: loss, lambda: total)
squares = tf.map_fn(lambda each: each * each, tf.range(4), dtype=tf.int32)
train = tf.train.AdamOptimizer(1e-3).minimize(loss, global_step=tf.train.get_or_create_global_step())
data = tf.data.Dataset.from_tensor_slices((np.zeros([8, 28, 28, 1], "float32"), np.zeros(8, "int64")))
data = data.filter(lambda image, label: label < 9).map(lambda image, label: (image / 255.0, label)).batch(4)
next_batch = data.map(lambda image, label: (tf.abs(image), label)).make_one_shot_iterator().get_next()
one = data.map(lambda image, label: image).map(lambda image: image[0]).flat_map(tf.data.Dataset.from_tensors)
tf.summary.scalar("loss", loss)
merged = tf.summary.merge_all()
saver = tf.train.Saver()
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    for step in range(2):
        batch, targets = session.run(next_batch)
        _, value, summary = session.run([train, loss, merged], feed_dict={images: batch, labels: targets})
        print(step, float(value), summary)
    saver.save(session, "runs/strict/model", global_step=tf.train.get_global_step())
