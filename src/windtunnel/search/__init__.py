"""Searches: what to build, decided by predictions alone.

In: prices from the rooms below. Out: candidates and their fronts. May not enter: running anything (``flights`` does).
"""
