"""Less common array functions that research code reaches for."""

import numpy as np

import flowrt as tf

image = np.arange(2 * 4 * 4 * 3, dtype=np.float32).reshape(2, 4, 4, 3)
x = tf.constant(image)
blocks = tf.space_to_batch_nd(x, [2, 2], [[0, 0], [2, 0]])
back = tf.batch_to_space_nd(blocks, [2, 2], [[0, 0], [2, 0]])
patches = tf.extract_image_patches(x, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
shuffled = tf.depth_to_space(tf.space_to_depth(x, 2), 2)
v = tf.Variable(np.zeros((3, 2), np.float32))
nd = tf.scatter_nd_update(v, [[0], [2]], [[1.0, 2.0], [3.0, 4.0]])
rows = tf.scatter_add(v, [1, 1], [[1.0, 1.0], [1.0, 1.0]])
counter = tf.Variable(0)
up = tf.count_up_to(counter, 2)
m = tf.constant([[1.0, 2.0], [3.0, 4.0]])
parts = tf.dynamic_partition(tf.range(6), [0, 1, 0, 2, 1, 0], 3)

with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    b, same, p = sess.run([blocks, back, patches])
    print(b.shape, b[1, 0, :, 0].tolist(), (same == image).all(), p.shape, p[1, 1, 0].tolist())
    print((sess.run(shuffled) == image).all())
    print(sess.run(tf.unravel_index([5, 2], [2, 3])).tolist(), sess.run(tf.unravel_index(4, [2, 3])).tolist())
    print(sess.run(nd).tolist(), sess.run(rows).tolist())
    print(sess.run(up), sess.run(up))
    try:
        sess.run(up)
    except tf.errors.OutOfRangeError:
        print("reached the limit")
    print(sess.run([tf.is_non_decreasing([1, 1, 2]), tf.is_strictly_increasing([1, 1, 2])]))
    print(np.round(sess.run(tf.log_sigmoid([-2.0, 0.0, 30.0])), 4), sess.run(tf.floor_div(7, 2)))
    print(sess.run(tf.matrix_transpose(m)).tolist(), sess.run(tf.matrix_band_part(tf.ones([3, 3]), -1, 0)).tolist())
    print([q.tolist() for q in sess.run(parts)], sess.run(tf.dynamic_stitch([[0, 2], [1]], [[10, 30], [20]])).tolist())
    print(sess.run(tf.sequence_mask([1, 3], 4)).tolist(), sess.run(tf.cumsum([1, 2, 3], reverse=True)))
    print(sess.run(tf.reverse(m, [0])).tolist(), sess.run(tf.pad(m, [[1, 0], [0, 1]], constant_values=9)).tolist())
    print(sess.run(tf.boolean_mask(m, [True, False])).tolist(), sess.run(tf.setdiff1d([1, 2, 3], [2])).out)
    print(sess.run(tf.norm(m, axis=1)).round(4), sess.run(tf.tensordot(m, m, [[1], [0]])).tolist())
    print([u.tolist() for u in sess.run(tf.unique([4, 5, 4]))], sess.run(tf.bincount([0, 2, 2])).tolist())
    print(sess.run(tf.meshgrid([1, 2], [3, 4, 5]))[1].tolist(), sess.run(tf.tile([[1, 2]], [2, 2])).tolist())
    print(sess.run(tf.confusion_matrix([0, 1, 1], [0, 1, 0])).tolist(), sess.run(tf.reduce_logsumexp(m)).round(4))
    print(sess.run(tf.reduce_join([["a", "b"], ["c", "d"]], 1)).tolist(), sess.run(tf.as_string([1, 20])).tolist())
    print(sess.run(tf.segment_sum(m, [0, 0])).tolist(), sess.run(tf.where(m > 2, m, -m)).tolist())
    print(sess.run(tf.squeeze(tf.zeros([1, 2, 1]))).shape, sess.run(tf.split([1, 2, 3], [1, 2]))[1].tolist())
