"""tf.data: one-shot, initializable over placeholders and reinitializable iterators."""

import numpy as np

import flowrt as tf

features = np.arange(10, dtype=np.float32).reshape(5, 2)
labels = np.array([0, 1, 0, 1, 1])

dataset = tf.data.Dataset.from_tensor_slices((features, labels))
dataset = dataset.map(lambda f, l: (f * 2.0, tf.one_hot(l, 2)), num_parallel_calls=2)
dataset = dataset.repeat(2).batch(4).prefetch(1)
iterator = dataset.make_one_shot_iterator()
next_f, next_l = iterator.get_next()
print([t.name for t in dataset.output_types], [s.as_list() for s in dataset.output_shapes])

with tf.Session() as sess:
    while True:
        try:
            f, l = sess.run([next_f, next_l])
            print(f.sum(), l.sum(0))
        except tf.errors.OutOfRangeError:
            print("end of sequence")
            break

ph = tf.placeholder(tf.float32, [None, 2])
ds = tf.data.Dataset.from_tensor_slices(ph).filter(lambda r: r[0] > 0.0).shuffle(10, seed=1).batch(10)
it = ds.make_initializable_iterator()
batch = it.get_next()
with tf.Session() as sess:
    sess.run(it.initializer, feed_dict={ph: features})
    print(np.sort(sess.run(batch)[:, 0]))
    sess.run(it.initializer, feed_dict={ph: -features})
    try:
        sess.run(batch)
    except tf.errors.OutOfRangeError as e:
        print("out of range", type(e).__name__)

train_ds = tf.data.Dataset.range(5)
val_ds = tf.data.Dataset.range(100, 103)
it = tf.data.Iterator.from_structure(train_ds.output_types, train_ds.output_shapes)
element = it.get_next()
train_init, val_init = it.make_initializer(train_ds), it.make_initializer(val_ds)
with tf.Session() as sess:
    for init in (train_init, val_init):
        sess.run(init)
        print([int(sess.run(element)) for _ in range(3)])


def gen():
    for i in range(1, 4):
        yield i, [1.0] * i


padded = tf.data.Dataset.from_generator(gen, (tf.int64, tf.float32), (tf.TensorShape([]), tf.TensorShape([None])))
n, row = padded.padded_batch(3, padded_shapes=([], [None])).make_one_shot_iterator().get_next()
zipped = tf.data.Dataset.zip((tf.data.Dataset.range(3), tf.data.Dataset.range(7, 10)))
windows = zipped.flat_map(lambda a, b: tf.data.Dataset.from_tensors(a + b)).concatenate(tf.data.Dataset.range(2))
total = windows.take(4).skip(1).make_one_shot_iterator().get_next()
with tf.Session() as sess:
    ns, rows = sess.run((n, row))
    print(ns.tolist(), rows.tolist())
    print([int(sess.run(total)) for _ in range(3)])
