"""Models of public repositories, built from their sources and trained on made data: ``@models.py NAME``.

Their own programs need corpora; here is what stands in their place. The folder of a repository that has the
model's modules is the first on the path.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from made_data import STEPS, rng, run_named, stand_in, train

LONG = 10**9
"""Steps of a schedule of learning rates. BERT's optimizer counts steps in an operation that nothing orders
with its reads of the count: in TensorFlow 1.15, 39 of 40 runs read the new count, 1 the old."""
def own_test(module: str, function: str = "test") -> None:
    """The function with which a module tries its model."""
    getattr(import_module(module), function)()


def transformer_xl(cutoffs: Any = (), div_val: int = 1, **options: Any) -> None:
    """Two layers with memories of the step before."""
    import model

    tokens, length, batch, memory = 40, 6, 3, 5
    x, y = (tf.placeholder(tf.int32, [length, batch]) for _ in range(2))
    mems = [tf.placeholder(tf.float32, [memory, batch, 16]) for _ in range(2)]
    normal = tf.initializers.random_normal(stddev=0.1)
    loss, new = model.transformer(
        dec_inp=x, target=y, mems=mems, n_token=tokens, n_layer=2, d_model=16, d_embed=16, n_head=2, d_head=8,
        d_inner=32, dropout=0.1, dropatt=0.1, initializer=normal, proj_initializer=normal, is_training=True,
        mem_len=memory, cutoffs=list(cutoffs), div_val=div_val, tie_projs=[False] * (len(cutoffs) + 1),
        use_tpu=False, same_length=True, clamp_len=4, **options,
    )  # fmt: skip
    optimizer = tf.train.AdamOptimizer(1e-2)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    clipped, norm = tf.clip_by_global_norm(gradients, 0.25)
    step = optimizer.apply_gradients(zip(clipped, variables))
    state = [np.zeros(m.shape.as_list(), np.float32) for m in mems]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            draw = rng.randint(0, tokens, [2, length, batch])
            feeds = {x: draw[0], y: draw[1], **dict(zip(mems, state))}
            value, state, size, _ = session.run([loss, new, norm, step], feeds)
            print(value, size)


def transformer_xl_adaptive() -> None:
    transformer_xl([0, 10, 25, 40][1:-1], 2, untie_r=True, proj_same_dim=False)


def xlnet() -> None:
    """Pretraining with two streams of attention."""
    import function_builder

    length, batch, predict = 8, 2, 3
    flags = SimpleNamespace(
        num_predict=predict, model_dir=tempfile.mkdtemp(), n_layer=2, d_model=16, n_head=2, d_head=8, d_inner=32,
        ff_activation="gelu", untie_r=True, n_token=50, use_tpu=False, use_bfloat16=False, dropout=0.1,
        dropatt=0.1, init="normal", init_range=0.1, init_std=0.1, clamp_len=-1, mem_len=4, reuse_len=4,
        bi_data=False, same_length=False,
    )  # fmt: skip
    picked = np.stack([rng.permutation(length)[:predict] for _ in range(batch)])
    numbers = {
        "input_k": rng.randint(0, 50, [batch, length]), "input_q": np.eye(length)[picked].sum(1),
        "seg_id": rng.randint(0, 2, [batch, length]),
        "perm_mask": rng.randint(0, 2, [batch, length, length]), "target_mapping": np.eye(length)[picked],
        "target": rng.randint(0, 50, [batch, predict]), "target_mask": np.ones([batch, predict]),
    }  # fmt: skip
    whole = ("input_k", "seg_id", "target")
    features = {k: tf.constant(v, tf.int32 if k in whole else tf.float32) for k, v in numbers.items()}
    mems = {"mems": [tf.ones([4, batch, 16]) * 0.1] * 2}
    loss, _, _ = function_builder.two_stream_loss(flags, features, None, mems, True)
    train(loss)


def bert(**config: Any) -> None:
    """The encoder with its masked-language-model-like loss, by the repository's own optimizer."""
    modeling, optimization = import_module("modeling"), import_module("optimization")
    sizes: dict[str, Any] = {
        "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 16, "type_vocab_size": 2,
    }  # fmt: skip
    name = "AlbertConfig" if hasattr(modeling, "AlbertConfig") else "BertConfig"
    settings = getattr(modeling, name)(**sizes, **config)
    ids, mask = tf.constant(rng.randint(0, 60, [3, 12]), tf.int32), tf.constant(rng.randint(0, 2, [3, 12]))
    types = tf.constant(rng.randint(0, 2, [3, 12]), tf.int32)
    build = getattr(modeling, name.replace("Config", "Model"))
    model = build(settings, True, ids, mask, types)
    logits = tf.matmul(
        tf.reshape(model.get_sequence_output(), [-1, 16]),
        tf.get_variable("out", [16, 60], initializer=tf.truncated_normal_initializer(stddev=0.1)),
    )
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(ids, [-1]), logits=logits)
    loss = tf.reduce_mean(losses) + tf.reduce_mean(tf.square(model.get_pooled_output()))
    train(loss, train_op=optimization.create_optimizer(loss, 1e-2, LONG, 0, False))


def albert() -> None:
    for name in ("lamb_optimizer", "modeling", "optimization"):
        sys.modules[name] = import_module(f"albert.{name}")
    bert(embedding_size=8, num_hidden_groups=1, inner_group_num=1)


def electra() -> None:
    """The encoder, by the repository's own optimizer with layer-wise learning rates."""
    from model import modeling, optimization

    later = tf.constant_initializer(5)  # after the warm-up
    keys = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP]
    tf.get_variable("global_step", [], tf.int64, later, trainable=False, collections=keys)
    settings = modeling.BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16, type_vocab_size=2,
    )  # fmt: skip
    ids, mask = tf.constant(rng.randint(0, 60, [3, 12]), tf.int32), tf.constant(rng.randint(0, 2, [3, 12]))
    model = modeling.BertModel(settings, True, ids, mask, tf.zeros_like(ids), embedding_size=8)
    loss = tf.reduce_mean(tf.square(model.get_sequence_output() - 0.5) * tf.cast(mask, tf.float32)[..., None])
    loss += tf.reduce_mean(tf.square(model.get_pooled_output() - 0.5))
    step = optimization.create_optimizer(
        loss, 1e-2, LONG, warmup_steps=1, layerwise_lr_decay_power=0.8, n_transformer_layers=2
    )
    train(loss, train_op=step)


def gpt2() -> None:
    """Trained, and then asked for samples with its cache."""
    import model
    import sample

    settings = model.default_hparams()
    settings.override_from_dict({"n_vocab": 40, "n_ctx": 16, "n_embd": 16, "n_head": 2, "n_layer": 2})
    tokens = tf.constant(rng.randint(0, 40, [3, 10]), tf.int32)
    logits = model.model(settings, tokens)["logits"]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens[:, 1:], logits=logits[:, :-1])
    loss = tf.reduce_mean(losses)
    step = tf.train.AdamOptimizer(1e-2).minimize(loss)
    drawn = sample.sample_sequence(
        hparams=settings, length=5, context=tokens[:1, :4], batch_size=1, temperature=0.7, top_k=5
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS - 1):
            print(session.run([step, loss])[1])
        print(session.run(drawn))


def resnet_cifar() -> None:
    """The 18 layers of taki0112/ResNet-Tensorflow on images of CIFAR's shape."""
    stand_in("keras", "keras.datasets.cifar10", "keras.datasets.cifar100", "keras.datasets.mnist",
             "keras.datasets.fashion_mnist", "keras.utils.to_categorical")
    import ResNet

    images, labels = tf.placeholder(tf.float32, [8, 32, 32, 3]), tf.placeholder(tf.float32, [8, 10])
    net = ResNet.ResNet.__new__(ResNet.ResNet)
    net.res_n, net.label_dim = 18, 10
    loss, _ = ResNet.classification_loss(net.network(images), labels)
    x, y = rng.randn(8, 32, 32, 3), np.eye(10)[rng.randint(0, 10, 8)]
    train(loss, lambda: {images: x, labels: y}, tf.train.MomentumOptimizer(0.01, 0.9))


def pointer_generator(coverage: bool = True) -> None:
    """Abigail See's summariser with attention, pointers and coverage."""
    flags = tf.app.flags
    flags.DEFINE_boolean("pointer_gen", True, "")
    flags.FLAGS(sys.argv[:1])
    import model

    names = {
        "batch_size": 2, "max_enc_steps": 7, "max_dec_steps": 5, "hidden_dim": 8, "emb_dim": 6, "mode": "train",
        "pointer_gen": True, "coverage": coverage, "cov_loss_wt": 1.0, "lr": 0.15, "trunc_norm_init_std": 0.1,
        "rand_unif_init_mag": 0.2, "adagrad_init_acc": 0.1, "max_grad_norm": 2.0,
    }  # fmt: skip
    flags.DEFINE_string("log_root", "", "")
    summariser = model.SummarizationModel(SimpleNamespace(**names), SimpleNamespace(size=lambda: 30, write_metadata=print))
    summariser.build_graph()
    words = rng.randint(0, 30, [2, 7])
    batch = SimpleNamespace(
        enc_batch=words, enc_lens=[7, 5], enc_padding_mask=np.arange(7) < np.array([[7], [5]]),
        enc_batch_extend_vocab=np.where(words < 27, words, words + 3), max_art_oovs=4,
        dec_batch=rng.randint(0, 30, [2, 5]), target_batch=rng.randint(0, 27, [2, 5]),
        dec_padding_mask=np.arange(5) < np.array([[5], [3]]),
    )  # fmt: skip
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(STEPS):
            fetches = [summariser._total_loss, summariser._coverage_loss, summariser._train_op]
            print(session.run(fetches, summariser._make_feed_dict(batch))[:2])


def wavenet() -> None:
    """The 24 layers' smaller sister, on a wave."""
    stand_in("librosa")
    from wavenet import WaveNetModel

    net = WaveNetModel(
        batch_size=1, dilations=[1, 2, 4, 1, 2, 4], filter_width=2, residual_channels=8, dilation_channels=8,
        quantization_channels=32, skip_channels=16, use_biases=True,
    )  # fmt: skip
    wave = np.sin(np.arange(400) * 0.1).astype(np.float32).reshape(1, -1, 1)
    train(net.loss(tf.constant(wave), l2_regularization_strength=1e-3))


def glow_like_pixel_cnn() -> None:
    """PixelCNN++ with its logistic mixtures, initialised by data."""
    from pixel_cnn_pp import model, nn

    x = tf.constant(np.tanh(rng.randn(2, 8, 8, 3)).astype(np.float32))
    spec = tf.make_template("model", model.model_spec)
    options = {"nr_resnet": 1, "nr_filters": 8, "nr_logistic_mix": 2, "resnet_nonlinearity": "concat_elu"}
    first = spec(x, None, init=True, dropout_p=0.0, **options)
    loss = nn.discretized_mix_logistic_loss(x, spec(x, None, dropout_p=0.5, **options))
    variables = tf.trainable_variables()
    step = tf.group(nn.adam_updates(variables, loss, lr=0.001))
    sample = nn.sample_from_discretized_mix_logistic(spec(x, None, dropout_p=0.0, **options), 2)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(first)
        for _ in range(STEPS - 2):
            print(session.run([loss, step])[0])
        session.run(sample)


def deep_fm() -> None:
    stand_in("yellowfin.YFOptimizer")
    import DeepFM

    net = DeepFM.DeepFM(feature_size=30, field_size=4, epoch=2, batch_size=8, batch_norm=1, l2_reg=0.01)
    fields, values = rng.randint(0, 30, [40, 4]).tolist(), rng.rand(40, 4).tolist()
    net.fit(fields, values, rng.randint(0, 2, 40).tolist())


def residual_cifar() -> None:
    """The 14 layers of wenxinxu/resnet-in-tensorflow, with its own loss and momentum."""
    import resnet

    images, labels = tf.placeholder(tf.float32, [8, 32, 32, 3]), tf.placeholder(tf.int32, [8])
    logits = resnet.inference(images, 2, reuse=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(logits=logits, labels=labels)
    loss = tf.reduce_mean(losses) + tf.add_n(tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES))
    x, y = rng.randn(8, 32, 32, 3), rng.randint(0, 10, 8)
    train(loss, lambda: {images: x, labels: y}, tf.train.MomentumOptimizer(0.01, 0.9))


def text_cnn() -> None:
    import text_cnn as module

    net = module.TextCNN(12, 3, 50, 8, [2, 3, 4], 5, l2_reg_lambda=0.1)
    x, y = rng.randint(0, 50, [6, 12]), np.eye(3)[rng.randint(0, 3, 6)]
    train(net.loss, lambda: {net.input_x: x, net.input_y: y, net.dropout_keep_prob: 0.5})


def single_shot_detector() -> None:
    """SSD of 300 by 300 pixels: boxes encoded, its losses, and boxes detected."""
    from nets import ssd_vgg_300

    net = ssd_vgg_300.SSDNet()
    image = tf.constant(rng.rand(1, 300, 300, 3).astype(np.float32))
    boxes = tf.constant([[0.1, 0.1, 0.5, 0.6], [0.4, 0.3, 0.9, 0.8]])
    classes, places, scores = net.bboxes_encode(tf.constant([3, 7], tf.int64), boxes, net.anchors((300, 300)))
    with tf.contrib.slim.arg_scope(net.arg_scope(weight_decay=5e-4)):
        predictions, offsets, logits, _ = net.net(image, is_training=True)
    batched = [[tf.expand_dims(part, 0) for part in parts] for parts in (classes, places, scores)]
    net.losses(logits, offsets, *batched)
    train(tf.losses.get_total_loss(), None, tf.train.MomentumOptimizer(1e-4, 0.9), steps=2)


def caps_net() -> None:
    """Matrix of capsules with routing by agreement, the repository's own loss."""
    import capsNet
    from config import cfg

    cfg.batch_size, cfg.mask_with_y = 4, True
    images, labels = rng.rand(4, 28, 28, 1).astype(np.float32), rng.randint(0, 10, 4)
    capsNet.get_batch_data = lambda *_: (tf.constant(images), tf.constant(labels, tf.int32))
    net = capsNet.CapsNet(is_training=True)
    with net.graph.as_default(), tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            print(session.run([net.train_op, net.total_loss])[1])


def inception_resnet(name: str = "inception_resnet_v1") -> None:
    """facenet's network on images of 160 by 160: built with slim, two steps."""
    images = tf.constant(rng.randn(2, 160, 160, 3).astype(np.float32))
    net, _ = import_module(f"models.{name}").inference(images, 0.8, phase_train=True, weight_decay=1e-4)
    loss = tf.reduce_mean(tf.square(net - 0.1)) + tf.add_n(tf.losses.get_regularization_losses())
    train(loss, steps=2)


def squeezenet() -> None:
    inception_resnet("squeezenet")


def point_net() -> None:
    import pointnet_cls

    points, labels = rng.randn(4, 32, 3).astype(np.float32), rng.randint(0, 40, 4)
    scores, ends = pointnet_cls.get_model(tf.constant(points), tf.constant(True), bn_decay=tf.constant(0.9))
    train(pointnet_cls.get_loss(scores, tf.constant(labels, tf.int32), ends))


def u_net() -> None:
    from tf_unet import unet

    net = unet.Unet(channels=1, n_class=2, layers=2, features_root=4)
    x, y = rng.rand(1, 40, 40, 1), np.eye(2)[rng.randint(0, 2, [1, 40, 40])]
    y = y[:, 8:-8, 8:-8]  # the convolutions take that much from the border
    train(net.cost, lambda: {net.x: x, net.y: y, net.keep_prob: 0.75}, tf.train.MomentumOptimizer(0.2, 0.9))


def darknet() -> None:
    """YOLOv3's backbone."""
    from core import backbone

    x = tf.constant(rng.rand(1, 64, 64, 3).astype(np.float32))
    routes = backbone.darknet53(x, tf.constant(True))
    train(tf.add_n([tf.reduce_mean(tf.square(route)) for route in routes]), steps=2)


def spinning_up(algorithm: str) -> None:
    """OpenAI's PPO, TRPO, DDPG and SAC on tasks of gym, in one process: without MPI, and without PyTorch, which
    their package imports. Record some 60 runs: a step in the environment is one.
    """
    stand_in("torch", "mpi4py.MPI", "spinup.algos.tf1")
    for name, folder in (("spinup", "spinup"), ("spinup.algos", "spinup/algos"), ("spinup.algos.tf1", "spinup/algos/tf1")):
        sys.modules[name].__path__ = [folder]
    mpi: Any = sys.modules["mpi4py.MPI"]
    mpi.SUM, mpi.MIN, mpi.MAX = range(3)
    mpi.COMM_WORLD = SimpleNamespace(
        Get_rank=lambda: 0, Get_size=lambda: 1, Bcast=lambda x, root: None,
        Allreduce=lambda x, result, op: np.copyto(result, x),
    )  # fmt: skip
    import gym

    run = getattr(import_module(f"spinup.algos.tf1.{algorithm}.{algorithm}"), algorithm)
    is_on_policy = algorithm in ("ppo", "trpo")
    options = {} if is_on_policy else {"start_steps": 5, "update_after": 10, "update_every": 10}
    task = "CartPole-v1" if is_on_policy else "Pendulum-v0"
    run(
        lambda: gym.make(task), steps_per_epoch=25, epochs=2, max_ep_len=20,
        logger_kwargs={"output_dir": tempfile.mkdtemp()}, **options,
    )  # fmt: skip


if __name__ == "__main__":
    run_named(globals())
