"""Tensor programs that are really built and measured: tasks, schedules, code, times.

In: what operators the suite's networks are made of. Out: a ``ProgramSet`` for ``programs/model``. A tensor compiler
(extra ``tvm``) is needed here and nowhere else. Not here: features and models, which know loop nests only.
"""
