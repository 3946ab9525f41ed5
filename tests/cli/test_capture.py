"""``windtunnel capture`` and ``verify`` on real scripts: good ones, and all the ways in which one can disappoint."""

import json
import textwrap

import pytest

from tests.cli.command import windtunnel_process
from windtunnel.cli.app import _workload_last
from windtunnel.graph import load

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

TRAINING = """
    import sys, torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs, targets = torch.randn(16, 32), torch.randint(0, 8, (16,))
    def step():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss
"""


def script(folder, loop, name="train.py"):
    """A training script whose loop is given."""
    path = folder / name
    path.write_text(textwrap.dedent(TRAINING) + textwrap.dedent(loop))
    return path


def capture(folder, loop, *arguments):
    """Capture four iterations of it."""
    return windtunnel_process("capture", "--iterations", 4, "--warmup", 1, script(folder, loop), *arguments, cwd=folder)


def test_capture_of_a_plain_loop_writes_a_graph_named_after_the_script(tmp_path):
    outcome = capture(tmp_path, "while True:\n    step()\n")

    said = [line for line in outcome.stderr.splitlines() if line.startswith("next: ")]  # slow machines say more
    assert (0, [f"next: windtunnel explain {tmp_path / 'train.wt'}"]) == (outcome.code, said)
    assert outcome.stdout.startswith(f"{tmp_path / 'train.wt'}: ")
    assert load(tmp_path / "train.wt").num_tasks > 20


def test_arguments_after_the_script_are_the_scripts_own(tmp_path):
    loop = """
        assert sys.argv[1:] == ["--json", "--iterations", "7"], sys.argv
        while True:
            step()
    """

    assert 0 == capture(tmp_path, loop, "--json", "--iterations", "7").code


def test_what_the_script_prints_does_not_mix_with_the_answer(tmp_path):
    path = script(tmp_path, "import os\nwhile True:\n    step()\n    print('hello')\n    os.system('echo deep')\n")

    outcome = windtunnel_process("capture", "--json", "--iterations", 4, "--warmup", 1, path, cwd=tmp_path)

    assert "windtunnel.capture/1" == json.loads(outcome.stdout)["schema"]
    assert "hello\n" in outcome.stderr
    assert "deep\n" in outcome.stderr


def test_what_was_captured_until_a_script_raised_is_kept(tmp_path):
    path = script(tmp_path, "for i in range(40):\n    step()\nraise RuntimeError('out of cheese')\n")

    outcome = windtunnel_process("capture", "--iterations", 100, "--warmup", 1, path, cwd=tmp_path)

    assert 2 == outcome.code
    assert f"the partial capture was written to {tmp_path / 'train.wt'}" in outcome.stderr
    assert "train.py raised RuntimeError after 40 optimizer steps: out of cheese" in outcome.stderr
    assert load(tmp_path / "train.wt").num_tasks > 20


@pytest.mark.parametrize(
    ("loop", "message"),
    [
        ("for i in range(2):\n    step()\nraise RuntimeError('out of cheese')\n", "raised RuntimeError"),
        ("print('no loop at all')\n", "ended and no optimizer stepped in this process"),
        ("step()\nsys.exit(3)\n", "called sys.exit(3) after 1 optimizer steps"),
        ("for i in range(3):\n    step()\n", "train.py ended after 3 optimizer steps"),
    ],
)
def test_a_script_that_cannot_be_captured_says_why_and_exits_with_2(tmp_path, loop, message):
    outcome = capture(tmp_path, loop)

    assert 2 == outcome.code
    assert message in outcome.stderr
    assert "\n  where: " in outcome.stderr
    assert "\n  fix:   " in outcome.stderr
    assert "Traceback" not in outcome.stderr


def test_a_script_that_forks_is_captured_once(tmp_path):
    loop = """
        import os
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        while True:
            step()
    """

    assert 0 == capture(tmp_path, loop).code


def test_a_script_that_is_no_python_is_refused_with_its_line(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("x = 1\nif:\n")

    outcome = windtunnel_process("capture", path)

    assert 2 == outcome.code
    assert "train.py is not valid Python" in outcome.stderr
    assert f"where: {path}:2" in outcome.stderr


def test_a_script_that_is_not_there_is_refused(tmp_path):
    outcome = windtunnel_process("capture", tmp_path / "no.py")

    assert 2 == outcome.code
    assert f"error: there is no script {tmp_path / 'no.py'}" in outcome.stderr


def test_a_capture_is_never_overwritten_without_force(tmp_path):
    (tmp_path / "train.wt").mkdir()

    outcome = capture(tmp_path, "raise SystemExit('must not even start')\n")

    assert 2 == outcome.code
    assert "is there already" in outcome.stderr


def test_an_interrupted_capture_keeps_what_is_whole_and_ends_with_130(tmp_path):
    loop = """
        import os, signal
        for i in range(1000):
            step()
            if i == 40:
                os.kill(os.getpid(), signal.SIGINT)
    """
    path = script(tmp_path, loop)

    outcome = windtunnel_process("capture", "--iterations", 100, "--warmup", 1, path, cwd=tmp_path)

    assert 130 == outcome.code
    assert f"the partial capture was written to {tmp_path / 'train.wt'}" in outcome.stderr
    assert load(tmp_path / "train.wt").num_tasks > 20


def test_verify_flies_a_script_and_keeps_the_receipt(tmp_path):
    path = script(tmp_path, "while True:\n    step()\n")
    common = ("--rounds", 3, "--ledger", tmp_path / "receipts.db", "--json")

    outcome = windtunnel_process("verify", path, "--whatif", "foreach-optimizer", *common, cwd=tmp_path)
    listed = windtunnel_process("db", "receipts", "--ledger", tmp_path / "receipts.db")

    assert 0 == outcome.code, outcome.stderr
    assert ["foreach-optimizer"] == [receipt["whatif"] for receipt in json.loads(outcome.stdout)["receipts"]]
    assert "foreach-optimizer" in listed.stdout


def test_a_capture_knows_its_script_and_is_flown_by_it(tmp_path):
    capture(tmp_path, "assert sys.argv[1:] == ['--fast']\nwhile True:\n    step()\n", "--fast")
    common = ("--rounds", 3, "--ledger", tmp_path / "receipts.db")

    asked = windtunnel_process("whatif", "train.wt", "foreach-optimizer", cwd=tmp_path)
    flown = windtunnel_process("verify", "train.wt", "--whatif", "foreach-optimizer", *common, cwd=tmp_path)

    assert "next: windtunnel verify train.wt --whatif foreach-optimizer\n" in asked.stderr
    assert 0 == flown.code, flown.stderr


def test_verify_exits_with_1_where_a_prediction_is_further_off_than_allowed(tmp_path):
    path = script(tmp_path, "while True:\n    step()\n")
    common = ("--rounds", 3, "--ledger", tmp_path / "receipts.db", "--fail-over", "0.000001%")

    outcome = windtunnel_process("verify", path, "--whatif", "foreach-optimizer", *common, cwd=tmp_path)

    assert 1 == outcome.code, outcome.stderr
    assert "the error of a prediction exceeds 0.000001%" in outcome.stdout


def test_iterations_that_vary_are_told_with_how_many_would_do(tmp_path):
    loop = """
        import random
        random.seed(0)
        while True:
            step()
            optimizer.zero_grad()
            [inputs.add(1) for _ in range(random.choice([1, 3000]))]
    """
    path = script(tmp_path, loop)

    outcome = windtunnel_process("capture", "--iterations", 12, "--warmup", 1, path, cwd=tmp_path)

    assert 0 == outcome.code, outcome.stderr
    assert "iterations vary: after 12 of them the step's time is known to ±" in outcome.stderr
    assert " would make that ±2.0 %" in outcome.stderr or "on a quiet machine" in outcome.stderr


def test_options_behind_a_script_without_a_suffix_are_its_own(tmp_path):
    script = tmp_path / "train"
    script.write_text("pass\n")

    assert ["capture", str(script), "--epochs", "3"] == _workload_last(["capture", str(script), "--epochs", "3"])
    assert ["capture", "--iterations", "3", "mlp"] == _workload_last(["capture", "mlp", "--iterations", "3"])
