"""`least_seconds`: what the step of a choice takes at least, however little its devices wait for messages.

The actions of all devices are played in the order of the schedule, with what their operations take in a
program for one device. A device does these, and more: it adds up gradients and transfers tensors. So a choice
of which this takes longer than the whole step of another one need not be lowered.

Of all transfers those are counted that nothing hides:

    collectives of shared layers    each is begun where the next operation in order needs its result; a third
                                    are of the forward pass, as of the products
    gathers of updated variables    updates come behind all passes, and are gathered for the next step

Of variables with sparse or narrower gradients nothing is counted, and of the others that a device has as
small a part as there can be.
"""

from __future__ import annotations

from flowrt.graph.pipeline.replay import play
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times, in_ticks
from flowrt.plan.choice import Choice
from flowrt.plan.model import Model, Stage
from flowrt.plan.stage_search import Machine, Shared

TICK_S = 1e-7
"""Times are rounded down to these seconds, so that they are small integers."""


def least_seconds(choice: Choice, model: Model, shared: Shared, machine: Machine, samples: int) -> float:
    """The seconds of computing ``samples`` under ``choice``, of which ``model`` has the stages, on the device
    that ends last, and those for which it waits.
    """
    share = shared.computing / (choice.dp * choice.micro_batches)
    updates = shared.variables / (choice.dp if choice.sharding else 1)
    layers = shared.seconds(samples // choice.dp) / (choice.micro_batches * choice.stages)
    times = [_times(stage, share, layers, choice.remat) for stage in model.stages]
    if choice.pp == 1:
        (stage,) = model.stages
        passes = choice.micro_batches * sum(times[0]) * TICK_S + stage.update.seconds(updates)
        if choice.sharding not in (1, 2):
            return passes
        return passes + machine.collective("all_gather", choice.dp, choice.tp, model.dense / choice.tp)
    schedule = order(choice.schedule, choice.pp, choice.micro_batches, choice.chunks)
    end = play(schedule, in_ticks(times, schedule.stages, schedule.chunks)).end
    return max(
        end[line[-1]] * TICK_S
        + sum(model.stages[stage].update.seconds(updates) for stage in schedule.stages_of(device))
        for device, line in enumerate(schedule.actions)
    )


def _times(stage: Stage, share: float, layers: float, remat: bool) -> Times:
    """The ticks of the passes of ``stage`` with a ``share`` of the batch, if collectives of its layers take
    ``layers`` seconds. Those of the backward pass are of the derivatives that an earlier stage waits for.
    """
    forward, weights = stage.forward.seconds(share) + layers / 3, stage.weights.seconds(share)
    inputs = stage.backward.seconds(share) - weights + (forward if remat else 0.0)
    if stage.weights == stage.backward:  # no stage waits
        weights += layers * 2 / 3
    else:
        inputs += layers * 2 / 3
    return Times(*[int(seconds / TICK_S) for seconds in (forward, inputs, weights)])
