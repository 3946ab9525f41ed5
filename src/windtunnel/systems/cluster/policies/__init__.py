"""Scheduling policies, found by their registration alone."""

from windtunnel import registry

registry.discover(__name__)
