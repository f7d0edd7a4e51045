"""A character-level language model, trained on the source of Python's standard library.

``python examples/char_lm.py [--steps 1500]`` learns to predict the next character of ``argparse.py`` from the
previous sixteen, prints the loss in bits per character, and then samples a few lines from the model.
"""

from __future__ import annotations

import argparse
import inspect

import numpy as np

import flowrt as tf

CONTEXT = 16


class Text:
    """A text as integer codes, in windows of `CONTEXT` characters plus the one that follows."""

    def __init__(self, text: str) -> None:
        self.symbols = sorted(set(text))
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        codes = np.array([number[symbol] for symbol in text], np.int32)
        windows = np.lib.stride_tricks.sliding_window_view(codes, CONTEXT + 1)
        self.contexts, self.targets = windows[:, :-1], windows[:, -1]
        self.start = codes[:CONTEXT]

    def decode(self, codes: list[int]) -> str:
        return "".join(self.symbols[code] for code in codes)


class Model:
    """An embedding of the context, one hidden layer, and the logits of the next character."""

    def __init__(self, symbols: int) -> None:
        self.contexts = tf.placeholder(tf.int32, [None, CONTEXT], name="contexts")
        self.targets = tf.placeholder(tf.int32, [None], name="targets")
        with tf.variable_scope("model"):
            embedding = tf.get_variable("embedding", [symbols, 24])
            h = tf.reshape(tf.nn.embedding_lookup(embedding, self.contexts), [-1, CONTEXT * 24])
            h = tf.layers.dense(h, 256, activation=tf.nn.relu)
            self.logits = tf.layers.dense(h, symbols)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.targets, logits=self.logits)
        self.bits = tf.reduce_mean(losses) / np.log(2)
        optimizer = tf.train.AdamOptimizer(3e-3)
        clipped = [(tf.clip_by_norm(g, 1.0), v) for g, v in optimizer.compute_gradients(self.bits)]
        self.train = optimizer.apply_gradients(clipped)
        self.draw = tf.multinomial(self.logits, 1)[:, 0]


def main(steps: int) -> float:
    """Train, and return the mean bits per character over the last steps."""
    text = Text(inspect.getsource(argparse))
    tf.set_random_seed(5)
    model = Model(len(text.symbols))
    rng = np.random.default_rng(5)
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        recent: list[float] = []
        for step in range(1, steps + 1):
            rows = rng.integers(0, len(text.targets), 128)
            feed = {model.contexts: text.contexts[rows], model.targets: text.targets[rows]}
            recent = [*recent[-49:], session.run([model.train, model.bits], feed)[1]]
            if step % 100 == 0:
                print(f"step {step:4d}  {np.mean(recent):.3f} bits per character")
        codes = list(text.start)
        for _ in range(200):
            codes.append(int(session.run(model.draw, {model.contexts: [codes[-CONTEXT:]]})[0]))
    print("--- a sample\n" + text.decode(codes))
    return float(np.mean(recent))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    main(parser.parse_args().steps)
