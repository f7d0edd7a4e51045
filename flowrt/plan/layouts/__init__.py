"""The cheapest layouts of a step over a mesh.

    layout_search   the cheapest layouts of a step over a mesh
    layout_choices  the layouts that each node can have
    layout_costs    seconds, traffic and memory of a step in given layouts
    chosen_layouts  choices as facts of a step, and as what a script says
    cost_network    the least total cost of choices that have costs alone and in pairs
    equal_blocks    blocks of a step that choose once
    layout_tables   the network of costs of a step
    milp            the same as a mixed-integer program

A step becomes a network of costs, of choices alone and in pairs, of which the least total is found.
"""
