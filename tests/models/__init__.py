"""Public models: they are part of packages, fetched into a cache outside the repository.

fetch              python -m tests.models.fetch: gets the packages
tfjs               graphs of TensorFlow.js as GraphDefs
public             the models of these packages, with inputs
"""
