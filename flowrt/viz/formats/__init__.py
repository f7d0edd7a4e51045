"""What a graph is written as: one module a format, and one table of them.

    Picture (title, parts, view, stages) -> encode -> bytes

A format that is drawn is for people: there is a number of boxes that its viewer can take, and a view with
more of them is folded before. The others are for programs, and have every operation.
"""
