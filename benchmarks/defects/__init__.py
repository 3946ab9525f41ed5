"""Defects put into the sources on purpose, and what the tests say of them; the bar is ``mutations``."""
