"""The benchmark suite as a subject: which workloads, their stable phase, metrics, comparison, utilization.

In: names of workloads. Out: one result file per cell, comparisons. ``run`` is the
real thing, ``listing`` says what would run, ``results`` is what is kept.

Source: TBD (Zhu et al., IISWC 2018).

Internal modules: ``cell``.
"""
