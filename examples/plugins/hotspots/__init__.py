"""Hotspots: the operators that take most of a step. ``README.md`` has the files in reading order."""
