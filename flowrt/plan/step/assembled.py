"""`assembled`: the class program of a step with many turns, from a part with few of them.

A turn is a micro-batch, of a pipeline or of accumulated gradients. All but the first and last do the same,
so a step is lowered with three of them. The nodes of a part are cut into *pieces*, one for each action:

    prologue, F(0,0), F(0,1), B(0,0), ..., B(0,last) with all that follows it

The schedule of all turns says in which order pieces come; a middle turn has the piece of the second one, in
which names have its own number. The works are then made as those of any other program.

Of memory each piece has a profile: what it needs at most, and what it leaves. These are added up in the same
order, so the most bytes that live at a time are those of the whole step. The gaps of its arena are those of
few turns: with all of them it is at most 7 % larger (`flowrt.executor.buffers.memory_plan`).

What runs once as soon as a message is there, such as the gradient of a matrix that two stages share, comes
behind the action during which the message is made. In a step that is lowered whole it may come in the middle
of that action, if both begin at the same time.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple, final

from flowrt.errors import UnimplementedError
from flowrt.executor.buffers.buffer_assignment import Storage, nbytes_of
from flowrt.executor.buffers.memory_plan import GRAIN
from flowrt.graph.node import Node, Ref
from flowrt.graph.ops.collective.group_transfer import group_recv_op, group_wait_op, tagged_recv_op
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.pipeline.actions import Action, Schedule
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.shapes import is_static
from flowrt.plan.replay.played import ClassProgram, Message
from flowrt.plan.step.device_parts import DevicePart, variable_bytes
from flowrt.plan.step.emitted import THERE, Entries, NodeSeconds
from flowrt.plan.step.entries import Awaited, Begun, Computed, Entry, works_of

WAITS = (group_wait_op, group_recv_op, tagged_recv_op)


class _Place(NamedTuple):
    """The place of a piece in a step: that of an ``action``, None before all; ``is_ahead`` of the first
    one, as the part of a feed is cut out; or, if it ``is_sent_for``, as soon as a message is there.
    """

    action: Action | None = None
    is_ahead: bool = False
    is_sent_for: bool = False


class _Run(NamedTuple):
    """The ``positions`` of nodes in order that are at one ``place``."""

    place: _Place
    positions: list[int]


def few_turns(count: int) -> tuple[int, ...] | None:
    """The turns that are lowered of ``count``; None for all.

    >>> few_turns(8)
    (0, 1, 7)
    """
    return (0, 1, count - 1) if count > 3 else None


class Profile(NamedTuple):
    """Bytes during a piece, more than before it: at ``most``, and ``left`` at its end."""

    most: int = 0
    left: int = 0


class Piece(NamedTuple):
    """The part of a program that is for one action."""

    entries: Sequence[Entry]
    buffers: Profile
    received: Profile


def assembled(
    parts: Sequence[DevicePart],
    seconds: NodeSeconds,
    trainable: frozenset[str],
    schedule: Schedule,
    turns: Sequence[int],
) -> tuple[ClassProgram, ...]:
    """The programs of the classes of ``parts``, which have the three ``turns`` of `few_turns`, with all turns
    of ``schedule``. ``trainable``: the names of variables that are weights.

    Raises `UnimplementedError` for a part in which the nodes of an action are not all together, several turns
    are computed together, what is computed once comes in the middle of the turns, messages have the names of
    no turn, or a collective ends before it begins in the order of all turns.
    """
    lines = [_Line(part, seconds, turns) for part in parts]
    senders = {tag: action for line in lines for tag, action in line.senders()}
    return tuple(line.program(schedule, senders, trainable) for line in lines)


@final
class _Line:
    """The pieces of ``part``, which are put in the order of a schedule."""

    def __init__(self, part: DevicePart, seconds: NodeSeconds, turns: Sequence[int]) -> None:
        self._part, (self._first, self._second, self._last) = part, turns
        self._pieces: dict[_Place, Piece] = {}
        self._sent_for: list[Piece] = []
        order = part.partition.schedule.order
        maker, changes = Entries(part, seconds), list(_changes(part))
        for place, positions in _runs(part, self._second):
            entries = maker.of([order[i] for i in positions])
            profiles = (_profile([n for i in positions for n in changes[i][k]]) for k in range(2))
            piece = Piece(entries, *profiles)
            if place.is_sent_for:
                self._sent_for.append(piece)
            elif place in self._pieces:
                what = f"expected the nodes of {place.action} together; they are not"
                raise UnimplementedError(f"plan: {what}")
            else:
                self._pieces[place] = piece
        ahead = {place.action.micro_batch for place in self._pieces if place.is_ahead and place.action}
        if ahead and ahead != set(turns):
            raise UnimplementedError("plan: expected turns that do nothing together; their parts are fused")
        self._middle = {place: _Middle(part, piece, self._second) for place, piece in self._pieces.items()
                        if place.action is not None and place.action.micro_batch == self._second}  # fmt: skip

    def senders(self) -> Iterator[tuple[str, Action]]:
        """The messages that are sent from here, each with the action that it is of."""
        for place, piece in self._pieces.items():
            for tag in _tags(piece, is_sent=True):
                if place.action is not None:
                    yield tag, place.action

    def program(
        self, schedule: Schedule, senders: Mapping[str, Action], trainable: frozenset[str]
    ) -> ClassProgram:
        entries: list[Entry] = []
        pieces: list[Piece] = []
        for piece, found in self._in_order(schedule, senders):
            pieces.append(piece)
            entries += found
        memory = self._part.partition.buffers.memory
        held = {
            **variable_bytes(self._part, trainable),
            "activations": _most(piece.buffers for piece in pieces) + memory.nbytes - memory.lower_bound,
            "received": _most(piece.received for piece in pieces),
        }
        try:
            works = works_of(entries)
        except KeyError as error:
            what = f"expected {error} to begin before something waits for it; it does not"
            raise UnimplementedError(f"plan: {what}") from error
        return ClassProgram(self._part.position, works, sum(held.values()), held)

    def _in_order(
        self, schedule: Schedule, senders: Mapping[str, Action]
    ) -> Iterator[tuple[Piece, Sequence[Entry]]]:
        """All pieces of a step, with the entries that each has there."""
        line = schedule.actions[self._part.position]
        yield from self._at(_Place())
        for action in line:
            yield from self._at(_Place(action, is_ahead=True))
        start = _starts(schedule) if self._sent_for else {}
        later = deque((self._due(piece, senders, start), piece) for piece in self._sent_for)
        before: Action | None = None
        for action in line:
            while later and later[0][0] < start[action]:
                piece = later.popleft()[1]
                yield piece, _behind(before, piece.entries)
            yield from self._at(_Place(action))
            before = action
        yield from ((piece, _behind(before, piece.entries)) for _, piece in later)

    def _at(self, place: _Place) -> Iterator[tuple[Piece, Sequence[Entry]]]:
        """The piece at ``place``, if there is one."""
        action = place.action
        if action is None or action.micro_batch in (self._first, self._last):
            if (piece := self._pieces.get(place)) is not None:
                yield piece, piece.entries
        else:
            like = place._replace(action=action._replace(micro_batch=self._second))
            if (middle := self._middle.get(like)) is not None:
                yield middle.piece, middle.of(action.micro_batch)

    def _due(self, piece: Piece, senders: Mapping[str, Action], start: Mapping[Action, Fraction]) -> Fraction:
        """The time at which the messages for ``piece`` are made: -1 before all actions."""
        made = [senders[tag] for tag in _tags(piece, is_sent=False) if tag in senders]
        return max([start[action] for action in made], default=Fraction(-1))


def _behind(action: Action | None, entries: Sequence[Entry]) -> list[Entry]:
    """``entries`` that run once, behind ``action``."""
    return [
        entry._replace(action=action) if isinstance(entry, Computed) and entry.action else entry
        for entry in entries
    ]


@lru_cache(8)
def _starts(schedule: Schedule) -> Mapping[Action, Fraction]:
    return replay(schedule).start


def _tags(piece: Piece, is_sent: bool) -> list[str]:
    """The tags of the messages that ``piece`` sends, or receives."""
    meets = [entry.meets for entry in piece.entries if isinstance(entry, Begun)]
    return [each.tag for each in meets if isinstance(each, Message) and each.is_sent == is_sent]


def _most(profiles: Iterable[Profile]) -> int:
    """The most bytes at a time, of pieces in their order."""
    live = most = 0
    for each in profiles:
        most, live = max(most, live + each.most), live + each.left
    return most


# --- pieces


def _runs(part: DevicePart, middle: int) -> list[_Run]:
    """The nodes of ``part`` by places. What runs once is with those before it, but with those after it if
    the ones before are of the turn ``middle``, which stands for many. What waits is with those after it,
    unless it waits for a message that is not of an action.
    """
    storage, order = part.partition.buffers.storage, part.partition.schedule.order
    runs, waiting, once = [_Run(_Place(), [])], list[int](), list[int]()
    for i, node in enumerate(order):
        if node.op in WAITS:
            waiting.append(i)
            continue
        action = part.actions.get(node.name)
        is_in_middle = runs[-1].place.action is not None and runs[-1].place.action.micro_batch == middle
        if action is None and any(order[k].op is tagged_recv_op for k in waiting):
            runs.append(_Run(_Place(is_sent_for=True), []))
        elif action is None and is_in_middle and storage.get(node.name) is Storage.BUFFER:
            once.append(i)
            continue
        elif action not in (None, runs[-1].place.action):
            if node.op is no_op or storage.get(node.name) in THERE:  # a view, which takes no time
                (waiting if waiting else runs[-1].positions).append(i)
                continue
            if once and action.micro_batch == middle:
                raise _among_turns(order[once[0]])
            runs.append(_Run(_Place(action), once))
            once = []
        runs[-1].positions.extend([*waiting, i])
        waiting = []
    if once:
        raise _among_turns(order[once[0]])
    runs[-1].positions.extend(waiting)
    return _without_end(_with_ahead(_joined(runs)))


def _among_turns(node: Node) -> UnimplementedError:
    return UnimplementedError(
        f"plan: expected {node.name} ahead of the turns or behind them; it is among them"
    )


def _joined(runs: Sequence[_Run]) -> list[_Run]:
    """``runs`` with those in the midst of an action as a part of it."""
    found: list[_Run] = []
    for run in runs:
        behind = len(found)
        while behind and found[behind - 1].place.is_sent_for:
            behind -= 1
        if behind and not run.place.is_sent_for and found[behind - 1].place == run.place:
            inside = [i for each in (*found[behind:], run) for i in each.positions]
            found[behind - 1].positions.extend(inside)
            del found[behind:]
        else:
            found.append(run)
    return found


def _with_ahead(runs: Sequence[_Run]) -> list[_Run]:
    """``runs`` with those ahead of the first action: that which began first in the first turn."""
    actions = [run.place.action for run in runs]
    first = min(filter(None, actions), key=lambda action: action.micro_batch, default=None)
    begin = len(actions) - 1 - actions[::-1].index(first)  # the only one of a device that has no action
    return [
        run._replace(place=run.place._replace(is_ahead=True)) if run.place.action and i < begin else run
        for i, run in enumerate(runs)
    ]


def _without_end(runs: Sequence[_Run]) -> list[_Run]:
    """``runs`` with those behind the last action, which are in order anyway, as a part of it."""
    *kept, last = runs
    end: list[int] = []
    while last.place.is_sent_for and kept:
        end = [*last.positions, *end]
        last = kept.pop()
    return [*kept, last._replace(positions=[*last.positions, *end])]


def _profile(changes: Iterable[int]) -> Profile:
    live = most = 0
    for change in changes:
        live += change
        most = max(most, live)
    return Profile(most, live)


def _changes(part: DevicePart) -> Iterator[tuple[list[int], list[int]]]:
    """The changes of live bytes at each node: of buffers in the arena, and of new memory."""
    lowered = part.partition
    subgraph, schedule, lifetimes, places = (
        lowered.subgraph,
        lowered.schedule,
        lowered.buffers.lifetimes,
        lowered.buffers,
    )
    memory = places.memory
    buffers: dict[str, list[Ref]] = {}
    for ref in memory.sizes:
        buffers.setdefault(ref[0], []).append(ref)
    live: dict[int, tuple[Ref, int]] = {}  # by offset
    offsets: dict[Ref, int] = {}
    new: dict[Ref, int] = {}
    fed = [ref for name in subgraph.feeds for ref in buffers.pop(name, ())]

    def come(ref: Ref) -> list[int]:
        size, at = -(-memory.sizes[ref] // GRAIN) * GRAIN, memory.offsets[ref]
        if ref[1] < 0:
            return [size, -size]
        before = live.get(at)
        if before is not None:  # it is written over
            del offsets[before[0]]
        live[at], offsets[ref] = (ref, size), at
        return [size] if before is None else []

    for position, node in enumerate(schedule.order):
        changed = [each for ref in (*(fed if position == 0 else ()), *buffers.get(node.name, ()))
                   for each in come(ref)]  # fmt: skip
        for root in lifetimes.ending_at(position):
            at = offsets.pop(root, None)
            if at is not None:
                changed.append(-live.pop(at)[1])
        received = []
        for index, spec in enumerate(node.outputs):
            ref = (node.name, index)
            is_own = lifetimes.root(ref) == ref and places.storage_of(ref) is Storage.REGISTER
            if is_own and is_static(spec.shape) and node.name not in subgraph.feeds:
                new[ref] = nbytes_of(spec)
                received.append(new[ref])
        received += [-new.pop(ref, 0) for ref in lifetimes.read_last_at(position)]
        yield changed, received


# --- middle turns


@final
class _Middle:
    """The piece of the ``turn`` in the middle, for all turns."""

    def __init__(self, part: DevicePart, piece: Piece, turn: int) -> None:
        self.piece = piece
        axes = "|".join(axis.name for axis in part.mesh.axes if axis.is_time)
        self._pattern = re.compile(rf"(@\w*?(?:{axes})){turn}(?!\d)")
        self._texts = {text: self._pattern.sub("\\1\0", text)
                       for entry in piece.entries for text in _texts(entry)}  # fmt: skip
        for entry in piece.entries:
            if not isinstance(entry, Computed) and self._texts[entry.key] == entry.key:
                raise UnimplementedError(f"plan: expected the name of a turn; got {entry.key!r}")

    def of(self, turn: int) -> list[Entry]:
        """The entries for ``turn``."""
        names = {text: template.replace("\0", str(turn)) for text, template in self._texts.items()}
        return [_renamed(entry, names, turn) for entry in self.piece.entries]


def _texts(entry: Entry) -> list[str]:
    if isinstance(entry, Computed):
        return [entry.name]
    if isinstance(entry, Awaited):
        return [entry.key]
    tags = [entry.meets.tag] if isinstance(entry.meets, Message) else []
    return [entry.key, entry.name, *tags]


def _renamed(entry: Entry, names: Mapping[str, str], turn: int) -> Entry:
    if isinstance(entry, Computed):
        action = None if entry.action is None else entry.action._replace(micro_batch=turn)
        return Computed(names[entry.name], entry.seconds, action)
    if isinstance(entry, Awaited):
        return Awaited(names[entry.key])
    meets = entry.meets
    if isinstance(meets, Message):
        meets = meets._replace(tag=names[meets.tag])
    return entry._replace(key=names[entry.key], name=names[entry.name], meets=meets)
