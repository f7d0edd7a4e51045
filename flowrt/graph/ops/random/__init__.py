"""Random draws.

random_ops  uniform, normal, and seeds
sampling    multinomial, gamma, shuffles
stateless   draws that follow from a seed alone, TensorFlow's
philox      their bits, and the numbers made of them
"""
