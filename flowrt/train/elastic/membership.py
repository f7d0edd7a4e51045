"""Sources of a worker's membership epochs: the coordinator of an elastic job, or a cluster's description."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import MutableMapping
from typing import final

from flowrt.base.closing import Closing
from flowrt.distribute.cluster.cluster_spec import parse_address
from flowrt.distribute.collectives.interruption import interrupt_groups
from flowrt.distribute.elastic.coordinator_client import connect_to_coordinator, read_place
from flowrt.distribute.elastic.elastic_messages import Epoch
from flowrt.distribute.resolvers import ResolvedCluster, resolve
from flowrt.distribute.resolvers.flowrt_variables import CLUSTER, EPOCH, TASK
from flowrt.distribute.resolvers.source import WORKER, workers
from flowrt.distribute.strategies.kinds.multi_worker import workers_of
from flowrt.errors import UnavailableError


class Membership(Closing):
    """A worker's part in a job: the epochs in which it is a member."""

    @abstractmethod
    def next_epoch(self) -> Epoch | None:
        """Wait for the next epoch; None if the job has ended. Raises `UnavailableError` if there is none."""

    @property
    @abstractmethod
    def change(self) -> str | None:
        """The reason if the epoch will be over at the next commit; None if it goes on."""

    @property
    @abstractmethod
    def is_broken(self) -> bool:
        """Whether the epoch is over at once."""

    @property
    @abstractmethod
    def may_change(self) -> bool:
        """Whether a next epoch follows when this one is over."""

    @abstractmethod
    def is_ready(self, commit: int, reason: str) -> None:
        """The epoch has ended here."""

    @abstractmethod
    def is_done(self, commit: int) -> None:
        """Report that nothing is left to do here."""

    @abstractmethod
    def has_left(self) -> None:
        """This worker leaves."""

    @abstractmethod
    def describe(self, epoch: Epoch, environ: MutableMapping[str, str]) -> None:
        """Set the variables of ``environ`` that say which cluster ``epoch`` has, and which task this is:
        flowrt's and torchrun's. A strategy reads them.
        """


def own_membership() -> Membership:
    """This process's, from its environment. Raises `UnavailableError` without the coordinator."""
    place = read_place(os.environ)
    return FixedMembership(resolve(os.environ)) if place is None else CoordinatedMembership()


@final
class CoordinatedMembership(Membership):
    """Membership of a worker of ``flowrt-run`` with a range of workers."""

    def __init__(self) -> None:
        place = read_place(os.environ)
        assert place is not None
        self._client = connect_to_coordinator(place, _interrupt)

    def next_epoch(self) -> Epoch | None:
        return self._client.next_epoch()

    @property
    def change(self) -> str | None:
        return self._client.change

    @property
    def is_broken(self) -> bool:
        return self._client.is_broken

    @property
    def may_change(self) -> bool:
        return True

    def is_ready(self, commit: int, reason: str) -> None:
        self._client.is_ready(commit, reason)

    def is_done(self, commit: int) -> None:
        self._client.is_done(commit)

    def has_left(self) -> None:
        self._client.has_left()

    def describe(self, epoch: Epoch, environ: MutableMapping[str, str]) -> None:
        places = [parse_address(address) for address in epoch.addresses]
        spec = workers((place.host, place.port) for place in places)
        environ.update(
            {
                CLUSTER: spec.to_json(),
                TASK: f"{WORKER}:{epoch.rank}",
                EPOCH: str(epoch.number),
                "RANK": str(epoch.rank),
                "WORLD_SIZE": str(len(places)),
                "MASTER_ADDR": places[0].host,
            }
        )

    def close(self) -> None:
        self._client.close()


def _interrupt(why: str) -> None:
    interrupt_groups(UnavailableError(f"the membership epoch is over: {why}"))


@final
class FixedMembership(Membership):
    """Membership in a cluster which never changes: a loss ends the job, which its launcher starts
    again (torchrun, ``flowrt-run --max-restarts``, a requeued job), maybe with another size.
    """

    def __init__(self, cluster: ResolvedCluster) -> None:
        addresses, rank = workers_of(cluster, "run_elastic")
        names = [f"worker {number}" for number in range(len(addresses))]
        self._epoch: Epoch | None = Epoch(0, rank, names, addresses, -1)

    def next_epoch(self) -> Epoch | None:
        epoch, self._epoch = self._epoch, None
        return epoch

    @property
    def change(self) -> str | None:
        return None

    @property
    def is_broken(self) -> bool:
        return False

    @property
    def may_change(self) -> bool:
        return False

    def is_ready(self, commit: int, reason: str) -> None:
        """Nobody waits for it."""

    def is_done(self, commit: int) -> None:
        """Nobody waits for it."""

    def has_left(self) -> None:
        """Nobody waits for it."""

    def describe(self, epoch: Epoch, environ: MutableMapping[str, str]) -> None:
        """The variables say so already."""

    def close(self) -> None:
        """Nothing is open."""
