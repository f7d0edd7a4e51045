"""Plans of strategies: a search for what runs where, and how long it takes, without the machines.

    choice             `Choice`: mesh, micro-batches, schedule, sharding and layouts, and their strategy
    recorded           the training step of a script, without layouts
    applied            the same with the attributes that a strategy gives
    model              facts by which strategies are compared before any is lowered
    stage_search       meshes, micro-batches, schedules, sharding and recomputation
    plan_file          `Plan`: a choice as a file, with the variables that it is for
    auto_strategy      `AutoStrategy`: the strategy of a plan
    played             the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    schedule_programs  a pipeline's schedule as class programs
    program_checks     mistakes in class programs, found before they are played
    replay             class programs played on vectors, one number per device
    step_times         `Played`: seconds by cause, and the rate of training as a product
    events             a virtual clock, and class programs played on it device by device
    network            bytes on their way between hosts, which share ports and uplinks
    parameter_servers  training with parameter servers under a virtual clock
    cluster_file       `Cluster`: devices, hosts, racks and links, described in ``cluster.toml``
    toml_value         values of a TOML file with their lines, and numbers with units
    cluster_links      seconds of collectives and messages between devices of a cluster
    laws               Amdahl's and Gustafson's laws, and their fits to a scaling curve
    layout_search      the cheapest layouts of a step over a mesh
    layout_choices     the layouts that each node can have
    layout_costs       seconds, traffic and memory of a step in given layouts
    chosen_layouts     choices as facts of a step, and as what a script says
    cost_network       the least total cost of choices that have costs alone and in pairs
    device_parts       what one device of each class would run, compiled without the devices
    emitted            from these parts to class programs

The step that the passes emit is played, not a model of it: layouts, collectives, messages, gathers and the
order of actions come from `flowrt.graph.passes.layouts`. Only durations are estimated.

A *class* is all devices with the same program: the coordinates of one position of a pipeline. A *lane* is one
device of a class. All times are seconds, all sizes bytes.
"""
