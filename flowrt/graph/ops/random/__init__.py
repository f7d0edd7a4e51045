"""Random draws.

random_ops      uniform, normal, and seeds
parts_of_draws  the elements of one block of a draw
sampling        multinomial, gamma, shuffles
"""
