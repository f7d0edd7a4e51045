"""Exporters: when `train_and_evaluate` writes the model for serving."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from flowrt.estimator.eval_summaries import read_eval_metrics


class Exporter(ABC):
    """Writes the model after evaluations, to a folder of its ``name``."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its folder."""

    @abstractmethod
    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> bytes | None:
        """Write the model of ``checkpoint_path`` (None: the newest) into a new folder in ``export_path``, and
        return that folder, or None if nothing is to be written now. Raises the errors of writing a model.
        """


class _ServingExporter(Exporter):
    """``serving_input_receiver_fn()`` is a `ServingInputReceiver`; ``assets_extra`` are files to copy, by
    their names in the model; ``as_text`` writes a .pbtxt. All are those of `Estimator.export_saved_model`.
    """

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
    ) -> None:
        self._name = name
        self._arguments = serving_input_receiver_fn, assets_extra, as_text

    @property
    def name(self) -> str:
        return self._name


class FinalExporter(_ServingExporter):
    """Writes the model once, after the last evaluation."""

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> bytes | None:
        if not is_the_final_export:
            return None
        made: bytes = estimator.export_saved_model(export_path, *self._arguments, checkpoint_path)
        return made


class LatestExporter(_ServingExporter):
    """Writes the model after each evaluation and keeps the newest ``exports_to_keep`` (None: all)."""

    def __init__(
        self,
        name: str,
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._kept = exports_to_keep

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> bytes:
        made: bytes = estimator.export_saved_model(export_path, *self._arguments, checkpoint_path)
        keep_newest(export_path, self._kept)
        return made


def _loss_is_smaller(best_eval_result: Mapping[str, Any], current_eval_result: Mapping[str, Any]) -> bool:
    """Whether the current evaluation has the smaller loss."""
    return bool(current_eval_result["loss"] < best_eval_result["loss"])


class BestExporter(_ServingExporter):
    """Writes the model after each evaluation that is better than all before, and keeps the newest
    ``exports_to_keep`` (None: all).

    ``compare_fn(best_eval_result, current_eval_result)`` says whether the current one is better, by default
    the one of the smaller loss. The best one before this program is read from the event files that match
    ``event_file_pattern`` in the model's directory; None if it is not to be.
    """

    def __init__(
        self,
        name: str = "best_exporter",
        serving_input_receiver_fn: Any = None,
        event_file_pattern: str | None = "eval/*.tfevents.*",
        compare_fn: Callable[..., bool] = _loss_is_smaller,
        assets_extra: Mapping[str, Any] | None = None,
        as_text: bool = False,
        exports_to_keep: int | None = 5,
    ) -> None:
        super().__init__(name, serving_input_receiver_fn, assets_extra, as_text)
        self._pattern, self._is_better, self._kept = event_file_pattern, compare_fn, exports_to_keep
        self._best: Mapping[str, Any] | None = None
        self._model_dir: str | None = None

    def export(
        self,
        estimator: Any,
        export_path: str,
        checkpoint_path: str | None,
        eval_result: Mapping[str, Any] | None,
        is_the_final_export: bool,
    ) -> bytes | None:
        if self._model_dir != estimator.model_dir:
            self._model_dir = estimator.model_dir
            self._best = self._best_before(estimator.model_dir, eval_result)
        assert eval_result is not None
        if self._best is not None and not self._is_better(
            best_eval_result=self._best, current_eval_result=eval_result
        ):
            return None
        self._best = eval_result
        made: bytes = estimator.export_saved_model(export_path, *self._arguments, checkpoint_path)
        keep_newest(export_path, self._kept)
        return made

    def _best_before(self, model_dir: str, now: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """The best evaluation in the event files, without that of the step of ``now``."""
        if not self._pattern:
            return None
        folder = os.path.dirname(os.path.join(model_dir, self._pattern))
        step = None if now is None else int(now["global_step"])
        best: Mapping[str, Any] | None = None
        for each, found in read_eval_metrics(folder).items():
            if each != step and (
                best is None or self._is_better(best_eval_result=best, current_eval_result=found)
            ):
                best = found
        return best


def keep_newest(export_path: str, count: int | None) -> None:
    """Delete all models in ``export_path`` but the newest ``count`` (None: keep all)."""
    exports = sorted((name for name in os.listdir(export_path) if name.isdigit()), key=int)
    for old in exports[:-count] if count else ():
        shutil.rmtree(os.path.join(export_path, old))
