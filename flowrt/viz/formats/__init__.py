"""File formats of graphs: one module per format, and one table of them.

    picture                                   `Picture` (title, parts, view, stages) -> encode -> bytes
    wording, public_ops                       labels; the compiler's ops as public ones
    dot, svg, mermaid, model_explorer, json   for people and for programs
    graph_def                                 for TensorBoard and Netron
    table                                     the table

Drawings are for people: a view with more boxes than the viewer can handle is folded first. The other formats
are for programs and contain every operation.
"""
