"""REINFORCE on a toy corridor: multinomial actions, discounted returns, accumulated gradients."""

import numpy as np

import flowrt as tf

tf.set_random_seed(3)
gamma = 0.95


class Corridor(object):
    def reset(self):
        self.at = 2
        return self.state()

    def state(self):
        s = np.zeros(5, np.float32)
        s[self.at] = 1
        return s

    def step(self, action):
        self.at += 1 if action == 1 else -1
        done = self.at in (0, 4)
        return self.state(), (1.0 if self.at == 4 else 0.0), done


X = tf.placeholder(tf.float32, shape=[None, 5])
logits = tf.layers.dense(X, 2, kernel_initializer=tf.zeros_initializer())
action = tf.multinomial(logits, num_samples=1)
chosen = tf.placeholder(tf.int32, [None])
returns = tf.placeholder(tf.float32, [None])
neg_log_prob = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=chosen)
optimizer = tf.train.AdamOptimizer(0.1)
grads_and_vars = optimizer.compute_gradients(tf.reduce_mean(neg_log_prob * returns))
gradients = [grad for grad, variable in grads_and_vars]
gradient_placeholders, grads_and_vars_feed = [], []
for grad, variable in grads_and_vars:
    gradient_placeholder = tf.placeholder(tf.float32, shape=grad.get_shape())
    gradient_placeholders.append(gradient_placeholder)
    grads_and_vars_feed.append((gradient_placeholder, variable))
training_op = optimizer.apply_gradients(grads_and_vars_feed)

env = Corridor()
with tf.Session() as sess:
    tf.global_variables_initializer().run()
    for iteration in range(30):
        episode_grads = []
        for _ in range(4):
            obs, done, states, actions, rewards = env.reset(), False, [], [], []
            while not done and len(states) < 30:
                act = sess.run(action, {X: [obs]})[0][0]
                states.append(obs)
                actions.append(act)
                obs, reward, done = env.step(act)
                rewards.append(reward)
            R, running = np.zeros(len(rewards)), 0.0
            for t in reversed(range(len(rewards))):
                running = rewards[t] + gamma * running
                R[t] = running
            episode_grads.append(sess.run(gradients, {X: states, chosen: actions, returns: R}))
        mean = {p: np.mean([g[i] for g in episode_grads], axis=0) for i, p in enumerate(gradient_placeholders)}
        sess.run(training_op, feed_dict=mean)
    probs = sess.run(tf.nn.softmax(logits), {X: np.eye(5)})
    print("goes right:", bool((probs[1:4, 1] > 0.7).all()))
