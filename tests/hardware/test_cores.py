"""Cores that a process may use: as the host says, and staying on them in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from windtunnel.hardware.cores import allowed_cores, stay_on


def test_the_cores_are_those_of_the_host():
    found = allowed_cores()
    assert found == tuple(sorted(found))
    assert 1 <= len(found) <= (os.cpu_count() or 1)


def test_no_cores_change_nothing():
    before = allowed_cores()
    stay_on([])
    assert before == allowed_cores()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this host has no mask of cores")
def test_a_process_stays_where_it_is_told():
    last = allowed_cores()[-1]
    code = f"from windtunnel.hardware.cores import *; stay_on([{last}]); print(allowed_cores())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"({last},)"
