"""Optimise an image, not weights: content and Gram-matrix losses of a fixed random network, total variation."""

import numpy as np

import flowrt as tf

rng = np.random.RandomState(30)
content = rng.rand(1, 12, 12, 3).astype(np.float32)
style = rng.rand(1, 12, 12, 3).astype(np.float32)
filters = [(rng.randn(3, 3, 3, 8) * 0.3).astype(np.float32), (rng.randn(3, 3, 8, 8) * 0.2).astype(np.float32)]


def net(image):
    layers, current = {}, image
    for i, f in enumerate(filters):
        current = tf.nn.relu(tf.nn.conv2d(current, tf.constant(f), strides=(1, 1, 1, 1), padding="SAME"))
        layers["relu%d" % i] = current
        current = tf.nn.avg_pool(current, ksize=(1, 2, 2, 1), strides=(1, 2, 2, 1), padding="SAME")
    return layers


def gram(layer):
    _, height, width, number = map(lambda i: i.value, layer.get_shape())
    feats = tf.reshape(layer, (-1, number))
    return tf.matmul(tf.transpose(feats), feats) / (height * width * number)


g = tf.Graph()
with g.as_default(), g.device("/cpu:0"), tf.Session() as sess:
    image = tf.placeholder("float", shape=style.shape)
    style_features = gram(net(image)["relu1"]).eval(feed_dict={image: style})
    content_features = net(image)["relu0"].eval(feed_dict={image: content})

with tf.Graph().as_default():
    initial = tf.constant(content * 0.5 + 0.25)
    image = tf.Variable(initial)
    layers = net(image)
    content_loss = 2 * tf.nn.l2_loss(layers["relu0"] - content_features) / content_features.size
    style_loss = 5.0 * 2 * tf.nn.l2_loss(gram(layers["relu1"]) - style_features) / style_features.size
    tv = tf.nn.l2_loss(image[:, 1:, :, :] - image[:, :11, :, :]) + tf.nn.l2_loss(image[:, :, 1:] - image[:, :, :-1])
    loss = content_loss + style_loss + 1e-3 * tv
    train_step = tf.train.AdamOptimizer(0.02, 0.9, 0.999, 1e-8).minimize(loss)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for i in range(31):
            if i % 10 == 0:
                print(" ".join("%.4f" % v for v in sess.run([content_loss, style_loss, tv, loss])))
            train_step.run()
        print(image.eval().shape, "%.3f" % image.eval().mean())
