"""Prices of single operators and of whole small nets from few measurements.

Internal modules: ``calls``, ``facts``, ``learned_features``, ``learned_process``, ``matrix_facts``, ``row_facts``.
"""
