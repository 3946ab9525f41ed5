"""Prices of single operators and of whole small nets from few measurements."""
