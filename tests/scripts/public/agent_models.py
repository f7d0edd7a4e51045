"""Models of public repositories that act, recommend or read graphs; as `models`."""

from __future__ import annotations

import runpy
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from made_data import made, one_hot, rng, run_named, stand_in, train


def recommender() -> None:
    """SASRec: the next item of a sequence, by self-attention."""
    from model import Model

    options = SimpleNamespace(
        maxlen=6, hidden_units=8, num_blocks=2, num_heads=2, dropout_rate=0.3, l2_emb=1e-4, lr=1e-3
    )
    net = Model(5, 20, options)
    train([net.loss, net.auc], lambda: made(high=20), train_op=net.train_op)


def sessions_of_clicks() -> None:
    """GRU4Rec, through time."""
    from model import GRU4Rec

    options = SimpleNamespace(
        is_training=True, batch_size=4, hidden_act="tanh", sigma=0.0, n_items=20, rnn_size=8, init_as_normal=False,
        layers=2, keep_prob=0.5, learning_rate=1e-3, decay_steps=10, decay=0.96, grad_cap=1.0,
    )  # fmt: skip
    net = GRU4Rec(options)
    train([net.cost, net.lr], lambda: made(high=20), train_op=net.train_op)


def neighbours(program: str) -> None:
    """NGCF and its relatives on files of 12 users."""
    folder = Path(tempfile.mkdtemp())
    for name in ("train", "test"):
        lines = [" ".join(map(str, [user, *rng.choice(15, 4, False)])) for user in range(12)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n")
    sys.argv = [
        program, "--data_path", f"{folder.parent}/", "--dataset", folder.name, "--epoch", "4", "--embed_size", "8",
        "--layer_size", "[8,8]", "--batch_size", "16", "--Ks", "[2,4]", "--mess_dropout", "[0.1,0.1]",
    ]  # fmt: skip
    runpy.run_path(program, run_name="__main__")


def clicks(program: str, *words: str) -> None:
    """lambdaji's estimators of clicks, on libsvm's format."""
    folder = Path(tempfile.mkdtemp())
    for name in ("tr", "va"):
        rows = [(rng.randint(0, 2), rng.randint(0, 30, 5), rng.rand(5)) for _ in range(64)]
        lines = [f"{y} " + " ".join(f"{i}:{x:.3f}" for i, x in zip(ids, values)) for y, ids, values in rows]
        (folder / f"{name}.libsvm").write_text("\n".join(lines) + "\n")
    sys.argv = [
        program, f"--data_dir={folder}", f"--model_dir={folder}/model", "--feature_size=30", "--field_size=5",
        "--embedding_size=4", "--batch_size=8", "--num_epochs=1", "--deep_layers=8,4", "--dropout=0.5,0.5", *words,
    ]  # fmt: skip
    runpy.run_path(program, run_name="__main__")


def agents() -> None:
    """OpenAI's MADDPG: two agents, which see each other's actions in training."""
    stand_in("multiagent.multi_discrete")
    sys.modules["multiagent.multi_discrete"].MultiDiscrete = type("MultiDiscrete", (), {})  # type: ignore[attr-defined]
    import maddpg.common.tf_util as util
    from gym import spaces
    from maddpg.trainer.maddpg import MADDPGAgentTrainer

    def layers(x: Any, outputs: int, scope: str, reuse: Any = False, num_units: int = 64, **_: Any) -> Any:
        with tf.variable_scope(scope, reuse=reuse):
            hidden = tf.contrib.layers.fully_connected(x, num_units, tf.nn.relu)
            return tf.contrib.layers.fully_connected(hidden, outputs, None)

    options = SimpleNamespace(lr=0.01, num_units=8, batch_size=8, max_episode_len=2, gamma=0.95)
    with util.single_threaded_session():
        both = [
            MADDPGAgentTrainer(f"agent_{i}", layers, [(4,), (4,)], [spaces.Discrete(3)] * 2, i, options)
            for i in range(2)
        ]
        util.initialize()
        for _ in range(20):
            for agent in both:
                seen = rng.rand(4)
                action = agent.action(seen) if len(agent.replay_buffer) < 2 else rng.rand(3)
                agent.experience(seen, action, rng.rand(), rng.rand(4), False, False)
        for agent in both:
            agent.preupdate()
            print(agent.update(both, 100))


def world(module: str) -> None:
    """World models: images to codes by a VAE, codes to the next code by an LSTM with mixtures."""
    if module == "vae":
        from vae.vae import ConvVAE

        net, feeds = ConvVAE(z_size=8, batch_size=2, is_training=True), {}
        feeds = {net.x: rng.rand(2, 64, 64, 3)}
        fetches = [net.loss, net.r_loss, net.kl_loss, net.train_op]
    else:
        from rnn import rnn

        options = rnn.default_hps()._replace(
            max_seq_len=6, batch_size=3, rnn_size=16, use_layer_norm=1, use_recurrent_dropout=1
        )
        net = rnn.MDNRNN(options, gpu_mode=False)
        feeds = {net.input_x: rng.randn(3, 6, 35), net.output_x: rng.randn(3, 6, 32)}
        fetches = [net.cost, net.final_state, net.train_op]
    for _ in range(5):
        print(net.sess.run(fetches, feeds)[0])


def graph_sage(aggregator: str, concat: str = "true") -> None:
    """GraphSAGE on a made graph of 20 nodes; its own module for data wants networkx of 2016."""
    flags = tf.app.flags
    flags.DEFINE_float("weight_decay", 0.01, "")
    flags.DEFINE_float("learning_rate", 0.01, "")
    flags.DEFINE_float("neg_sample_weights", 1.0, "")
    flags.FLAGS(sys.argv[:1])
    from graphsage.models import SAGEInfo
    from graphsage.neigh_samplers import UniformNeighborSampler
    from graphsage.supervised_models import SupervisedGraphsage

    placeholders = {
        "labels": tf.placeholder(tf.float32, [None, 3]), "batch": tf.placeholder(tf.int32, [None]),
        "dropout": tf.placeholder_with_default(0.0, []), "batch_size": tf.placeholder(tf.int32, []),
    }  # fmt: skip
    neighbours = tf.Variable(rng.randint(0, 20, [21, 5]), trainable=False, dtype=tf.int32)
    sampler = UniformNeighborSampler(neighbours)
    layers = [SAGEInfo("node", sampler, samples, 8) for samples in (4, 3)]
    features = np.vstack([rng.rand(20, 6), np.zeros([1, 6])])
    net = SupervisedGraphsage(
        3, placeholders, features, neighbours, rng.randint(1, 5, 20), layers, aggregator_type=aggregator,
        model_size="small", concat=concat == "true", logging=False,
    )  # fmt: skip

    def feeds() -> Any:
        batch = rng.randint(0, 20, 6)
        return {
            placeholders["labels"]: one_hot(6, 3), placeholders["batch"]: batch,
            placeholders["batch_size"]: 6, placeholders["dropout"]: 0.5,
        }  # fmt: skip

    train([net.loss, net.preds], feeds, train_op=net.opt_op)


def a3c_network() -> None:
    """miyosuda's networks of games: a local one, which copies a global one, and its losses."""
    from game_ac_network import GameACFFNetwork

    shared, local = (GameACFFNetwork(4, thread, "/cpu:0") for thread in (-1, 0))
    local.prepare_loss(0.01)
    gradients = tf.gradients(local.total_loss, local.get_vars())
    step = tf.train.RMSPropOptimizer(1e-3).apply_gradients(zip(gradients, shared.get_vars()))
    sync = local.sync_from(shared)
    frames = rng.rand(3, 84, 84, 4)
    given = {local.s: frames, local.a: one_hot(3, 4), local.td: rng.rand(3), local.r: rng.rand(3)}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        for _ in range(4):
            session.run(sync)
            print(session.run([local.total_loss, local.pi, local.v, step], given)[0])


if __name__ == "__main__":
    run_named(globals())
