"""``windtunnel kernel plan``: search, show, apply, and how it refuses."""

import json

import pytest

from tests.cli.command import windtunnel
from tests.systems.kernels.gpu_texts import SCALE as GPU_SCALE
from tests.systems.kernels.texts import SCALE
from windtunnel.hardware import machine

CASES = """
import numpy as np
from windtunnel.systems.kernels.cases import Out

def cases(split):
    draw = np.random.default_rng(0 if split == "fitness" else 1)
    sizes = [4000] if split == "fitness" else [4001, 7]
    return [(draw.normal(size=n).astype(np.float32), Out((n,)), n) for n in sizes]
"""
NO_GPU = pytest.mark.skipif(any(one.kind == "gpu" for one in machine().devices), reason="this host has a GPU")
QUICK = ("--population", "4", "--max-generations", "1")


@pytest.fixture
def files(tmp_path):
    (tmp_path / "scale.ll").write_text(SCALE)
    (tmp_path / "tests.py").write_text(CASES)
    return tmp_path


@pytest.mark.slow
def test_a_kernel_of_ones_own_is_searched_shown_and_written(files):
    folder, page, module = files / "out", files / "page.html", files / "new.ll"
    given = (files / "scale.ll", "--test", files / "tests.py")
    searched = windtunnel("kernel", "plan", *given, *QUICK, "--out", folder, "--json")  # a kernel needs no verb
    document = json.loads(searched.stdout)
    shown = windtunnel("kernel", "show", folder, "--html", page)
    written = windtunnel("kernel", "apply", folder, *given, "--out", module)

    assert 0 == searched.code == shown.code == written.code
    assert "windtunnel.evolve/1" == document["schema"]
    assert document["speedup_low"] >= 1
    assert len(document["genes"]) == len(document["edits"])
    assert sum(document["counts"].values()) > 0
    assert "candidates:" in shown.stdout
    assert "Changes to the module" in page.read_text()
    assert "define void @scale(" in module.read_text()
    again = windtunnel("kernel", "plan", *given, *QUICK, "--out", folder)
    assert 2 == again.code
    assert "is there already" in again.stderr


@pytest.mark.slow
def test_a_function_of_numba_is_taken_with_its_tests_in_one_file(files):
    path = files / "loops.py"
    path.write_text(CASES.replace("Out((n,)), n)", "Out((n,)))") + """
import numba

@numba.njit
def double(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] + x[i]
""")  # fmt: skip
    outcome = windtunnel("kernel", "plan", path, *QUICK, "--out", files / "out", "--json")

    assert 0 == outcome.code, outcome.stderr
    assert "double" == json.loads(outcome.stdout)["kernel"]


@pytest.mark.parametrize(("arguments", "says"), [
    (("plan", "nothing"), "there is no kernel 'nothing'"),
    (("plan", "scale.ll"), "has no tests"),
    (("plan", "broken.ll", "--test", "tests.py"), "line 3"),
    (("plan", "scale.ll", "--test", "gone.py"), "there is no"),
    (("plan", "scale.ll", "--test", "tests.py", "--population", "6"), "multiple of four"),
    (("plan", "scale.ll", "--test", "tests.py", "--allow", "all"), "nothing is allowed"),
    pytest.param(("plan", "gpu.ll", "--test", "tests.py"), "there is no GPU", marks=NO_GPU),
    (("show", "."), "there is no result"),
])  # fmt: skip
def test_what_cannot_be_done_is_said(files, arguments, says, monkeypatch):
    monkeypatch.chdir(files)
    (files / "broken.ll").write_text(
        "define void @f(i32 %x) {\n  %y = add i32 %x, 1\n  %z = add i32 %w, 1\n  ret void\n}\n"
    )
    (files / "gpu.ll").write_text(GPU_SCALE)
    outcome = windtunnel("kernel", *arguments)

    assert outcome.code in (1, 2)
    assert says in outcome.stderr
