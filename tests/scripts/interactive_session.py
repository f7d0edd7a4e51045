"""The notebook style: InteractiveSession, .eval() and .run() without a session argument."""

import numpy as np

import flowrt as tf

sess = tf.InteractiveSession()
x = tf.Variable([1.0, 2.0])
a = tf.constant([3.0, 3.0])
x.initializer.run()
sub = tf.subtract(x, a)
print(sub.eval())
m = tf.constant([[1, 2, 3], [4, 5, 6]])
print(m.get_shape(), tf.rank(m).eval(), tf.size(m).eval(), m.dtype.name, tf.shape(m).eval())
print(tf.reduce_sum(m, 0).eval(), tf.reduce_mean(tf.to_float(m), 1, keep_dims=True).eval().tolist())
print(m[:, 1].eval(), m[0, ::2].eval(), m[..., tf.newaxis].get_shape(), m[-1, -1].eval())
print((a > 2).eval(), tf.where(tf.equal(m, 3)).eval().tolist(), (-a + 2 * a / 4 - 1).eval(), (m % 2).eval().tolist())
print(tf.concat([m, m], 0).get_shape(), tf.concat([m, m], axis=1).shape, tf.stack([a, x]).eval().tolist())
print(tf.transpose(m).eval().tolist(), tf.one_hot([0, 2], 3).eval().tolist())
print(tf.cast(a, tf.int32).eval(), tf.linspace(0.0, 1.0, 5).eval(), tf.range(3, 12, 3).eval())
print(tf.matmul(m, m, transpose_b=True).eval().tolist(), (m // 2).eval().tolist(), (1.0 / a).eval().round(3))
tf.assign(x, [7.0, 8.0]).eval()
print(x.eval(), sess.run(x).tolist(), tf.get_default_session() is sess)
state = tf.Variable(0, name="counter")
update = tf.assign(state, tf.add(state, tf.constant(1)))
sess.run(tf.global_variables_initializer())
for _ in range(3):
    sess.run(update)
print(state.eval(), tf.get_default_graph().get_tensor_by_name("counter:0").op.name, np.float32(x.eval()[0]))
print([op.type for op in tf.get_default_graph().get_operations()][:1])
sess.close()
