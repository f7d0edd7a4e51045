"""Models of public repositories that make or read images; as `models`."""

from __future__ import annotations

import functools
import runpy
import sys
import tempfile
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from made_data import floats, one_hot, rng, run_named, stand_in, train


def gan(name: str) -> None:
    """hwalsuklee's collection, on digits."""
    import utils

    (images, labels), _ = tf.keras.datasets.mnist.load_data()
    utils.load_mnist = lambda _: (images[..., None] / 255.0, np.eye(10)[labels])
    sys.argv[1:] = ["--gan_type", name, "--epoch", "1", "--batch_size", "8"]
    runpy.run_path("main.py", run_name="__main__")


def total_loss(outputs: Any) -> Any:
    return tf.reduce_mean(tf.square(outputs - 0.3)) + sum(tf.losses.get_regularization_losses())


def with_updates(loss: Any, optimizer: Any = None) -> Any:
    """A step of training after the updates of batch normalization."""
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return (optimizer or tf.train.MomentumOptimizer(1e-3, 0.9)).minimize(loss)


def cycle_gan() -> None:
    """vanhuyz's, of 32 by 32 pixels, read from made batches."""
    import reader

    reader.Reader = lambda *_, **__: SimpleNamespace(feed=lambda: floats(1, 32, 32, 3))
    import model

    model.Reader = reader.Reader
    net = model.CycleGAN(batch_size=1, image_size=32, ngf=4)
    losses = net.model()
    step = net.optimize(*losses[:4])
    given = {net.fake_x: rng.rand(1, 32, 32, 3), net.fake_y: rng.rand(1, 32, 32, 3)}
    train(list(losses[:4]), lambda: given, train_op=step, steps=4)


def cycle_generators(name: str) -> None:
    """xhujoy's generators and discriminators."""
    stand_in("utils")
    import module

    options = SimpleNamespace(df_dim=4, gf_dim=4, output_c_dim=3, is_training=True)
    images = floats(1, 256, 256, 3) if name == "generator_unet" else floats(1, 64, 64, 3)
    made = getattr(module, name)(images, options)
    scores = module.discriminator(made, options)
    train([tf.reduce_mean(tf.square(scores - 1)), scores], train_op=with_updates(total_loss(scores)), steps=3)


def style_transfer() -> None:
    """lengstrom's network, to a still image."""
    from transform import net

    train(total_loss(net(floats(1, 32, 32, 3)) / 255), steps=3)


def scene_text() -> None:
    """EAST: scores and boxes of words, on slim's ResNet."""
    import model

    scores, geometry = model.model(floats(1, 64, 64, 3) * 255)
    size = scores.shape.as_list()[1:3]
    truth = tf.constant(one_hot([1, *size], 2)[..., :1])
    loss = model.loss(truth, scores, floats(1, *size, 5), geometry, tf.ones([1, *size, 1]))
    step = with_updates(loss + sum(tf.losses.get_regularization_losses()))
    train([loss, scores, geometry], train_op=step, steps=2)


def shuffle_net() -> None:
    from architecture import shufflenet

    logits = shufflenet(floats(4, 64, 64, 3), True, num_classes=5, depth_multiplier="0.5")
    loss = tf.losses.sparse_softmax_cross_entropy(tf.constant([0, 1, 2, 3]), logits)
    train([loss, logits], train_op=with_updates(loss), steps=2)


def progressive_gan() -> None:
    """Its generator and discriminator at 16 by 16 pixels, with and without fading, and WGAN-GP's penalty."""
    import networks

    options = {"resolution": 16, "num_channels": 3, "fmap_base": 64, "fmap_max": 16}
    lod = tf.get_variable("lod", initializer=np.float32(0.5), trainable=False)

    def generate(latents: Any) -> Any:
        with tf.variable_scope("G", reuse=tf.AUTO_REUSE):
            tf.get_variable("lod", initializer=np.float32(0.5), trainable=False)
            return networks.G_paper(latents, tf.zeros([4, 0]), structure="recursive", **options)

    def score(images: Any) -> Any:
        with tf.variable_scope("D", reuse=tf.AUTO_REUSE):
            return networks.D_paper(images, structure="linear", **options)[0]

    print(lod)
    fake, real = generate(floats(4, 16)), floats(4, 3, 16, 16)
    mixed = 0.5 * fake + 0.5 * real
    gradients = tf.gradients(tf.reduce_sum(score(mixed)), [mixed])[0]
    penalty = tf.reduce_mean(tf.square(tf.sqrt(tf.reduce_sum(tf.square(gradients), [1, 2, 3])) - 1))
    loss = tf.reduce_mean(score(fake)) - tf.reduce_mean(score(real)) + 10 * penalty
    train([loss, penalty, fake], train_op=tf.train.AdamOptimizer(1e-3).minimize(loss), steps=3)


def style_gan() -> None:
    """A mapping, a synthesis with noise and mixing, and a discriminator with R1's penalty, at 16 by 16 pixels."""
    from training import networks_stylegan as networks

    options = {"resolution": 16, "num_channels": 3, "fmap_base": 64, "fmap_max": 16, "label_size": 0}
    with tf.variable_scope("mapping"):
        styles = networks.G_mapping(
            floats(4, 16), tf.zeros([4, 0]), latent_size=16, dlatent_size=16, dlatent_broadcast=6, mapping_layers=3,
            mapping_fmaps=16,
        )  # fmt: skip
    with tf.variable_scope("synthesis"):
        fake = networks.G_synthesis(styles, dlatent_size=16, structure="linear", **options)
    real = floats(4, 3, 16, 16)
    scores = []
    for images in (fake, real):
        with tf.variable_scope("D", reuse=tf.AUTO_REUSE):
            scores.append(networks.D_basic(images, tf.zeros([4, 0]), structure="linear", **options))
    gradients = tf.gradients(tf.reduce_sum(scores[1]), [real])[0]
    penalty = tf.reduce_mean(tf.reduce_sum(tf.square(gradients), [1, 2, 3]))
    loss = tf.reduce_mean(tf.nn.softplus(scores[0]) + tf.nn.softplus(-scores[1])) + 5 * penalty
    train([loss, penalty, fake], train_op=tf.train.AdamOptimizer(1e-3).minimize(loss), steps=3)


def attention_gan() -> None:
    """taki0112's SAGAN: spectral norms, attention and hinge losses at 32 by 32 pixels."""
    stand_in("keras.datasets.cifar10", "keras.datasets.mnist")
    import SAGAN
    import ops

    net = SAGAN.SAGAN.__new__(SAGAN.SAGAN)
    net.sn, net.layer_num, net.c_dim, net.img_size = True, 2, 3, 32
    fake = net.generator(floats(2, 1, 1, 16))
    scores = net.discriminator(floats(2, 32, 32, 3)), net.discriminator(fake, reuse=True)
    losses = ops.discriminator_loss("hinge", *scores), ops.generator_loss("hinge", scores[1])
    step = with_updates(losses[0] + losses[1])
    train([*losses, fake], train_op=step, steps=2)


def glow() -> None:
    """OpenAI's flows of 8 by 8 pixels, initialised by data: training, and samples."""
    stand_in("horovod.tensorflow")
    workers: Any = sys.modules["horovod.tensorflow"]
    workers.size, workers.rank, workers.local_rank = lambda: 1, lambda: 0, lambda: 0
    workers.broadcast_global_variables = lambda _: tf.no_op()
    workers.allreduce = lambda x, **_: x
    import model
    import optim

    optim.adam = functools.partial(optim.adam, epsilon=1e-3)  # as `recorded.use_steady_adam` has it

    options = SimpleNamespace(
        n_levels=2, depth=2, width=8, n_bits_x=8, n_y=3, image_size=8, learntop=True, ycond=True, weight_y=0.1,
        gradient_checkpointing=0, optimizer="adam", direct_iterator=False, restore_path="", beta1=0.9,
        polyak_epochs=1, weight_decay=1.0, flow_permutation=2, flow_coupling=1, train_its=10, n_batch_train=4,
        local_batch_train=4, local_batch_test=4, local_batch_init=4, anchor_size=8, inference=False,
    )  # fmt: skip

    def batch() -> Any:
        return rng.randint(0, 256, [4, 8, 8, 3]).astype(np.uint8), rng.randint(0, 3, 4).astype(np.int32)

    x, y = batch()
    with tf.Session() as session:
        net = model.model(session, options, batch, batch, {"x": x, "y": y})
        for _ in range(4):
            print(net.train(1e-3))
        print(net.test(), net.sample(y, np.full(4, 0.7)).shape)


def volumes(name: str) -> None:
    """DLTK's networks of volumes, a U-Net or an FCN of residual units."""
    module = import_module(f"dltk.networks.segmentation.{'unet' if 'unet' in name else 'fcn'}")
    strides = ((1, 1, 1), (2, 2, 2), (2, 2, 2))
    ends = getattr(module, name)(
        floats(1, 8, 8, 8, 2), num_classes=3, num_res_units=1, filters=(4, 8, 8), strides=strides,
        mode=tf.estimator.ModeKeys.TRAIN, kernel_regularizer=tf.contrib.layers.l2_regularizer(1e-3),
    )  # fmt: skip
    loss = tf.losses.sparse_softmax_cross_entropy(tf.constant(rng.randint(0, 3, [1, 8, 8, 8])), ends["logits"])
    train([loss, ends["y_prob"]], train_op=with_updates(loss), steps=4)


def super_resolution() -> None:
    """SRCNN on made images."""
    stand_in("utils")
    names: Any = sys.modules["utils"]
    names.read_data = names.input_setup = names.imsave = names.merge = None
    from model import SRCNN

    with tf.Session() as session:
        net = SRCNN(session, batch_size=2, checkpoint_dir=tempfile.mkdtemp(), sample_dir="")
        step = tf.train.GradientDescentOptimizer(1e-2).minimize(net.loss)
        session.run(tf.global_variables_initializer())
        given = {net.images: rng.rand(2, 33, 33, 1), net.labels: rng.rand(2, 21, 21, 1)}
        for _ in range(6):
            print(session.run([net.loss, net.pred, step], given)[0])


def ready_network(name: str) -> None:
    """taehoonlee's networks of many papers, in training, on one small batch."""
    import tensornets

    images = floats(2, 64, 64, 3)
    net = getattr(tensornets, name)(images, is_training=True, classes=5)
    loss = tf.losses.softmax_cross_entropy(tf.constant(one_hot(2, 5)), net.logits)
    train([loss, net.logits], train_op=with_updates(loss), steps=2)


if __name__ == "__main__":
    run_named(globals())
