"""Search of a space of small networks by predicted cost.

In: measured times of the kernels of the space. Out: the fronts of searches, and what their winners really take.
``search`` searches, ``run`` measures the winners.
"""
