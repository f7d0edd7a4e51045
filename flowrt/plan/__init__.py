"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    cluster        clusters, described: devices, hosts, racks and links
    step           training steps of scripts, under any strategy, as class programs; costs
    layouts        search of layouts inside a stage
    replay         class programs, played
    choice         `Choice`: mesh, micro-batches, schedule, sharding and layouts, and their strategy
    compiled_costs times of operations in a program for one device
    model          facts by which strategies are compared before any is lowered
    stage_search   meshes, micro-batches, schedules, sharding and recomputation
    least_seconds  what a choice takes at least, with the transfers that nothing hides
    task           a recorded step, a cluster and costs: what the command answers from
    shared_layers  the layouts with which devices of a host share layers
    machine        a described cluster as the search sees it
    player         a recorded step under a choice, lowered and played
    planning       the best choice for a step on a cluster
    plan_file      `Plan`: a choice as a file, with the variables that it is for
    auto_strategy  `AutoStrategy`: the strategy of a plan, or of the model in its scope
    in_place       the model in a scope planned when the scope ends, and its graph changed accordingly
    what_if        failures and stragglers, as text
    explain        a plan as text: what, why, and why not
    plan_record    a plan as its page in ``flowrt report`` shows it

    script -> recorded step -> stage_search: all choices, by estimates -> the best are lowered and played
           -> Planned -> explain, a PlanRecord, or a Plan as a file -> AutoStrategy

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
