"""What one job loses to its surroundings: Stash, by runs that each leave out one cause.

In: a job, a link, a disk. Out: stalls with intervals, what they cost, which cause to mend first. Source: Sharma et al.,
Stash, ICDCS 2023; Mohan et al., Analyzing and Mitigating Data Stalls in DNN Training, VLDB 2021 (DS-Analyzer).

Internal modules: ``rank``.
"""
