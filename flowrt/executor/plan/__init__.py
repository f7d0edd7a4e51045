"""A plan: a request compiled for certain feed shapes, ready to run.

instance          its programs on their own memory, for one step at a time
plan              `Plan`: compiles, keeps instances, runs a step
plan_description  the plan as text
tiers             tiered compilation: kernels first, compiled loops swapped in later
"""
