"""Prices of single operators and of whole small nets from few measurements.

Internal modules: ``facts``, ``learned_features``, ``learned_model``, ``learned_trees``.
"""
