"""Settings of estimators."""

from __future__ import annotations

import copy
from typing import Any

from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import misuse

UNSET: Any = object()


class RunConfig:
    """Settings of an `Estimator`: where its files are, its random seed, and how often it saves and reports.

    Checkpoints are saved every 600 s unless ``save_checkpoints_steps`` or ``save_checkpoints_secs`` (one of
    them) says otherwise; None for both turns them off. ``session_config`` is a `ConfigProto`. One process
    trains: ``train_distribute`` and the like have to be None.
    """

    def __init__(
        self,
        model_dir: Any = None,
        tf_random_seed: int | None = None,
        save_summary_steps: int | None = 100,
        save_checkpoints_steps: Any = UNSET,
        save_checkpoints_secs: Any = UNSET,
        session_config: Any = None,
        keep_checkpoint_max: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000,
        log_step_count_steps: int | None = 100,
        train_distribute: Any = None,
        device_fn: Any = None,
        protocol: Any = None,
        eval_distribute: Any = None,
        experimental_distribute: Any = None,
        experimental_max_worker_delay_secs: Any = None,
        session_creation_timeout_secs: float = 7200,
    ) -> None:
        if save_checkpoints_steps not in (UNSET, None) and save_checkpoints_secs not in (UNSET, None):
            raise misuse(
                "RunConfig: expected save_checkpoints_steps or ..._secs; got both", InvalidArgumentError
            )
        if train_distribute or eval_distribute or experimental_distribute:
            raise misuse(
                "RunConfig: expected no strategy: run a training loop under its scope", InvalidArgumentError
            )
        if save_checkpoints_steps is UNSET and save_checkpoints_secs is UNSET:
            save_checkpoints_secs = 600
        self.model_dir = model_dir
        self.tf_random_seed = tf_random_seed
        self.save_summary_steps = save_summary_steps
        self.save_checkpoints_steps = None if save_checkpoints_steps is UNSET else save_checkpoints_steps
        self.save_checkpoints_secs = None if save_checkpoints_secs is UNSET else save_checkpoints_secs
        self.session_config = session_config
        self.keep_checkpoint_max = keep_checkpoint_max
        self.keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self.log_step_count_steps = log_step_count_steps
        self.device_fn = device_fn
        self.is_chief, self.task_type, self.task_id, self.master = True, "worker", 0, ""
        self.num_worker_replicas, self.num_ps_replicas = 1, 0

    def replace(self, **changes: Any) -> RunConfig:
        """A copy with some settings changed. Raises `InvalidArgumentError` for an unknown setting."""
        made = copy.copy(self)
        for name, value in changes.items():
            if not hasattr(self, name):
                raise misuse(f"RunConfig.replace: there is no setting {name!r}", InvalidArgumentError)
            setattr(made, name, value)
        return made
