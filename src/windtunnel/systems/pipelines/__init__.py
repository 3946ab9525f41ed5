"""Stages of a pipeline: how many, which layers, which replicas.

In: layers or a ``Plan``. Out: ``StagePlan`` and graphs of schedules. ``model`` replays a plan as a pipeline of samples,
``search`` is PipeDream's planner; what runs it lies in ``training/pipelines``.

Internal modules: ``pipedream_tables``, ``piper_kernels``.
"""
