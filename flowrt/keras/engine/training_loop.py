"""Epochs of steps with callbacks: `fit_loop`, `evaluate_loop`, `predict_loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.graph.source import misuse
from flowrt.keras.callbacks import CallbackList
from flowrt.keras.engine.batches import Array, Batch, Batches
from flowrt.logging import warning

Step = Callable[[Batch], Sequence[Any]]


class Averages:
    """Results of an epoch: the loss is the mean over samples, or over steps; metrics keep their own totals,
    so the last one counts.
    """

    def __init__(self, by_samples: bool) -> None:
        self._by_samples, self._total, self._weight = by_samples, 0.0, 0
        self._last: list[float] = []

    def add(self, results: Sequence[Any], rows: int) -> None:
        weight = rows if self._by_samples else 1
        self._total += float(results[0]) * weight
        self._weight += weight
        self._last = [float(each) for each in results[1:]]

    def results(self) -> list[float]:
        return [self._total / max(self._weight, 1), *self._last]


def fit_loop(
    step: Step,
    names: Sequence[str],
    batches: Batches,
    callbacks: CallbackList,
    epochs: range,
    begin_epoch: Callable[[], None],
    validate: Callable[[int], dict[str, float]],
) -> None:
    """Run ``step`` over the batches of ``epochs``, until a callback sets ``model.stop_training``."""
    model = callbacks.model
    model.stop_training = False
    callbacks.on_train_begin()
    for epoch in epochs:
        begin_epoch()
        callbacks.on_epoch_begin(epoch)
        averages = Averages(by_samples=batches.samples is not None)
        empty = True
        for index, batch in enumerate(batches.epoch()):
            empty = False
            logs: dict[str, Any] = {"batch": index, "size": batch.rows}
            callbacks.on_train_batch_begin(index, logs)
            results = step(batch)
            averages.add(results, batch.rows)
            logs.update(zip(names, results, strict=True))
            callbacks.on_train_batch_end(index, logs)
            if model.stop_training:
                break
        if empty:
            hint = ". Does the dataset or generator end? Its repeat() does not" if epoch > epochs[0] else ""
            raise misuse(f"fit: expected batches in epoch {epoch + 1}; there were none{hint}")
        if batches.steps is not None and index + 1 < batches.steps and not model.stop_training:
            warning(
                f"fit: expected {batches.steps} batches in epoch {epoch + 1}; there were {index + 1}. It "
                "ends here. Does the dataset or generator need a repeat()?"
            )
            model.stop_training = True
        logs = dict(zip(names, averages.results(), strict=True))
        if not model.stop_training:  # an epoch that a callback cut short has no validation
            logs |= validate(epoch)
        callbacks.on_epoch_end(epoch, logs)
        if model.stop_training:
            break
    callbacks.on_train_end()


def evaluate_loop(step: Step, batches: Batches, callbacks: CallbackList) -> list[float]:
    """The results of all batches."""
    averages = Averages(by_samples=batches.samples is not None)
    callbacks.on_test_begin()
    for index, batch in enumerate(batches.epoch()):
        callbacks.on_test_batch_begin(index, {"batch": index, "size": batch.rows})
        averages.add(step(batch), batch.rows)
        callbacks.on_test_batch_end(index, {"batch": index, "size": batch.rows})
    callbacks.on_test_end()
    return averages.results()


def predict_loop(step: Step, batches: Batches, callbacks: CallbackList) -> list[Array]:
    """The outputs for all batches, one array for each output."""
    found: list[list[Array]] = []
    callbacks.on_predict_begin()
    for index, batch in enumerate(batches.epoch()):
        callbacks.on_predict_batch_begin(index, {"batch": index, "size": batch.rows})
        for i, output in enumerate(step(batch)):
            if i == len(found):
                found.append([])
            found[i].append(np.asarray(output))
        callbacks.on_predict_batch_end(index, {"batch": index, "size": batch.rows})
    callbacks.on_predict_end()
    return [np.concatenate(parts) for parts in found]
