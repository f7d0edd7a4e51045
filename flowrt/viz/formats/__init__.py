"""File formats of graphs: one module per format, and one table of them.

    picture                                   `Picture` (title, parts, view, stages) -> encode -> bytes
    wording, public_ops                       labels; the compiler's ops as ops that readers know
    dot, svg, mermaid, model_explorer, json   for people and for programs
    graph_def, event_file                     for TensorBoard and Netron
    table                                     the table

A format that is drawn is for people: a view with more boxes than its viewer can take is folded first. The
others are for programs, and have every operation.
"""
