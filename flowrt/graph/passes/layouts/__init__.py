"""Passes from one global graph to the operations of each device of a mesh.

    step_layouts          what is found: the layout of every tensor, and those that its readers want
    propagate_layouts     how it is found, in one sweep
    call_layouts          the rules for the tensors of one operation
    propagate_functions   the same in loops and branches
    gather_again          one gather more for the backward pass, of what is whole for products only
    join_units            units of variables that are kept in parts, by what the step uses one after the other
    keep_copies           copies of variables that are kept in parts or in host memory
    schedule_gathers      gathers of variables, one for each stretch of a step in which they are needed
    place_chunks          for which stretches they stay
    schedule_scatters     reductions of gradients to parts, where they are made
    host_nodes            operations on variables in host memory
    wanted_layouts        draws and filled tensors, in the layouts of their readers
    sharded_forms         other operations in place of one of which a whole dimension is cut
    stages                stages of a pipeline: which operations, in which order
    lower_layouts         the operations of each coordinate, on its device
    lower_copies          copies of variables between meshes
    lower_functions       loops and branches of some coordinates or of all
    redistribute          collectives, slices and sums between the layout that a tensor has and the one needed
    bucket_collectives    collectives of a unit, and small ones, such as those of gradients, as one
    variable_shards       which part of a variable each device keeps, under which name
    processes             the processes of a mesh, each with a session of its own
    join_ends             one message for several updates for which another process waits
    own_part              of all that, the part of one process, if each runs its own session
    step_text             a step as text, which these processes compare
    local_forms           operations that differ on parts: means, shapes as values, sparse updates

A subgraph in which no node names a mesh passes as the same object.

Data path: `mesh_of` finds the mesh; `keep_copies`, `schedule_gathers` and `schedule_scatters` change the
global graph where variables are kept in parts; `propagate` returns `Layouts`, facts only; `lower_layouts`
goes through the nodes in order. A node that all coordinates compute becomes one node per coordinate,
``name@dp0tp1``, with inputs in the layouts that its rule wants. One that must run once (a feed, a random
draw, an iterator, a print) keeps its name, runs on the device of the first coordinate, and every coordinate
reads its outputs.
"""
