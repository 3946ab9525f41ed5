"""Training over uneven machines, links and data.

In: a model with data, a cluster file, synchronization strategies. Out: loss against time, predicted and really run.

Internal modules: ``node``.
"""
