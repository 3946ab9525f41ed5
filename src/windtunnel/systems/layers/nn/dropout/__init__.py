"""Dropout of whole units for a whole batch: sets, products, recurrences, layers.

Internal modules: ``engine``.
"""
