"""A character-level LSTM language model, trained on the source of Python's standard library.

``python examples/lstm_text.py [--steps 250]`` learns to predict each next character in the lines of
``argparse.py``. Lines differ in length: each batch has lines of similar length (`bucket_by_sequence_length`),
and padding does not count (`sequence_length`, and a mask on the loss). It prints the loss in bits per
character and the share of padding in each pass over the text; at the end it samples lines from the model,
with the same cell, one character at a time.
"""

from __future__ import annotations

import argparse
import inspect
import logging
import sys
from typing import Any

import numpy as np

import flowrt as tf

UNITS = 128


class Text:
    """A text as lines of integer codes, each with a line end before and after it."""

    def __init__(self, text: str) -> None:
        self.symbols = sorted(set(text))
        number = {symbol: i for i, symbol in enumerate(self.symbols)}
        lines = [f"\n{line}\n" for line in text.split("\n") if line.strip()]
        self.lines = [np.array([number[symbol] for symbol in line]) for line in lines]
        self.line_end = number["\n"]

    def batches(self) -> tf.data.Dataset:
        """All lines, repeated indefinitely: ``(codes [batch, time], lengths [batch])``."""
        lines = tf.data.Dataset.from_generator(lambda: self.lines, tf.int64, [None])
        pairs = lines.shuffle(len(self.lines), seed=1).map(lambda codes: (codes, tf.size(codes)))
        bucketed = tf.data.experimental.bucket_by_sequence_length(
            lambda codes, length: length, bucket_boundaries=[24, 40, 56], bucket_batch_sizes=[64, 64, 48, 32]
        )
        return pairs.apply(bucketed).repeat().prefetch(2)


class Model:
    """Embedding, LSTM and logits: over whole lines for training, one character at a time for sampling."""

    def __init__(self, symbols: int, codes: tf.Tensor, lengths: tf.Tensor) -> None:
        embedding = tf.get_variable("embedding", [symbols, 32])
        cell = tf.nn.rnn_cell.BasicLSTMCell(UNITS)
        logits = tf.layers.Dense(symbols, name="logits")

        inputs = tf.nn.embedding_lookup(embedding, codes[:, :-1])
        outputs, _ = tf.nn.dynamic_rnn(cell, inputs, lengths - 1, dtype=tf.float32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=codes[:, 1:], logits=logits(outputs))
        mask = tf.sequence_mask(lengths - 1, tf.shape(losses)[1], tf.float32)
        self.bits = tf.reduce_sum(losses * mask) / tf.reduce_sum(mask) / np.log(2)
        optimizer = tf.train.AdamOptimizer(8e-3)
        gradients, variables = zip(*optimizer.compute_gradients(self.bits), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
        self.train = optimizer.apply_gradients(zip(clipped, variables, strict=True))

        self.code = tf.placeholder(tf.int64, [1])
        self.state = cell.zero_state(1, tf.float32)
        output, self.next_state = cell(tf.nn.embedding_lookup(embedding, self.code), self.state)
        self.next_code = tf.multinomial(logits(output), 1)[:, 0]


def write_line(session: tf.Session, model: Model, text: Text) -> str:
    """A line sampled from the model."""
    feed: dict[Any, Any] = {model.code: [text.line_end]}
    written: list[str] = []
    while len(written) < 80:
        code, (c, h) = session.run([model.next_code, model.next_state], feed)
        if code[0] == text.line_end:
            break
        written.append(text.symbols[int(code[0])])
        feed = {model.code: code, model.state.c: c, model.state.h: h}
    return "".join(written)


def main(steps: int) -> float:
    """Train, and return the mean bits per character over the last steps."""
    shown = logging.StreamHandler(sys.stdout)
    shown.addFilter(lambda record: record.name == "flowrt")  # the padding, not the compiler's "flowrt.device"
    logging.basicConfig(handlers=[shown], format="%(message)s", level=logging.INFO)
    text = Text(inspect.getsource(argparse))
    tf.set_random_seed(5)
    codes, lengths = text.batches().make_one_shot_iterator().get_next()
    model = Model(len(text.symbols), codes, lengths)
    with tf.Session(config=tf.ConfigProto(intra_op_parallelism_threads=1)) as session:
        session.run(tf.global_variables_initializer())
        recent: list[float] = []
        for step in range(1, steps + 1):
            recent = [*recent[-49:], session.run([model.train, model.bits])[1]]
            if step % 50 == 0:
                print(f"step {step:4d}  {np.mean(recent):.3f} bits per character")
        print("--- a sample", *(write_line(session, model, text) for _ in range(10)), sep="\n")
    return float(np.mean(recent))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=250)
    main(parser.parse_args().steps)
