"""``windtunnel memory`` as a user types it."""

import json
import textwrap

import pytest

from tests.cli.command import windtunnel, windtunnel_process

pytest.importorskip("torch", reason="needs the extra torch")

SMALL = "mlp:batch_size=4,width=32,depth=2"
SCRIPT = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print("training")
for _ in range(100):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
WEIGHTS = 4 * (785 * 32 + 33 * 32 + 33 * 10)


def test_a_workload_is_predicted_without_running_it(tmp_path):
    page = tmp_path / "mlp.memory.html"
    shown = windtunnel("memory", SMALL, "--fake", "--json", "--html", page)

    document = json.loads(shown.stdout)
    assert shown.code == 0, shown.stderr
    assert "windtunnel.memory/1" == document["schema"]
    assert document["meta"]["is_fake"]
    assert document["peak_bytes"] == document["peak_without_workspace_bytes"] > 0
    assert WEIGHTS == document["by_category"]["weight"] == document["at_most"]["gradient"]
    assert 2 * WEIGHTS + 24 == document["by_category"]["optimizer state"]
    assert "at the peak</h1>" in page.read_text()
    assert "open" in shown.stderr


def test_the_hint_asks_for_the_same_job_as_was_asked_for():
    shown = windtunnel("memory", SMALL, "--fake", "--device-memory", "1GiB")

    assert f"next: windtunnel memory --html mlp.memory.html --fake --device-memory 1GiB {SMALL}" in shown.stderr


def test_a_job_that_does_not_fit_is_refused_and_told_what_to_cut():
    shown = windtunnel("memory", "mlp:width=4096", "--fake", "--device-memory", "64MiB")

    assert shown.code == 1
    assert "and there are 64.0 MiB" in shown.stderr
    assert "optimizer state" in shown.stderr
    assert "fix:" in shown.stderr
    assert shown.stdout == ""


def test_a_script_is_followed_and_its_table_kept(tmp_path):
    path, kept = tmp_path / "train.py", tmp_path / "run.parquet"
    path.write_text(textwrap.dedent(SCRIPT))
    shown = windtunnel("memory", "--fake", "--out", kept, path)
    again = windtunnel("memory", kept)

    assert (0, 0) == (shown.code, again.code), shown.stderr + again.stderr
    assert "training" in shown.stderr
    assert "training" not in shown.stdout
    assert shown.stdout == again.stdout
    assert "feature map" in shown.stdout
    assert "\nwithout workspace " in shown.stdout
    assert all(len(line) <= 80 for line in shown.stdout.splitlines()[1:])
    refused = windtunnel("memory", "--fake", "--out", kept, path)
    assert refused.code == 2
    assert "is there already" in refused.stderr


@pytest.mark.slow
def test_a_real_run_is_predicted_first(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(SCRIPT))
    real = windtunnel("memory", "--json", path)
    refused = windtunnel("memory", "--device-memory", "1MiB", path)

    assert real.code == 0, real.stderr
    assert not json.loads(real.stdout)["meta"]["is_fake"]
    predicted = windtunnel("memory", "--fake", "--json", path)
    pair = [json.loads(shown.stdout)["peak_without_workspace_bytes"] for shown in (real, predicted)]
    assert pair[0] == pytest.approx(pair[1], rel=0.02)
    assert 4 * 72 == json.loads(real.stdout)["by_category"]["weight"]
    assert refused.code == 1
    assert "training" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("mpl", "--fake"), "did you mean"),
        (("mlp:wdith=3", "--fake"), "did you mean width"),
        (("mlp", "--fake", "more"), "takes no arguments"),
        (("--fake", "nothing.py"), "there is no script nothing.py"),
        (("nothing.parquet",), "cannot be read as a memory profile"),
        (("mlp", "--fake", "--device-memory", "many"), "many"),
    ],
)
def test_what_is_misspelt_is_told(arguments, said):
    shown = windtunnel("memory", *arguments)

    assert shown.code == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


@pytest.mark.slow
def test_an_interrupted_run_ends_with_130(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import os, signal, torch\nos.kill(os.getpid(), signal.SIGINT)\n")
    shown = windtunnel_process("memory", "--fake", path)

    assert 130 == shown.code
    assert "Traceback" not in shown.stderr


def test_a_gpu_is_named_for_predictions_only():
    told = windtunnel("memory", "mlp:batch_size=8,width=32", "--fake", "--on", "h100", "--json")
    refused = windtunnel("memory", "mlp:batch_size=8,width=32", "--on", "h100")
    unknown = windtunnel("memory", "mlp:batch_size=8,width=32", "--fake", "--on", "h1000")

    shown = windtunnel("memory", "mlp:batch_size=8,width=32", "--fake", "--on", "h100")

    document = json.loads(told.stdout)
    assert 2 * 32 * 2**20 == document["by_category"]["workspace"], told.stderr
    assert "with the workspace of cuBLAS" in " ".join(shown.stdout.split())
    assert document["peak_bytes"] - 2 * 32 * 2**20 == document["peak_without_workspace_bytes"]
    assert (2, 2) == (refused.code, unknown.code)
    assert "add --fake" in refused.stderr


COMPILED_SCRIPT = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
run = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad()
    run(torch.randn(4, 8)).sum().backward()
    optimizer.step()
"""


def test_fake_memory_of_a_script_that_compiles_is_said_to_be_that_of_plain_python(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(COMPILED_SCRIPT)
    compiles = windtunnel("memory", "--fake", path)
    path.write_text(COMPILED_SCRIPT.replace('torch.compile(model, backend="eager")', "model"))
    plain = windtunnel("memory", "--fake", path)

    assert (0, 0) == (compiles.code, plain.code), compiles.stderr
    assert "the script uses torch.compile" in compiles.stdout
    assert "the script uses torch.compile" not in plain.stdout


FIT_SCRIPT = """
import torch
data = torch.utils.data.DataLoader(torch.randn(4000, 256), batch_size=8)
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    for batch in data:
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
"""


@pytest.mark.slow
def test_the_largest_batch_of_the_loaders_of_a_script_is_searched(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(FIT_SCRIPT)
    shown = windtunnel("memory", "--fit", "--device-memory", "22MiB", "--json", path)

    document = json.loads(shown.stdout)
    assert shown.code == 0, shown.stderr
    assert "windtunnel.memory_fit/1" == document["schema"]
    assert "data loaders" == document["set_by"]
    assert document["peak_bytes"] <= document["limit_bytes"] == 22 * 2**20
    assert f"--loader-batch-size {document['batch_size']}" in shown.stderr


def test_a_search_keeps_no_page(tmp_path):
    shown = windtunnel("memory", "--fit", "--html", tmp_path / "page.html", SMALL)

    assert 2 == shown.code
    assert "writes no file" in shown.stderr


def test_an_option_that_sets_the_batch_is_found_or_asked_for(tmp_path):
    from windtunnel.cli.memory_fit import Job
    from windtunnel.errors import InputError

    path = tmp_path / "train.py"
    path.write_text('p.add_argument("-b", "--batch-size", type=int)')
    job = Job(str(path), ["--lr", "0.1", "--batch-size", "32", "--fused"])

    assert ("--batch-size", 32) == (job.option, job.start)
    assert [str(path), "--lr", "0.1", "--fused", "--batch-size", "64"] == job.with_batch(64)
    assert ["mlp:width=8,batch_size=5"] == Job("mlp:batch_size=3,width=8", []).with_batch(5)
    path.write_text('p.add_argument("--batch-size"); p.add_argument("--eval-batch-size")')
    with pytest.raises(InputError, match="several options"):
        Job(str(path), [])


LOADED = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(256, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(100, 256), torch.rand(100, 1)), batch_size=16)
for _ in range(10**9):
    for inputs, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
"""


def loaded_peak(path, batch):
    return json.loads(windtunnel("memory", "--fake", "--json", "--loader-batch-size", batch, path).stdout)["peak_bytes"]


def test_the_last_short_batch_of_a_loader_says_nothing_of_the_batch(tmp_path):
    """Of 100 samples, batches of 24 leave 4 for the fifth, which is the one that is followed."""
    path = tmp_path / "train.py"
    path.write_text(LOADED)
    small, middle, large = (loaded_peak(path, batch) for batch in (13, 24, 99))

    assert (middle - small) / 11 == pytest.approx((large - middle) / 75, rel=0.05)


def test_a_batch_that_the_data_cannot_fill_is_refused(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOADED)
    refused = windtunnel("memory", "--fake", "--loader-batch-size", 101, path)

    assert "has 100 samples, too few for a batch of 101" in refused.stderr
    assert 2 == refused.code


def test_a_script_of_many_iterations_ends_behind_those_that_are_followed(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(LOADED)
    followed = windtunnel("memory", "--json", path)

    assert 0 == followed.code, followed.stderr
    assert json.loads(followed.stdout)["peak_bytes"] > 16 * 256 * 4
