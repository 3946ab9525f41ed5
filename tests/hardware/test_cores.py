"""Cores that a process may use: as the host says, and staying on them in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from windtunnel.hardware import host
from windtunnel.hardware.host import socket_cores, stay_on, usable_cores


def test_the_cores_are_those_of_the_host():
    found = usable_cores()
    assert found == tuple(sorted(found))
    assert 1 <= len(found) <= (os.cpu_count() or 1)


def test_no_cores_change_nothing():
    before = usable_cores()
    stay_on([])
    assert before == usable_cores()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this host has no mask of cores")
def test_a_process_stays_where_it_is_told():
    last = usable_cores()[-1]
    code = f"from windtunnel.hardware.host import *; stay_on([{last}]); print(usable_cores())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == f"({last},)"


def test_two_numbers_of_one_core_count_once_and_sockets_are_told_apart(tmp_path, monkeypatch):
    places = {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1), 4: (1, 0), 5: (1, 0)}
    for number, (socket, core) in places.items():
        folder = tmp_path / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text(f"{socket}\n")
        (folder / "core_id").write_text(f"{core}\n")
    monkeypatch.setattr(host, "usable_cores", lambda: tuple(places))

    assert ((0, 1), (4,)) == socket_cores(tmp_path)


def test_a_host_that_does_not_tell_has_one_socket_and_shares_no_core(tmp_path):
    assert (usable_cores(),) == socket_cores(tmp_path)
