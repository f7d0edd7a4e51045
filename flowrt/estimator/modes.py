"""The modes of a model function, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import misuse


class ModeKeys:
    """Purposes of a model: training, evaluation, prediction."""

    TRAIN, EVAL, PREDICT = "train", "eval", "infer"


class _Fields(NamedTuple):
    mode: str
    predictions: Any
    loss: Any
    train_op: Any
    eval_metric_ops: Mapping[str, Any]
    export_outputs: Any
    training_chief_hooks: Sequence[Any]
    training_hooks: Sequence[Any]
    scaffold: Any
    evaluation_hooks: Sequence[Any]
    prediction_hooks: Sequence[Any]


class EstimatorSpec(_Fields):
    """A model for ``mode``: ``loss`` and ``train_op`` to train, ``loss`` and ``eval_metric_ops`` (pairs of a
    value and an update, by name) to evaluate, ``predictions``, a tensor or a dict of them, to predict.

    Raises `InvalidArgumentError` where one of these is missing.
    """

    __slots__ = ()

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Any = None,
        training_chief_hooks: Sequence[Any] | None = None,
        training_hooks: Sequence[Any] | None = None,
        scaffold: Any = None,
        evaluation_hooks: Sequence[Any] | None = None,
        prediction_hooks: Sequence[Any] | None = None,
    ) -> EstimatorSpec:
        needed = {
            ModeKeys.TRAIN: {"loss": loss, "train_op": train_op},
            ModeKeys.EVAL: {"loss": loss},
            ModeKeys.PREDICT: {"predictions": predictions},
        }
        if mode not in needed:
            raise misuse(f"EstimatorSpec: expected a mode of ModeKeys; got {mode!r}", InvalidArgumentError)
        for name, value in needed[mode].items():
            if value is None:
                raise misuse(
                    f"EstimatorSpec: expected {name} for mode {mode!r}; got None", InvalidArgumentError
                )
        hooks = [tuple(h or ()) for h in (training_chief_hooks, training_hooks)]
        later = [tuple(h or ()) for h in (evaluation_hooks, prediction_hooks)]
        metrics = dict(eval_metric_ops or {})
        ends = (train_op, metrics, export_outputs, *hooks, scaffold, *later)
        return super().__new__(cls, mode, predictions, loss, *ends)
