"""Losses over a sample of the classes, for outputs with very many classes (such as word2vec).

`nce_loss` is noise-contrastive estimation (Gutmann and Hyvärinen 2010; Mnih and Teh 2012),
`sampled_softmax_loss` a softmax over the true classes and the sample (Jean et al. 2015). Both correct every
logit by the logarithm of the class's expected count in the sample.

A sample without repetition is drawn by an exponential race: class i arrives at the time ``-log(u_i) / p_i``,
the first k are the sample, and a class's expected count is the probability ``1 - exp(-p_i t)`` to arrive by
the k-th's time t.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import int32, int64
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.reductions import reduce_any, reduce_sum
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.sorting import top_k
from flowrt.graph.ops.base.filling import fill, ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast, stop_gradient
from flowrt.graph.ops.base.shape_manipulation import reshape, size
from flowrt.graph.ops.elementwise.comparison import equal, where
from flowrt.graph.ops.elementwise.math import expm1, log
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.losses import sigmoid_cross_entropy_with_logits, softmax_cross_entropy_with_logits_v2
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.random.sampling import multinomial
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = [
    "compute_accidental_hits", "log_uniform_candidate_sampler", "nce_loss", "sampled_softmax_loss",
    "uniform_candidate_sampler",
]  # fmt: skip

ACCIDENT = float(np.finfo(np.float32).min)
"""Added to the logit of a sampled class that is a true one: its exponential is 0."""


class Sample(NamedTuple):
    """The samplers' result: classes ``[k]``, and expected counts of the true and of the sampled ones."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


def _draw(
    true_classes: Any, num_sampled: int, unique: bool, chances: Any, seed: int | None, name: str
) -> Sample:
    """A sample of the classes 0, 1, ..., of the probabilities ``chances``."""
    if not 0 < num_sampled <= (len(chances) if unique else num_sampled):
        raise misuse(f"{name}: expected 1 to {len(chances)} classes to sample; got {num_sampled}")
    with get_default_graph().name_scope(name):
        true_classes = cast(convert_to_tensor(true_classes), int64)
        p = convert_to_tensor(chances.astype(np.float32))
        if unique:
            arrivals = -log(1.0 - random_uniform([len(chances)], seed=seed)) / p
            times, found = top_k(-arrivals, num_sampled)
            counts = -expm1(p * times[num_sampled - 1])
        else:
            found = reshape(multinomial(reshape(log(p), [1, -1]), num_sampled, seed=seed), [-1])
            counts = p * num_sampled
        sampled = cast(found, int64)
        parts = (sampled, gather(counts, true_classes), gather(counts, sampled))
        return Sample(*(stop_gradient(part) for part in parts))


def log_uniform_candidate_sampler(
    true_classes: NumericLike, num_true: int, num_sampled: int, unique: bool, range_max: int,
    seed: int | None = None, name: str | None = None,
) -> Sample:  # fmt: skip
    """Draws class i with the probability ``log((i + 2) / (i + 1)) / log(range_max + 1)``: for classes
    sorted by falling frequency, which is nearly that of words (Zipf).
    """
    classes = np.arange(range_max, dtype=float)
    chances = np.log((classes + 2) / (classes + 1)) / np.log(range_max + 1)
    return _draw(true_classes, num_sampled, unique, chances, seed, name or "LogUniformCandidateSampler")


def uniform_candidate_sampler(
    true_classes: NumericLike, num_true: int, num_sampled: int, unique: bool, range_max: int,
    seed: int | None = None, name: str | None = None,
) -> Sample:  # fmt: skip
    """Draws every class with the same probability."""
    chances = np.full(range_max, 1 / range_max)
    return _draw(true_classes, num_sampled, unique, chances, seed, name or "UniformCandidateSampler")


def _logits_and_labels(
    weights: Any, biases: Any, labels: Any, inputs: Any, num_sampled: int, num_classes: int, num_true: int,
    sampled_values: Any, remove_accidental_hits: bool, partition_strategy: str, seed: int | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Corrected logits ``[batch, num_true + num_sampled]``, the true classes first, and their labels."""
    labels = reshape(cast(convert_to_tensor(labels), int64), [-1, num_true])
    inputs = convert_to_tensor(inputs)
    if not inputs.dtype.is_floating or inputs.shape.ndims != 2 or inputs.shape[1].value is None:
        message = (
            f"inputs: expected floats [batch, dim], dim known; got {inputs.spec}. labels come before inputs"
        )
        raise misuse(message)
    drawn = sampled_values or log_uniform_candidate_sampler(
        labels, num_true, num_sampled, True, num_classes, seed
    )
    sampled, true_counts, sampled_counts = drawn
    flat = reshape(labels, [-1])

    def rows(table: Any, classes: Tensor) -> Tensor:
        return embedding_lookup(table, classes, partition_strategy)

    true_rows = reshape(rows(weights, flat), [-1, num_true, inputs.shape.as_list()[1]])
    true_logits = reduce_sum(true_rows * reshape(inputs, [-1, 1, inputs.shape.as_list()[1]]), 2)
    true_logits += reshape(rows(biases, flat), [-1, num_true]) - log(true_counts)
    sampled_logits = matmul(inputs, rows(weights, sampled), transpose_b=True)
    sampled_logits += rows(biases, sampled) - log(sampled_counts)
    if remove_accidental_hits:
        hits = reduce_any(equal(reshape(labels, [-1, num_true, 1]), reshape(sampled, [1, 1, -1])), 1)
        lowest = max(ACCIDENT, float(inputs.dtype.min) / 2)  # infinite, it would times 0 be no number
        sampled_logits += cast(hits, inputs.dtype) * lowest
    truths = ones_like(true_logits) / num_true
    return concat([true_logits, sampled_logits], 1), concat([truths, zeros_like(sampled_logits)], 1)


def nce_loss(
    weights: NumericLike, biases: NumericLike, labels: NumericLike, inputs: NumericLike,
    num_sampled: int, num_classes: int, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = False,
    partition_strategy: str = "mod", name: str = "nce_loss",
) -> Tensor:  # fmt: skip
    """Noise-contrastive loss ``[batch]``: logistic regression of true vs. sampled classes.

    ``weights`` ``[num_classes, dim]``, ``biases`` ``[num_classes]``, ``labels`` ``[batch, num_true]``,
    ``inputs`` ``[batch, dim]``; ``sampled_values`` is the result of a sampler, by default
    `log_uniform_candidate_sampler`. Where ``weights`` and ``biases`` are lists, classes are shared out among
    their tables as `flowrt.nn.embedding_lookup` says for ``partition_strategy``.

    Raises `InvalidArgumentError` for invalid ``inputs``.
    """
    with get_default_graph().name_scope(name):
        logits, targets = _logits_and_labels(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, None,
        )  # fmt: skip
        return reduce_sum(sigmoid_cross_entropy_with_logits(labels=targets, logits=logits), 1)


def sampled_softmax_loss(
    weights: NumericLike, biases: NumericLike, labels: NumericLike, inputs: NumericLike,
    num_sampled: int, num_classes: int, num_true: int = 1,
    sampled_values: Any = None, remove_accidental_hits: bool = True,
    partition_strategy: str = "mod", name: str = "sampled_softmax_loss", seed: int | None = None,
) -> Tensor:  # fmt: skip
    """Softmax loss ``[batch]`` over the true classes and a sample of the others, for training only.

    The arguments are those of `nce_loss`.
    """
    with get_default_graph().name_scope(name):
        logits, targets = _logits_and_labels(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, seed,
        )  # fmt: skip
        return softmax_cross_entropy_with_logits_v2(labels=stop_gradient(targets), logits=logits)


def compute_accidental_hits(
    true_classes: NumericLike,
    sampled_candidates: NumericLike,
    num_true: int,
    seed: int | None = None,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sampled classes that are true ones: rows of the batch, positions in the sample, an `ACCIDENT` each."""
    with get_default_graph().name_scope(name or "ComputeAccidentalHits"):
        labels = reshape(cast(convert_to_tensor(true_classes), int64), [-1, num_true, 1])
        hits = reduce_any(equal(labels, reshape(cast(sampled_candidates, int64), [1, 1, -1])), 1)
        places = where(hits)
        return cast(places[:, 0], int32), places[:, 1], fill([size(places[:, 0])], ACCIDENT)
