"""`ElasticJob`: what the training function of an elastic job is given in each membership epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.data.auto_shard import AutoShardPolicy, is_random
from flowrt.data.dataset import Dataset
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.distribute.strategies.input.distributed_input import InputOptions
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.elastic.commit_hook import CommitHook
from flowrt.train.elastic.commits import Commit, restore_commit
from flowrt.train.hooks.session_run_hook import SessionRunHook
from flowrt.train.sessions.monitored_session import MonitoredSession, MonitoredTrainingSession


@final
class ElasticJob:
    """One membership epoch of this worker, number `epoch`: it is `rank` of `size` workers, and training goes
    on from global step `step`: 0 at the beginning.
    """

    def __init__(
        self,
        epoch: Epoch,
        begin: Commit,
        checkpoint_dir: str | None,
        committed: Callable[[Commit], object],
        over: Callable[[bool], str | None],
    ) -> None:
        """``committed`` and ``over`` are those of `CommitHook`."""
        self.epoch, self.rank, self.size = epoch.number, epoch.rank, len(epoch.addresses)
        self.step = max(0, begin.step)
        self._begin, self._checkpoint_dir = begin, checkpoint_dir
        self._committed, self._over = committed, over
        self._distributes = False

    def distribute(self, strategy: Any, dataset: Dataset, options: InputOptions | None = None) -> Any:
        """The rest of ``dataset``, batches of the global size, from batch number `step` on, divided among the
        replicas of ``strategy``: of a batch that they do not divide, the last ones get one row less.

        So each step reads one global batch, whatever the number of workers, and each record is read as often
        as without changes: every worker reads all files, since a division by file would change with the
        group. Raises `InvalidArgumentError` for an ``auto_shard_policy`` of FILE or OFF, and for a shuffle
        without a seed, or another random choice of elements: each epoch's order would be another.
        """
        if not isinstance(dataset, Dataset):
            raise DTypeError(f"elastic job: expected a flowrt.data.Dataset; got {dataset!r}")
        if is_random(dataset.node):
            raise InvalidArgumentError(
                "elastic job: expected a dataset with the same order in all workers and epochs; got a "
                "shuffle, or another random choice of elements, without a seed (or by random numbers of a "
                "map with num_parallel_calls). Use shuffle(..., seed=1)"
            )
        given = options or InputOptions()
        if given.auto_shard_policy not in (AutoShardPolicy.AUTO, AutoShardPolicy.DATA):
            raise InvalidArgumentError(
                "elastic job: expected workers that divide each batch of one dataset; got "
                f"AutoShardPolicy.{given.auto_shard_policy.name}. Use AutoShardPolicy.DATA"
            )
        uneven = InputOptions(AutoShardPolicy.DATA, given.experimental_fetch_to_device, True)
        self._distributes = True
        return strategy.experimental_distribute_dataset(dataset.skip(self.step), uneven)

    def session(
        self,
        hooks: Sequence[SessionRunHook] = (),
        commit_every: int = 1,
        scaffold: Scaffold | None = None,
        **options: Any,
    ) -> MonitoredSession:
        """A `MonitoredTrainingSession` that begins with the state of the last commit, or of the newest
        checkpoint, and commits after each ``commit_every`` steps: the group changes then. A commit copies all
        variables to host memory; 0: none, each change goes back to the newest checkpoint, as variables in
        parts need.

        ``options`` are those of `MonitoredTrainingSession`, without ``checkpoint_dir``. Raises
        `InvalidArgumentError` for a negative ``commit_every``.
        """
        if commit_every < 0:
            raise InvalidArgumentError(f"elastic job: expected commit_every >= 0; got {commit_every}")
        hook = CommitHook(commit_every, self.step, self._committed, self._over, self._distributes)
        begin = self._begin
        return MonitoredTrainingSession(
            checkpoint_dir=self._checkpoint_dir,
            scaffold=scaffold,
            hooks=[*hooks, hook],
            restore_fn=(lambda session: restore_commit(session, begin)) if begin.values else None,
            **options,
        )
