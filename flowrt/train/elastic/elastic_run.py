"""`run_elastic`: calls a training function for each membership epoch of this worker, until the job ends."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, final

from flowrt.distribute.collectives.group import leave_groups
from flowrt.distribute.collectives.interruption import admit_groups
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.distribute.resolvers.flowrt_variables import EPOCH
from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    OpError,
    UnavailableError,
)
from flowrt.graph.construction.graph import Graph
from flowrt.train.elastic.commit_hook import EpochOverError
from flowrt.train.elastic.commits import Commit, checkpointed_step, save_commit, shared_commit
from flowrt.train.elastic.elastic_job import ElasticJob
from flowrt.train.elastic.membership import Membership, own_membership

LEAVE_S = 2.0
"""Time that a worker which is told to leave waits for the next commit: flowrt-run kills it after 5 s, and the
checkpoint is still to be made.
"""

TOLD = "it was told to leave"

_logger = logging.getLogger(__name__)
Result = TypeVar("Result")


def run_elastic(train: Callable[[ElasticJob], Result], checkpoint_dir: str | None = None) -> Result:
    """Call ``train(job)``, in a new graph, for each membership epoch in which this process is a worker;
    returns its last result when all workers have finished. A process that was never needed ends here.

    ``train`` makes a strategy, a graph and ``job.session()``, and runs steps until it is done. If the group
    changes meanwhile, an exception leaves it, and it is called again, with what was committed last. So it
    must not catch all exceptions, and what it leaves outside the graph (files, counters) it must be able to
    make twice. ``checkpoint_dir`` has the checkpoints of the job, if it has any.

    SIGTERM lets this worker leave: it ends its step, commits, writes a checkpoint of that if it is the first
    one, and exits with status 0; the others go on. If the job fails, the last commit becomes a checkpoint.

    Without ``flowrt-run``'s range of workers the cluster is that of the environment and never changes: a loss
    is raised, and a new start goes on from the newest checkpoint. Raises `UnavailableError` if the job has
    failed: there are too few workers, or the coordinator was lost; `FailedPreconditionError` for a second
    call, when the job has ended with the first; and all errors of ``train``.
    """
    had_part = bool(os.environ.get(EPOCH))
    with own_membership() as membership, _Leaving() as leaving:
        worker = _Worker(train, checkpoint_dir, membership, leaving)
        while (epoch := worker.next_epoch()) is not None:
            worker.take_part(epoch)
        if not worker.has_results and had_part:
            raise FailedPreconditionError(
                "run_elastic: expected one call in a process of an elastic job; got another when the job had "
                "ended with the first. Train in phases within one training function, by job.step"
            )
        if not worker.has_results:
            sys.exit(0)
        return worker.results[-1]


@final
class _Leaving:
    """State of SIGTERM: the first one is a wish to leave, which is granted at the next commit, after any run
    when `LEAVE_S` have passed, or while this process waits for an epoch; a second one exits."""

    def __init__(self) -> None:
        self.is_wanted = self._is_waiting = False
        self._end = 0.0

    def __enter__(self) -> _Leaving:
        self._is_main = threading.current_thread() is threading.main_thread()
        if self._is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._told)
        else:
            self._is_main = False
        return self

    def __exit__(self, *ending: object) -> None:
        if self._is_main:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self.is_wanted and ending[0] is None:  # it came after the last wait
            sys.exit(0)

    def _told(self, number: int, frame: Any) -> None:
        if self.is_wanted:
            sys.exit(128 + number)
        self.is_wanted, self._end = True, time.monotonic() + LEAVE_S
        if self._is_waiting:
            sys.exit(0)

    @property
    def is_urgent(self) -> bool:
        """Whether the next commit is not waited for any longer."""
        return self.is_wanted and time.monotonic() >= self._end

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it, there is nothing to finish first: a wish exits, also one that came before it."""
        self._is_waiting = True
        try:
            if self.is_wanted:
                sys.exit(0)
            yield
        finally:
            self._is_waiting = False


@final
class _Worker:
    """This process over its epochs. ``results`` has the last one of ``train``, if it has ended."""

    def __init__(
        self,
        train: Callable[[ElasticJob], Any],
        checkpoint_dir: str | None,
        membership: Membership,
        leaving: _Leaving,
    ) -> None:
        self._train, self._checkpoint_dir = train, checkpoint_dir
        self._membership, self._leaving = membership, leaving
        self._commit = Commit()
        """The newest state in this process's memory."""
        self.has_results = False
        self.results: list[Any] = []

    def next_epoch(self) -> Epoch | None:
        """Wait as `Membership.next_epoch` does. A worker that ends here, since the job has failed or since it
        was told to leave, makes a checkpoint of its last commit first: nobody else may have one.
        """
        try:
            with self._leaving.at_once():
                return self._membership.next_epoch()
        except UnavailableError:
            self._save_last()
            raise
        except SystemExit:  # SIGTERM
            self._save_last()
            self._membership.has_left()
            raise

    def take_part(self, epoch: Epoch) -> None:
        """Train in ``epoch`` until it is over or all is done, and report that."""
        admit_groups()
        why = self._over()  # since admit_groups, a change ends the groups again
        if why is None:
            why = self._attempt(epoch)
        if self._leaving.is_wanted:
            self._leave(epoch)  # before the groups: the others should hear why they end
        leave_groups()
        gc.collect()  # the graph and its session, which have the variables of the epoch
        if why is None:
            self._membership.is_done(self._commit.step)
        else:
            self._membership.is_ready(self._newest_step(), why)

    def _attempt(self, epoch: Epoch) -> str | None:
        """Call ``train``. Returns the reason if the epoch was over before that ended."""
        try:
            begin = self._begin(epoch)
            if begin.values:
                self._commit = begin
            self._membership.describe(epoch, os.environ)
            job = ElasticJob(epoch, begin, self._checkpoint_dir, self._keep, self._over)
            with Graph().as_default():
                self.results = [self._train(job)]
            self.has_results = True
        except EpochOverError as over:
            traceback.clear_frames(over.__traceback__)
            return str(over)
        except OpError as error:
            if not self._is_of_group(error):
                raise
            traceback.clear_frames(error.__traceback__)
            return error.message
        return None

    def _begin(self, epoch: Epoch) -> Commit:
        """The state with which all members begin: the first one's, or the step of the newest checkpoint."""
        own = self._commit
        if epoch.rank == 0 and not own.values and self._checkpoint_dir is not None:
            own = Commit(checkpointed_step(self._checkpoint_dir))
        return shared_commit(epoch, own)

    def _newest_step(self) -> int:
        """The step from which this worker could go on. A new checkpoint is progress, too."""
        if self._commit.values or self._checkpoint_dir is None:
            return self._commit.step
        return checkpointed_step(self._checkpoint_dir)

    def _keep(self, commit: Commit) -> None:
        self._commit = commit

    def _over(self, is_committed: bool = True) -> str | None:
        if not is_committed:
            return TOLD if self._leaving.is_urgent else None
        return TOLD if self._leaving.is_wanted else self._membership.change

    def _is_of_group(self, error: OpError) -> bool:
        """Whether ``error`` comes from a change of the group, not from the script."""
        if not (self._membership.may_change or self._leaving.is_wanted):
            return False
        return self._membership.is_broken or isinstance(
            error, UnavailableError | AbortedError | DeadlineExceededError
        )

    def _leave(self, epoch: Epoch) -> None:
        """Exit, as SIGTERM has asked."""
        if epoch.rank == 0:
            self._save_last()
        self._membership.has_left()
        sys.exit(0)

    def _save_last(self) -> None:
        """Make a checkpoint of the last commit. An error is logged: the process ends for another reason."""
        if self._checkpoint_dir is None or not self._commit.values:
            return
        try:
            save_commit(self._commit, self._checkpoint_dir)
        except (OpError, OSError) as error:
            _logger.error("elastic job: no checkpoint of commit %d: %s", self._commit.step, error)
