"""Steps that are played: class programs on vectors, or event by event.

    played             the played form of a step: `ClassProgram`, a list of `Work` per class of devices
    schedule_programs  a pipeline's schedule as class programs
    program_checks     mistakes in class programs, found before they are played
    replay             class programs played on vectors, one number per device
    step_times         `Played`: seconds by cause, and the rate of training as a product
    spans              what a device does during a played step, without gaps
    trace              a played step as a Chrome trace
    events             a virtual clock, and class programs played on it device by device
    host               processes of one host, which share its cores
    network            bytes on their way between hosts, which share ports and uplinks
    parameter_servers  training with parameter servers under a virtual clock
    failures           stragglers, checkpoint intervals and restarts in closed form
    laws               Amdahl's and Gustafson's laws, and their fits to a scaling curve

Everything here is data and arithmetic: nothing runs, and no graph is needed.
"""
