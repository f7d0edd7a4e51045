"""The strategies.

one_device, mirrored, central_storage  one process
multi_worker                           the same script on every worker
experimental                           TensorFlow's ``distribute.experimental`` names
"""
