"""``contrib.learn.RunConfig``: the settings of `estimator.RunConfig` in their older order."""

from __future__ import annotations

from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.estimator import run_config as core
from flowrt.executor.ends.config import ConfigProto, GPUOptions
from flowrt.graph.source import misuse


class RunConfig(core.RunConfig):
    """Settings of an estimator; see `estimator.RunConfig`. Without a ``session_config`` the first four are
    those of its sessions. One process trains: raises `InvalidArgumentError` for a ``master``.
    """

    def __init__(
        self,
        master: str | None = None,
        num_cores: int = 0,
        log_device_placement: bool = False,
        gpu_memory_fraction: float = 1,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_secs: Any = core.UNSET,
        save_checkpoints_steps: Any = core.UNSET,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        protocol: Any = None,
        evaluation_master: str = "",
        model_dir: Any = None,
        session_config: Any = None,
        session_creation_timeout_secs: float = 7200,
    ) -> None:
        if master or evaluation_master:
            raise misuse(
                "contrib.learn.RunConfig: expected no master; one process trains", InvalidArgumentError
            )
        super().__init__(
            model_dir, tf_random_seed, save_summary_steps, save_checkpoints_steps, save_checkpoints_secs,
            session_config or ConfigProto(
                log_device_placement=log_device_placement,
                inter_op_parallelism_threads=num_cores, intra_op_parallelism_threads=num_cores,
                gpu_options=GPUOptions(per_process_gpu_memory_fraction=gpu_memory_fraction),
            ),
            keep_checkpoint_max, keep_checkpoint_every_n_hours, log_step_count_steps,
        )  # fmt: skip
        self.evaluation_master = ""
