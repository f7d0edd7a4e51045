"""The strategies.

one_process   a replica on one device, or on each of several
multi_worker  the same script on every worker
watched_worker  servers of these, for metrics
experimental  TensorFlow's ``distribute.experimental`` names
"""
