"""Optimal device placement: which device runs which operator, and what no other placement is below."""
