"""Optimisations that preserve every result bit for bit.

fold          constant folding
simplify      algebraic simplification, by rules of the ops
merge         common subexpression elimination
dependencies  redundant control edges
nested        across function boundaries: unused results, constants, invariants
narrow        products that are only partly read
row_reads     rows of a variable gathered in place
"""
