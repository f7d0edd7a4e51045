"""Schedules of pipelines: which pass of which micro-batch each device runs, in order. Pure data, no graph.

    actions          `Action`, `Schedule`: a line of actions per device; what an action waits for
    schedules        `order`: the published schedules, one table and one generator
    times            `Times`: how long passes take, as exact integers
    replay           `replay`: when each action runs; bubbles, activations held
    validate         `validate`: complete, on the right devices, without a cycle
    greedy, search   list scheduling; `best_schedule` for given times and memory
    mesh_schedule    `schedule_on`: the schedule of a mesh with stages
    schedule_file    `parse_schedule`, `format_schedule`: one line of text per device

    order(name, ...) or parse_schedule(text) -> Schedule -> replay -> Replay

A model is cut into *stages*, a batch into *micro-batches*; both are counted from 0. A device has one stage,
or several: its *chunks*. An *action* is one pass of a micro-batch through a stage:

    F   the forward pass
    B   the backward pass, or its two halves:
    I     gradients of the stage's inputs: the stage before waits for them
    W     gradients of the stage's weights: nothing waits for them, so they can fill bubbles

A *bubble* is time in which a device waits. A schedule says only what runs after what on one device; what
comes from other devices is waited for.
"""
