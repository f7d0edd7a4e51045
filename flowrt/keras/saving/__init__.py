"""Models as files.

weight_files    weights: checkpoints of TensorFlow's format, HDF5
model_files     architecture, weights and optimizer
hdf5            HDF5 as Keras lays it out
"""
