"""A fork of the server is what a new process is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.fork_server import real_processes
from windtunnel.measure.workers import run_to_end

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are not forked here")

PROBE = """
import json, os, signal, sys, threading
import torch

def facts():
    return {
        "argv": sys.argv, "original": sys.orig_argv[1:], "path": sys.path, "folder": os.getcwd(),
        "main": [__name__, __file__, sys.modules["__main__"].facts is facts],
        "environment": dict(os.environ), "parent": os.getppid(),
        "group": os.getpgid(0), "session": os.getsid(0), "cores": sorted(os.sched_getaffinity(0)),
        "command": open("/proc/self/cmdline").read().rstrip(chr(0)).split(chr(0)), "threads": torch.get_num_threads(),
        "seed": torch.initial_seed(), "read": sys.stdin.read(), "files": sorted(os.listdir("/proc/self/fd"))[:4],
        "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "pipe": signal.getsignal(signal.SIGPIPE).name, "thread": threading.current_thread().name,
        "streams": [[s.encoding, s.errors, s.line_buffering, s.fileno()] for s in (sys.stdin, sys.stdout, sys.stderr)],
        "tests": [name for name in sys.modules if name.startswith("tests")],
    }

print(json.dumps(facts()))
sys.exit(7)
"""


def script(folder: Path, code: str) -> str:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(code), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("threads", [None, "2"])
def test_it_sees_what_a_new_process_sees(tmp_path, threads):
    """Arguments, environment, folder, streams, cores, group, parent, and threads."""
    path = script(tmp_path, PROBE)
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"A_WORD": "here", "PYTHONPATH": str(tmp_path / "more")} | (
        {"OMP_NUM_THREADS": threads} if threads else {}
    )
    facts = []
    for processes in (nullcontext, real_processes):
        with processes():
            done = subprocess.run(
                [sys.executable, path, "a b", "--c"], input="heard", capture_output=True, text=True, env=environment,
                cwd=tmp_path, process_group=0, check=False,
            )  # fmt: skip
        assert (done.returncode, done.stderr) == (7, "")
        facts.append(json.loads(done.stdout))
        assert facts[-1].pop("group") not in {os.getpgid(0), os.getpid()}

    assert facts[0].pop("seed") != facts[1].pop("seed")
    assert facts[0] == facts[1]
    assert facts[0]["parent"] == os.getpid()


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit", 0),
        ("raise SystemExit('sad')", 1),
        ("print('out'); raise ValueError('wrong')", 1),
        ("import os; os._exit(5)", 5),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
        ("import atexit; atexit.register(print, 'last'); print('first')", 0),
        ("import threading, time; threading.Timer(0.1, print, ['thread']).start(); print('main')", 0),
    ],
)  # fmt: skip
def test_it_ends_as_a_new_process_does(tmp_path, code, status):
    """Exit codes, signals, tracebacks, and what is done at the end."""
    path = script(tmp_path, f"def work():\n    {code}\nwork()\n")
    fork = run_to_end([sys.executable, path])
    with real_processes():
        new = run_to_end([sys.executable, path])
    assert (fork.code, fork.stdout, fork.stderr) == (new.code, new.stdout, new.stderr)
    assert fork.code == status


def test_it_is_killed_when_its_time_is_over(tmp_path):
    """A time limit ends it."""
    assert run_to_end([sys.executable, script(tmp_path, "import time; time.sleep(60)")], timeout_s=0.2) is None


def test_what_libraries_read_as_they_load_makes_a_new_process(tmp_path):
    """``PYTHONHASHSEED`` is one of these."""
    path = script(tmp_path, "import sys; print('torch' in sys.modules)")
    assert run_to_end([sys.executable, path]).stdout == "True\n"
    assert run_to_end([sys.executable, path], environment={"PYTHONHASHSEED": "1"}).stdout == "False\n"
