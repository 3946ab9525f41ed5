"""How the threads of a program that is about to run wait for each other on a busy machine."""

from __future__ import annotations

import os

from windtunnel.cli.console import advise

__all__ = ["choose_wait_policy"]

_QUIET_SHARE = 0.9


def choose_wait_policy() -> None:
    """Let threads sleep while they wait for each other where the cores have other work, too; before torch is loaded.

    Threads that spin then stall: a step of 12 ms takes seconds. On a quiet machine they make small operators nearly
    twice as fast. What the user has set stays as it is.
    """
    from windtunnel.measure.busyness import free_share

    if "OMP_WAIT_POLICY" in os.environ:
        return
    share = free_share()
    if share < _QUIET_SHARE:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        advise(f"this machine is busy (a thread runs {share:.0%} of the time): setting OMP_WAIT_POLICY=passive")
