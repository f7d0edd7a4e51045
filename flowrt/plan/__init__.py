"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    played           the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    layout_search    the cheapest layouts of a step over a mesh
    layout_choices   the layouts that each node can have
    layout_costs     seconds, traffic and memory of a step in given layouts
    layout_tables    the network of costs of a step
    equal_blocks     blocks of a step that choose once
    cost_network     the least total cost of choices that have costs alone and in pairs
    milp             the same as a mixed-integer program
    chosen_layouts   choices as facts of a step, and as what a script says

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
