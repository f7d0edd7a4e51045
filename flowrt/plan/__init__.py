"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    played           the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    device_parts     what one device of each class would run, compiled without the devices
    emitted          from these parts to class programs
    costs            seconds of an operation, from a measured table or from rates
    measure          the table: each distinct operation of a step, run alone

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
