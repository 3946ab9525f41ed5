"""Stages of a pipeline: how many, which layers, which replicas.

In: layers or a ``Plan``. Out: ``StagePlan`` and graphs of schedules. ``model`` replays a plan as a pipeline of samples;
what runs it lies in ``training``.

Internal modules: ``piper_kernels``.
"""
