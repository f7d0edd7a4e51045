"""Skip-gram on a toy corpus: an embedding trained with a full softmax, nearest words by cosine."""

import collections

import numpy as np

import flowrt as tf

sentences = [
    "the king loves the queen",
    "the queen loves the king",
    "the dwarf hates the king",
    "the queen hates the dwarf",
    "the dwarf poisons the king",
    "the dwarf poisons the queen",
]
corpus = " ".join(sentences).split()
count = collections.Counter(corpus)
words = [w for w, _ in sorted(count.items(), key=lambda kv: (-kv[1], kv[0]))]
dictionary = {w: i for i, w in enumerate(words)}
pairs = []
for sentence in sentences:
    ids = [dictionary[w] for w in sentence.split()]
    for i, center in enumerate(ids):
        for j in range(max(0, i - 2), min(len(ids), i + 3)):
            if i != j:
                pairs.append((center, ids[j]))
pairs = np.array(pairs, dtype=np.int32)

vocabulary_size, embedding_size = len(words), 5
rng = np.random.RandomState(4)
with tf.device("/cpu:0"):
    train_inputs = tf.placeholder(tf.int32, shape=[None])
    train_labels = tf.placeholder(tf.int32, shape=[None])
    embeddings = tf.Variable(rng.uniform(-1, 1, [vocabulary_size, embedding_size]).astype(np.float32))
    embed = tf.nn.embedding_lookup(embeddings, train_inputs)
    softmax_w = tf.Variable(tf.zeros([embedding_size, vocabulary_size]))
    softmax_b = tf.Variable(tf.zeros([vocabulary_size]))
    logits = tf.matmul(embed, softmax_w) + softmax_b
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=train_labels, logits=logits))
    train = tf.train.AdagradOptimizer(0.5).minimize(loss)
    norm = tf.sqrt(tf.reduce_sum(tf.square(embeddings), 1, keep_dims=True))
    similarity = tf.matmul(embeddings / norm, embeddings / norm, transpose_b=True)

with tf.Session() as sess:
    tf.global_variables_initializer().run()
    for step in range(61):
        feed = {train_inputs: pairs[:, 0], train_labels: pairs[:, 1]}
        _, value = sess.run([train, loss], feed)
        if step % 20 == 0:
            print("step", step, "loss %.4f" % value)
    sim = similarity.eval()
    king = dictionary["king"]
    print("nearest to king:", [words[i] for i in (-sim[king]).argsort()[1:3]])
