"""Which device runs which operator.

In: a ``Problem``: nodes, times and bytes. Out: a ``Plan`` with a bound on all others. ``model`` evaluates any
assignment, ``search`` finds one; what runs it lies in ``training/pipelines``.

Source: Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators, NeurIPS 2020.
"""
