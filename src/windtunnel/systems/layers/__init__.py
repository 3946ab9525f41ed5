"""Cheaper layers: structured dropout, block-circulant weights, and whether networks with them learn as well."""
