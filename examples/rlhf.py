"""Reinforcement learning from feedback, with several models in one job: ``python examples/rlhf.py``.

The four models are those of DeepSpeed-Chat (Yao et al. 2023), the actor twice; each has a mesh and a
strategy of its own:

    actor        trained by PPO (Schulman et al. 2017)    a pipeline of two stages
    generator    a copy of the actor, writes answers      tensor parallel
    critic       trained to predict the reward            fully sharded
    reference    the actor as it was, frozen              data parallel
    reward       scores answers, frozen                   data parallel

All are in one graph and one session, and each runs in steps of its own. After a round `copy_variables` brings
the actor's weights to the generator: each device is sent the parts that it lacks. The reward can be verified:
it is the share of letters in an answer that follow the letter before them in the alphabet.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf

ALPHABET, PROMPT, ANSWER, WIDTH = 8, 3, 6, 32
BATCH, EPOCHS = 64, 4
"""Answers per round, and updates with each of them."""
CLIP, KL, TRACE = 0.2, 0.02, 0.95

FIRST, SECOND = ["/cpu:0", "/cpu:1"], ["/cpu:2", "/cpu:3"]


def layer(x: Any, name: str) -> Any:
    hidden = tf.layers.dense(x, 2 * WIDTH, tf.nn.tanh, name=f"{name}/up")
    return x + tf.layers.dense(hidden, WIDTH, name=f"{name}/down")


def network(tokens: Any, outputs: int, stage: Any = contextlib.nullcontext) -> Any:
    """``outputs`` numbers for each of ``tokens``, which it reads alone: ``[batch, length, outputs]``."""
    with stage(0):
        table = tf.get_variable("letters", [ALPHABET, WIDTH])
        h = layer(tf.nn.embedding_lookup(table, tokens), "first")
    with stage(1):
        return tf.layers.dense(layer(h, "second"), outputs, name="outputs")


def surprise(logits: Any, tokens: Any) -> Any:
    """Minus the logarithm of the probability of each letter of the answers in ``tokens``."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tokens[:, PROMPT:], logits=logits[:, PROMPT - 1 : -1]
    )


class Actor(NamedTuple):
    """What it is fed, its `surprise` and its update."""

    tokens: Any
    before: Any
    advantages: Any
    surprise: Any
    update: Any


class Critic(NamedTuple):
    """What it is fed, what it predicts after each letter, and its update."""

    tokens: Any
    returns: Any
    values: Any
    update: Any


class Scorer(NamedTuple):
    """A model that is not trained: from ``tokens`` to ``scores``."""

    tokens: Any
    scores: Any


def letters(length: int = PROMPT + ANSWER) -> Any:
    return tf.placeholder(tf.int32, [BATCH, length])


def numbers() -> Any:
    return tf.placeholder(tf.float32, [BATCH, ANSWER])


def actor() -> Actor:
    strategy = tf.distribute.PipelineStrategy(tf.distribute.Mesh([("pp", 2)], FIRST), micro_batches=4)
    with strategy.scope(), tf.variable_scope("actor"):
        tokens, before, advantages = letters(), numbers(), numbers()
        now = surprise(network(tokens, ALPHABET, tf.distribute.stage), tokens)
        ratio = tf.exp(before - now)
        clipped = tf.clip_by_value(ratio, 1 - CLIP, 1 + CLIP)
        loss = -tf.reduce_mean(tf.minimum(ratio * advantages, clipped * advantages))
        return Actor(tokens, before, advantages, now, tf.train.AdamOptimizer(0.01).minimize(loss))


def generator() -> Scorer:
    """Answers to prompts, letter by letter."""
    strategy = tf.distribute.TensorParallelStrategy(
        tf.distribute.Mesh([("tp", 2)], SECOND), plan={r".*/up/kernel": "column", r".*/down/kernel": "row"}
    )
    with strategy.scope(), tf.variable_scope("generator", reuse=tf.AUTO_REUSE):
        prompts = tokens = letters(PROMPT)
        for _ in range(ANSWER):
            logits = network(tokens[:, -1:], ALPHABET)
            drawn = tf.multinomial(logits[:, 0], 1, output_dtype=tf.int32)
            tokens = tf.concat([tokens, drawn], axis=1)
        return Scorer(prompts, tokens)


def critic() -> Critic:
    mesh = tf.distribute.Mesh([("dp", 2)], SECOND)
    with tf.distribute.FullyShardedStrategy(mesh).scope(), tf.variable_scope("critic"):
        tokens, returns = letters(), numbers()
        values = network(tokens, 1)[:, PROMPT - 1 : -1, 0]
        loss = tf.reduce_mean(tf.square(values - returns))
        return Critic(tokens, returns, values, tf.train.AdamOptimizer(0.01).minimize(loss))


def reference() -> Scorer:
    with data_parallel(FIRST).scope(), tf.variable_scope("reference"):
        tokens = letters()
        return Scorer(tokens, surprise(network(tokens, ALPHABET), tokens))


def reward() -> Scorer:
    """The share of right letters in an answer: a table of pairs is all that this model has learnt."""
    with data_parallel(SECOND).scope(), tf.variable_scope("reward"):
        tokens = letters()
        pairs = np.roll(np.eye(ALPHABET, dtype=np.float32), 1, axis=1)
        right = tf.get_variable("right", initializer=tf.constant(pairs), trainable=False)
        follows = tf.nn.embedding_lookup(right, tokens[:, PROMPT - 1 : -1])
        found = tf.reduce_sum(follows * tf.one_hot(tokens[:, PROMPT:], ALPHABET), axis=-1)
        return Scorer(tokens, tf.reduce_mean(found, axis=-1))


def data_parallel(devices: list[str]) -> tf.distribute.LayoutStrategy:
    return tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2)], devices), batch="dp")


def weights(scope: str) -> Mapping[str, Any]:
    """The weights of a model, by their names in it."""
    found = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, f"{scope}/")
    return {variable.op.name.removeprefix(f"{scope}/"): variable for variable in found}


def advantages(rewards: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How much better each letter was than the critic expected: the sum of its later errors, which count less
    the later they are (Schulman et al. 2016). All arrays have a number for each letter of each answer.
    """
    errors = rewards + np.append(values[:, 1:], np.zeros((len(values), 1)), axis=1) - values
    found = np.zeros_like(errors)
    following = np.zeros(len(errors))
    for letter in reversed(range(errors.shape[1])):
        following = found[:, letter] = errors[:, letter] + TRACE * following
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    tf.set_random_seed(1)
    random = np.random.default_rng(0)
    learner, writer, judge, frozen, scorer = actor(), generator(), critic(), reference(), reward()
    begin = tf.distribute.copy_variables(weights("actor"), weights("reference"))
    publish = tf.distribute.copy_variables(weights("actor"), weights("generator"))
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
        for model in ("actor", "generator", "critic", "reference", "reward"):
            session.run(tf.variables_initializer(tf.global_variables(f"{model}/")))
        session.run(begin)
        for number in range(options.rounds):
            session.run(publish)
            prompts = random.integers(0, ALPHABET, (BATCH, PROMPT))
            tokens = session.run(writer.scores, {writer.tokens: prompts})
            share = session.run(scorer.scores, {scorer.tokens: tokens})
            before = session.run(learner.surprise, {learner.tokens: tokens})
            usual = session.run(frozen.scores, {frozen.tokens: tokens})
            values = session.run(judge.values, {judge.tokens: tokens})
            rewards = KL * (before - usual)  # for each letter: not to drift from the reference
            rewards[:, -1] += share
            better = advantages(rewards, values)
            scaled = (better - better.mean()) / (better.std() + 1e-6)
            for _ in range(EPOCHS):
                fed = {learner.tokens: tokens, learner.before: before, learner.advantages: scaled}
                session.run(learner.update, fed)
                session.run(judge.update, {judge.tokens: tokens, judge.returns: better + values})
            if number % 5 == 0 or number == options.rounds - 1:
                text = "".join(chr(ord("a") + token) for token in tokens[0])
                print(f"round {number:3}: reward {share.mean():.2f}, {text[:PROMPT]} -> {text[PROMPT:]}")


if __name__ == "__main__":
    main()
