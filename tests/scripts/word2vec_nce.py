"""Skip-gram with nce_loss, as the word2vec tutorial has it, on a made corpus with two topics."""

import math

import numpy as np

import flowrt as tf

tf.set_random_seed(2)
rng = np.random.RandomState(2)
vocabulary_size, embedding_size, batch_size, num_sampled = 40, 8, 64, 12
topics = np.repeat([0, 1], 20)

graph = tf.Graph()
with graph.as_default():
    train_inputs = tf.placeholder(tf.int32, shape=[batch_size])
    train_labels = tf.placeholder(tf.int32, shape=[batch_size, 1])
    with tf.device("/cpu:0"), tf.name_scope("embeddings"):
        embeddings = tf.Variable(tf.random_uniform([vocabulary_size, embedding_size], -1.0, 1.0))
        embed = tf.nn.embedding_lookup(embeddings, train_inputs)
    with tf.name_scope("weights"):
        nce_weights = tf.Variable(
            tf.truncated_normal([vocabulary_size, embedding_size], stddev=1.0 / math.sqrt(embedding_size))
        )
        nce_biases = tf.Variable(tf.zeros([vocabulary_size]))
    with tf.name_scope("loss"):
        loss = tf.reduce_mean(
            tf.nn.nce_loss(
                weights=nce_weights,
                biases=nce_biases,
                labels=train_labels,
                inputs=embed,
                num_sampled=num_sampled,
                num_classes=vocabulary_size,
            )
        )
        sampled = tf.reduce_mean(
            tf.nn.sampled_softmax_loss(
                nce_weights, nce_biases, train_labels, embed, num_sampled, vocabulary_size
            )
        )
    optimizer = tf.train.GradientDescentOptimizer(1.0).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keepdims=True))
    normalized_embeddings = embeddings / norm
    init = tf.global_variables_initializer()

with tf.Session(graph=graph) as session:
    init.run()
    losses = []
    for _ in range(500):
        words = rng.randint(0, vocabulary_size, batch_size)
        context = rng.randint(0, 20, batch_size) + 20 * topics[words]
        feed_dict = {train_inputs: words, train_labels: context[:, None]}
        _, loss_val = session.run([optimizer, loss], feed_dict=feed_dict)
        losses.append(loss_val)
    print("loss fell:", np.mean(losses[-50:]) < 0.8 * np.mean(losses[:50]))
    print("sampled softmax is finite:", np.isfinite(session.run(sampled, feed_dict)))
    final = normalized_embeddings.eval()
    within = (final[:20] @ final[:20].T).mean()
    across = (final[:20] @ final[20:].T).mean()
    print("topics apart:", bool(within > across + 0.2))
