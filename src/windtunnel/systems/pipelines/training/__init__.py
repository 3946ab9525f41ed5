"""Pipelines of gloo processes that train with planned stages.

In: a workload and plans for its layers. Out: for each plan the step that its replay says, and the step that was
measured. ``model`` predicts, ``search`` improves a plan by what it predicts, ``run`` is the real thing.

Internal modules: ``rank``, ``trainer``.
"""
