"""The strategies.

one_process   a replica on one device, or on each of several
multi_worker  the same script on every worker
experimental  TensorFlow's ``distribute.experimental`` names
"""
