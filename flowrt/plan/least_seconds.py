"""`least_seconds`: what the step of a choice takes at least, however little its devices wait for messages.

The actions of all devices are played in the order of the schedule, with what their operations take in a
program for one device. A device does these, and more: it adds up gradients and transfers tensors. So a choice
of which this takes longer than the whole step of another one need not be lowered.

Of all transfers only the collectives of shared layers are counted, and of these only those of the forward
pass, a third as of the products: the next layer needs their results, so nothing hides them.
"""

from __future__ import annotations

from flowrt.graph.pipeline.replay import play
from flowrt.graph.pipeline.schedules import order
from flowrt.graph.pipeline.times import Times, in_ticks
from flowrt.plan.choice import Choice
from flowrt.plan.model import Model, Stage
from flowrt.plan.stage_search import Shared

TICK_S = 1e-7
"""Times are rounded down to these seconds, so that they are small integers."""


def least_seconds(choice: Choice, model: Model, shared: Shared, samples: int) -> float:
    """The seconds of computing ``samples`` under ``choice``, of which ``model`` has the stages, on the device
    that ends last, and those for which it waits for the other stages, or for those that share its layers.
    """
    share = shared.computing / (choice.dp * choice.micro_batches)
    updates = shared.variables / (choice.dp if choice.sharding else 1)
    layers = shared.seconds(samples // choice.dp) / (choice.micro_batches * choice.stages)
    times = [_times(stage, share, layers, choice.remat) for stage in model.stages]
    if choice.pp == 1:
        return choice.micro_batches * sum(times[0]) * TICK_S + model.stages[0].update.seconds(updates)
    schedule = order(choice.schedule, choice.pp, choice.micro_batches, choice.chunks)
    end = play(schedule, in_ticks(times, schedule.stages, schedule.chunks)).end
    return max(
        end[line[-1]] * TICK_S
        + sum(model.stages[stage].update.seconds(updates) for stage in schedule.stages_of(device))
        for device, line in enumerate(schedule.actions)
    )


def _times(stage: Stage, share: float, layers: float, remat: bool) -> Times:
    """The ticks of the passes of ``stage`` with a ``share`` of the batch, if collectives of its layers take
    ``layers`` seconds.
    """
    forward, weights = stage.forward.seconds(share) + layers / 3, stage.weights.seconds(share)
    inputs = stage.backward.seconds(share) - weights + (forward if remat else 0.0)
    return Times(*[int(seconds / TICK_S) for seconds in (forward, inputs, weights)])
