"""`Action` and `Schedule`: what each device of a pipeline runs, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError

Kind: TypeAlias = Literal["F", "B", "I", "W"]
"""Forward pass; whole backward pass; its two parts: gradients of the stage's inputs, of its weights."""


class Action(NamedTuple):
    """One pass of one micro-batch through one stage; both are counted from 0.

    >>> str(Action("F", 2, 0))
    'F(2,0)'
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}({self.stage},{self.micro_batch})"


def dependencies(action: Action, stages: int) -> tuple[Action, ...]:
    """The actions that ``action`` waits for, in a pipeline of ``stages``: at most two.

    A forward pass waits for that of the stage before. A backward pass, or its part I, waits for the stage's
    own forward pass and for its like in the stage after; W waits for I.

    >>> [str(each) for each in dependencies(Action("B", 1, 3), stages=4)]
    ['F(1,3)', 'B(2,3)']
    """
    kind, stage, micro_batch = action
    if kind == "F":
        return (Action("F", stage - 1, micro_batch),) if stage else ()
    if kind == "W":
        return (Action("I", stage, micro_batch),)
    forward = Action("F", stage, micro_batch)
    return (forward, Action(kind, stage + 1, micro_batch)) if stage + 1 < stages else (forward,)


@final
@dataclass(frozen=True)
class Schedule:
    """A pipeline's order of actions: ``actions[i]`` is what device i runs, from first to last.

    Each device has ``chunks`` stages. Stage s is on device s mod p, for p devices; if ``vee``, every second
    round of stages goes back: stages 0 to 5 on 3 devices are on devices 0 1 2 2 1 0. If ``split``, the
    backward pass is I and W, otherwise B. Whether the actions are complete and can run, `validate` checks.

    Raises `InvalidArgumentError` if there is no device, micro-batch or chunk.
    """

    name: str
    micro_batches: int
    chunks: int
    vee: bool
    split: bool
    actions: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        check_sizes(self.name, self.devices, self.micro_batches, self.chunks)

    @property
    def devices(self) -> int:
        return len(self.actions)

    @property
    def stages(self) -> int:
        return self.chunks * self.devices

    def device_of(self, stage: int) -> int:
        return device_of(stage, self.devices, self.vee)

    def stages_of(self, device: int) -> tuple[int, ...]:
        """The stages of ``device``, in ascending order."""
        return stages_of(device, self.devices, self.chunks, self.vee)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of action that each stage runs once per micro-batch."""
        return ("F", "I", "W") if self.split else ("F", "B")


def check_sizes(name: str, devices: int, micro_batches: int, chunks: int) -> None:
    """Raises `InvalidArgumentError` for sizes of the schedule ``name`` that are not integers >= 1."""
    sizes = {"devices": devices, "micro_batches": micro_batches, "chunks": chunks}
    for what, size in sizes.items():
        if type(size) is not int or size < 1:
            raise InvalidArgumentError(f"schedule {name!r}: {what}: expected an integer >= 1; got {size!r}")


def device_of(stage: int, devices: int, vee: bool) -> int:
    """The device of ``stage``: round-robin, with every second round reversed if ``vee``."""
    chunk, place = divmod(stage, devices)
    return devices - 1 - place if vee and chunk % 2 else place


def stages_of(device: int, devices: int, chunks: int, vee: bool) -> tuple[int, ...]:
    """The inverse of `device_of`: the stages of ``device``, in ascending order."""
    back = devices - 1 - device
    return tuple(chunk * devices + (back if vee and chunk % 2 else device) for chunk in range(chunks))
