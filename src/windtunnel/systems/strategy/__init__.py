"""Strategies of a data-parallel job: which gradients travel together, what is fused, what is kept.

In: captured graphs of all ranks. Out: a strategy that is predicted to be faster. Not here: flying it.
"""
