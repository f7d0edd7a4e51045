"""Rewrites that keep every result bit for bit.

fold          constant folding
simplify      algebraic simplification, by each op's own rule
merge         common subexpression elimination
dependencies  redundant control edges
nested        across the borders of functions: unused results, constants, invariants
narrow        products of which only a block is read
row_reads     rows of a variable gathered from where it lies
"""
