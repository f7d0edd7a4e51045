"""The algorithms: pure functions from a `Group` to a `Schedule`, in one table by kind of collective and name.

The kind determines the chunks of a rank before and after (`flowrt.graph.collectives.ends`); the algorithm,
how they get there. Sources: ring, Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms" (2009);
recursive halving and doubling, Rabenseifner, "Optimization of collective reduction operations" (2004), with
Thakur's fold for numbers of ranks that are not powers of two; binomial trees and pairwise exchange, Thakur,
Rabenseifner and Gropp (2005).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from flowrt.graph.collectives.schedule import Schedule, Step, Transfer, among, at_once, in_sequence


class Group(NamedTuple):
    """Input of an algorithm: the task of each rank (any numbers, equal within a task), and the root rank, for
    collectives with a root.
    """

    tasks: tuple[int, ...]
    root: int = 0

    @property
    def size(self) -> int:
        return len(self.tasks)


Algorithm: TypeAlias = Callable[[Group], Schedule]


# --- ring


def _ring(p: int, lead: int, reduces: bool) -> Schedule:
    """p - 1 steps, in which every rank passes one chunk to the next: rank r begins with chunk r + lead."""
    chunk = [[(rank + lead - step) % p for rank in range(p)] for step in range(p - 1)]
    steps = tuple(
        tuple(Transfer(r, (r + 1) % p, row[r], row[r] + 1, reduces) for r in range(p)) for row in chunk
    )
    return Schedule(p, p, steps)


def ring_reduce_scatter(group: Group) -> Schedule:
    """Rank r ends with chunk r of the reduction."""
    return _ring(group.size, -1, True)


def ring_all_gather(group: Group) -> Schedule:
    """Rank r begins with chunk r."""
    return _ring(group.size, 0, False)


def ring_all_reduce(group: Group) -> Schedule:
    """2 (p - 1) steps; every rank sends 2 (p - 1) / p of the payload, which is optimal."""
    return in_sequence(ring_reduce_scatter(group), ring_all_gather(group))


# --- binomial trees


class _Edge(NamedTuple):
    """Edge to ``child``, which leads the ranks [first, end)."""

    parent: int
    child: int
    first: int
    end: int


def _tree(p: int, root: int) -> list[list[_Edge]]:
    """Ranges of ranks, halved until each has one: the edges of each level, from the root down. The half
    without the leader of its range is led by its first rank, so there are ceil(log2 p) levels.
    """
    levels: list[list[_Edge]] = []
    ranges = [(0, p, root)]
    while any(end - first > 1 for first, end, _ in ranges):
        level, halves = [], []
        for first, end, leader in ranges:
            middle = (first + end + 1) // 2
            if middle == end:
                halves.append((first, end, leader))
                continue
            other = (middle, end) if leader < middle else (first, middle)
            own = (first, middle) if leader < middle else (middle, end)
            level.append(_Edge(leader, other[0], *other))
            halves += [(*own, leader), (*other, other[0])]
        levels.append(level)
        ranges = halves
    return levels


def _down(group: Group, chunks: int) -> Schedule:
    """Steps from the root down the tree, with one chunk, or one per rank: a child then gets its ranks'."""
    steps = [
        tuple(
            Transfer(e.parent, e.child, *((0, 1) if chunks == 1 else (e.first, e.end)), False) for e in level
        )
        for level in _tree(group.size, group.root)
    ]
    return Schedule(group.size, chunks, tuple(steps))


def _up(group: Group, chunks: int, reduces: bool) -> Schedule:
    """`_down` in reverse."""
    steps = [
        tuple(t._replace(source=t.target, target=t.source, reduces=reduces) for t in step)
        for step in reversed(_down(group, chunks).steps)
    ]
    return Schedule(group.size, chunks, tuple(steps))


def tree_broadcast(group: Group) -> Schedule:
    return _down(group, 1)


def tree_reduce(group: Group) -> Schedule:
    return _up(group, 1, True)


def tree_scatter(group: Group) -> Schedule:
    """A child gets the chunks of all ranks below it: the root sends p - 1 chunks, in log2 p messages."""
    return _down(group, group.size)


def tree_gather(group: Group) -> Schedule:
    return _up(group, group.size, False)


def tree_all_reduce(group: Group) -> Schedule:
    """Reduction to rank 0, then broadcast from it."""
    at_first = group._replace(root=0)
    return in_sequence(tree_reduce(at_first), tree_broadcast(at_first))


# --- recursive halving and doubling


class _Fold(NamedTuple):
    """A power of two of ranks, and the ``extra`` ones above it: among the first 2 * extra ranks, the odd ones
    delegate their part to the even ones.
    """

    size: int
    extra: int

    def rank(self, v: int) -> int:
        """The rank with number ``v`` in the power of two."""
        return 2 * v if v < self.extra else v + self.extra

    def into(self, chunks: int, reduces: bool) -> Step:
        return tuple(Transfer(2 * i + 1, 2 * i, 0, chunks, reduces) for i in range(self.extra))

    def out_of(self, chunks: int) -> Step:
        return tuple(Transfer(2 * i, 2 * i + 1, 0, chunks, False) for i in range(self.extra))


def _fold(p: int) -> _Fold:
    size = 1 << (p.bit_length() - 1)
    return _Fold(size, p - size)


def _halving(fold: _Fold) -> list[Step]:
    """Recursive halving: partners at half the distance each time exchange the halves that the other keeps,
    until number v holds chunk v.
    """
    steps, distance = [], fold.size // 2
    while distance:
        firsts = [(v ^ distance) & -distance for v in range(fold.size)]  # where the partner's half begins
        steps.append(tuple(_exchange(fold, v, distance, first, True) for v, first in enumerate(firsts)))
        distance //= 2
    return steps


def _doubling(fold: _Fold) -> list[Step]:
    """The inverse, recursive doubling: number v begins with chunk v and ends with all."""
    steps, distance = [], 1
    while distance < fold.size:
        steps.append(tuple(_exchange(fold, v, distance, v & -distance, False) for v in range(fold.size)))
        distance *= 2
    return steps


def _exchange(fold: _Fold, v: int, distance: int, first: int, reduces: bool) -> Transfer:
    return Transfer(fold.rank(v), fold.rank(v ^ distance), first, first + distance, reduces)


def halving_doubling_all_reduce(group: Group) -> Schedule:
    """2 log2 p steps, with the ring's bytes; two more steps if p is not a power of two."""
    fold = _fold(group.size)
    steps = [fold.into(fold.size, True), *_halving(fold), *_doubling(fold), fold.out_of(fold.size)]
    return Schedule(group.size, fold.size, tuple(filter(None, steps)))


def halving_reduce_scatter(group: Group) -> Schedule:
    """Recursive halving; only for powers of two."""
    fold = _fold(group.size)
    return Schedule(group.size, fold.size, tuple(_halving(fold)))


def hypercube_all_gather(group: Group) -> Schedule:
    """log2 p steps, in which the chunks held by a rank double; two more steps if p is not a power of two."""
    p, fold = group.size, _fold(group.size)
    starts = [fold.rank(v) for v in range(fold.size)] + [p]
    into = tuple(Transfer(2 * i + 1, 2 * i, 2 * i + 1, 2 * i + 2, False) for i in range(fold.extra))
    doubling = [
        tuple(t._replace(first=starts[t.first], end=starts[t.end]) for t in step) for step in _doubling(fold)
    ]
    steps = [into, *doubling, fold.out_of(p)]
    return Schedule(p, p, tuple(step for step in steps if step))


# --- between and inside of tasks


def hierarchical_all_reduce(group: Group) -> Schedule:
    """A tree inside each task to one rank, a ring between those ranks, and trees back: the traffic between
    tasks is 2 (m - 1) / m of the payload per task, regardless of its number of ranks.
    """
    p, tasks = group.size, _members(group)
    between = ring_all_reduce(Group(tuple(range(len(tasks)))))
    inside = [Group((0,) * len(members)) for members in tasks]
    chunks = between.chunks

    def in_tasks(algorithm: Algorithm) -> Schedule:
        found = zip(inside, tasks, strict=True)
        return at_once(among(algorithm(part), members, p, chunks) for part, members in found)

    leaders = [members[0] for members in tasks]
    return in_sequence(in_tasks(tree_reduce), among(between, leaders, p, chunks), in_tasks(tree_broadcast))


def hierarchical_broadcast(group: Group) -> Schedule:
    """A tree between the tasks, then one in each task."""
    return in_sequence(*_levels(group, tree_broadcast))


def hierarchical_reduce(group: Group) -> Schedule:
    return in_sequence(*reversed(_levels(group, tree_reduce)))


def _levels(group: Group, algorithm: Algorithm) -> tuple[Schedule, Schedule]:
    """``algorithm`` between one rank of each task (the root, for its task), and inside each task."""
    p, tasks = group.size, _members(group)
    leaders = [group.root if group.root in members else members[0] for members in tasks]
    between = algorithm(Group(tuple(range(len(tasks))), leaders.index(group.root)))
    inside = at_once(
        among(algorithm(Group((0,) * len(members), members.index(leader))), members, p, 1)
        for members, leader in zip(tasks, leaders, strict=True)
    )
    return among(between, leaders, p, 1), inside


def _members(group: Group) -> list[list[int]]:
    """The ranks of each task, tasks in the order of their first ranks."""
    found: dict[int, list[int]] = {}
    for rank, task in enumerate(group.tasks):
        found.setdefault(task, []).append(rank)
    return list(found.values())


# --- everybody to everybody


def pairwise_all_to_all(group: Group) -> Schedule:
    """p - 1 steps: in step s rank r sends to rank r + s. Chunk i * p + j goes from rank i to rank j."""
    p = group.size
    pairs = [[(r, (r + s) % p) for r in range(p)] for s in range(1, p)]
    steps = tuple(tuple(Transfer(r, t, r * p + t, r * p + t + 1, False) for r, t in row) for row in pairs)
    return Schedule(p, p * p, steps)


ALGORITHMS: Mapping[str, Mapping[str, Algorithm]] = {
    "AllReduce": {
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "halving_doubling": halving_doubling_all_reduce,
        "hierarchical": hierarchical_all_reduce,
    },
    "Reduce": {"tree": tree_reduce, "hierarchical": hierarchical_reduce},
    "Broadcast": {"tree": tree_broadcast, "hierarchical": hierarchical_broadcast},
    "AllGather": {"ring": ring_all_gather, "hypercube": hypercube_all_gather},
    "Gather": {"tree": tree_gather},
    "Scatter": {"tree": tree_scatter},
    "ReduceScatter": {"ring": ring_reduce_scatter, "halving_doubling": halving_reduce_scatter},
    "AllToAll": {"pairwise": pairwise_all_to_all},
    "Barrier": {"tree": tree_all_reduce, "hierarchical": hierarchical_all_reduce},
}
"""Algorithms by kind of collective and name."""


def algorithms_for(kind: str, group: Group) -> Mapping[str, Algorithm]:
    """The algorithms available for ``group``."""
    found = ALGORITHMS[kind]
    if kind == "ReduceScatter" and group.size & (group.size - 1):
        return {name: algorithm for name, algorithm in found.items() if name != "halving_doubling"}
    return found
