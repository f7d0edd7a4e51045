"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    played           the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    schedule_programs  a pipeline's schedule as class programs
    program_checks   mistakes in class programs, found before they are played
    replay           class programs played on vectors, one number per device
    step_times       `Played`: seconds by cause, and the rate of training as a product
    events           a virtual clock, and class programs played on it device by device
    network          bytes on their way between hosts, which share ports and uplinks
    parameter_servers  training with parameter servers under a virtual clock
    failures         stragglers, checkpoint intervals and restarts in closed form

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
