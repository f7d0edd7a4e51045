"""``flowrt.estimator.tpu``: programs written for TPUs, with ``use_tpu=False``, on the devices that there are.

A `TPUEstimator` is an `Estimator` that tells its functions the batch size, in ``params["batch_size"]``, and
takes a model as a `TPUEstimatorSpec`, with functions in the place of metrics, hooks and scaffold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.estimator.estimator import Estimator
from flowrt.estimator.modes import EstimatorSpec, ModeKeys
from flowrt.estimator.run_config import RunConfig as EstimatorConfig
from flowrt.graph.source import misuse
from flowrt.tf1.missing_names import missing_from

__all__ = ["InputPipelineConfig", "RunConfig", "TPUConfig", "TPUEstimator", "TPUEstimatorSpec"]


class InputPipelineConfig:
    """Places where a TPU's input is made; accepted."""

    PER_SHARD_V1, PER_HOST_V1, PER_HOST_V2, BROADCAST, SLICED = 1, 2, 3, 4, 5


class TPUConfig(NamedTuple):
    """Settings of TPUs; accepted, and not used without them."""

    iterations_per_loop: int = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: Any = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1


class RunConfig(EstimatorConfig):
    """`estimator.RunConfig` with ``tpu_config``. ``master``, ``evaluation_master`` and ``cluster`` must name
    no TPU: raises `UnimplementedError` for others.
    """

    def __init__(
        self,
        tpu_config: TPUConfig | None = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        if master or evaluation_master or cluster is not None:
            raise misuse("estimator.tpu.RunConfig: expected no TPU; there are none", UnimplementedError)
        super().__init__(**kwargs)
        self.tpu_config = tpu_config or TPUConfig()
        self.evaluation_master, self.cluster = "", None


class TPUEstimatorSpec(NamedTuple):
    """A model for ``mode``, as `EstimatorSpec`, with functions that are called on the host.

    ``eval_metrics`` is ``(function, tensors)``: a list of arguments or a dict of keyword arguments of a
    function that returns what `EstimatorSpec` has as ``eval_metric_ops``. ``scaffold_fn()`` returns a
    scaffold. ``host_call`` is a pair likewise, for summaries, and is run with each training step.
    """

    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metrics: tuple[Callable[..., Any], Any] | None = None
    export_outputs: Any = None
    scaffold_fn: Callable[[], Any] | None = None
    host_call: tuple[Callable[..., Any], Any] | None = None
    training_hooks: Sequence[Any] | None = None
    evaluation_hooks: Sequence[Any] | None = None
    prediction_hooks: Sequence[Any] | None = None

    def as_estimator_spec(self) -> EstimatorSpec:
        """The same model with the functions called.

        Raises `InvalidArgumentError` for tensors other than a list or a dict.
        """
        if self.host_call is not None and self.mode == ModeKeys.TRAIN:
            _called("host_call", self.host_call)  # its summaries are written with all others
        metrics = None if self.eval_metrics is None else _called("eval_metrics", self.eval_metrics)
        return EstimatorSpec(
            self.mode,
            self.predictions,
            self.loss,
            self.train_op,
            metrics if self.mode == ModeKeys.EVAL else None,
            self.export_outputs,
            training_hooks=self.training_hooks,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            evaluation_hooks=self.evaluation_hooks,
            prediction_hooks=self.prediction_hooks,
        )


def _called(where: str, pair: tuple[Callable[..., Any], Any]) -> Any:
    function, tensors = pair
    if isinstance(tensors, Mapping):
        return function(**tensors)
    if isinstance(tensors, (list, tuple)):
        return function(*tensors)
    raise misuse(f"TPUEstimatorSpec: expected {where} of a list or a dict; got {tensors!r:.80}")


class TPUEstimator(Estimator):
    """`Estimator` with the batch size of the mode in ``params["batch_size"]``; only with ``use_tpu=False``.

    ``model_fn`` returns a `TPUEstimatorSpec` or an `EstimatorSpec`. The arguments on export, placement and
    embeddings are accepted.

    Raises `UnimplementedError` for ``use_tpu=True``, and `InvalidArgumentError` if ``params`` has a
    ``"batch_size"``.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: Any = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,
        eval_on_tpu: bool = True,
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        **accepted: Any,
    ) -> None:
        if use_tpu:
            raise misuse("TPUEstimator: expected use_tpu=False; there are no TPUs", UnimplementedError)
        if params and "batch_size" in params:
            raise misuse("TPUEstimator: params['batch_size'] is set by the estimator", InvalidArgumentError)
        super().__init__(model_fn, model_dir, config, params, warm_start_from)
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }

    def _params_of(self, mode: str) -> dict[str, Any]:
        size = self._batch_sizes[mode]
        return self.params if size is None else {**self.params, "batch_size": size}

    def _checked(self, spec: Any) -> EstimatorSpec:
        if isinstance(spec, TPUEstimatorSpec):
            return spec.as_estimator_spec()
        if not isinstance(spec, EstimatorSpec):
            raise misuse(f"model_fn: expected a TPUEstimatorSpec; got {spec!r:.80}", DTypeError)
        return spec


__getattr__ = missing_from("estimator.tpu")
