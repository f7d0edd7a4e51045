"""Random draws.

random_ops  uniform, normal, and seeds
sampling    multinomial, gamma, shuffles
"""
