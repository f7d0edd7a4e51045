"""Loops over the elements of arrays, as data.

loop_program   `LoopProgram`: typed scalar SSA
loop_formats   float32 and float64: bits, limits, polynomials
loop_math      exp, tanh etc., expanded to arithmetic
loop_stages    number of passes over a row
"""
