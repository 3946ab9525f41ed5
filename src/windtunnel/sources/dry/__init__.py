"""A job of many ranks without hardware -> a graph of its distinct ranks.

Public modules: ``run``.
"""
