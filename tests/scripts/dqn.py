"""A DQN update: online and target networks, one_hot action values, target copied with assign ops."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(21)
n_actions, n_features, gamma = 2, 3, 0.9
W = {name: (rng.randn(*s) * 0.3).astype(np.float32) for name, s in dict(w1=(3, 8), w2=(8, 2)).items()}

s = tf.placeholder(tf.float32, [None, n_features], name="s")
s_ = tf.placeholder(tf.float32, [None, n_features], name="s_")
r = tf.placeholder(tf.float32, [None], name="r")
a = tf.placeholder(tf.int32, [None], name="a")


def net(x, c_names):
    w1 = tf.get_variable("w1", initializer=W["w1"], collections=c_names)
    b1 = tf.get_variable("b1", [1, 8], initializer=tf.constant_initializer(0.1), collections=c_names)
    w2 = tf.get_variable("w2", initializer=W["w2"], collections=c_names)
    return tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2)


with tf.variable_scope("eval_net"):
    q_eval = net(s, ["eval_net_params", tf.GraphKeys.GLOBAL_VARIABLES])
with tf.variable_scope("target_net"):
    q_next = net(s_, ["target_net_params", tf.GraphKeys.GLOBAL_VARIABLES])
with tf.variable_scope("q_target"):
    q_target = tf.stop_gradient(r + gamma * tf.reduce_max(q_next, axis=1, name="Qmax_s_"))
with tf.variable_scope("q_eval"):
    a_indices = tf.stack([tf.range(tf.shape(a)[0], dtype=tf.int32), a], axis=1)
    q_eval_wrt_a = tf.gather_nd(params=q_eval, indices=a_indices)
with tf.variable_scope("loss"):
    loss = tf.reduce_mean(tf.squared_difference(q_target, q_eval_wrt_a, name="TD_error"))
with tf.variable_scope("train"):
    train_op = tf.train.RMSPropOptimizer(0.01).minimize(loss, var_list=tf.get_collection("eval_net_params"))
t_params, e_params = tf.get_collection("target_net_params"), tf.get_collection("eval_net_params")
replace = [tf.assign(t, e) for t, e in zip(t_params, e_params)]
soft = [t.assign(0.99 * t + 0.01 * e) for t, e in zip(t_params, e_params)]
huber = tf.losses.huber_loss(q_target, tf.reduce_sum(q_eval * tf.one_hot(a, n_actions), 1))

memory = rng.randn(64, 6).astype(np.float32)
acts = rng.randint(0, 2, 64)
feed = {s: memory[:, :3], s_: memory[:, 3:], r: memory[:, 0], a: acts}
with tf.Session() as sess:
    sess.run(tf.global_variables_initializer())
    print("huber %.4f" % sess.run(huber, feed))
    for learn_step in range(60):
        if learn_step % 20 == 0:
            sess.run(replace)
            print("target params replaced", "%.4f" % sess.run(loss, feed))
        sess.run(train_op, feed)
    sess.run(soft)
    print("%.4f" % sess.run(loss, feed), np.round(sess.run(q_eval, {s: memory[:2, :3]}), 3).tolist())
