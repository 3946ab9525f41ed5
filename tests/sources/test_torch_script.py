"""Unmodified scripts, whatever their loop is, and scripts that go wrong."""

import os
import sys
import textwrap

import pytest

from windtunnel.errors import InputError
from windtunnel.graph import Kind, Phase
from windtunnel.sources.memory.script import track_script
from windtunnel.sources.torch.script import IncompleteCaptureError, capture_script, num_planned

torch = pytest.importorskip("torch", reason="needs the extra torch")

SETUP = """
import torch
torch.set_num_threads(1)
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
loss_function = nn.CrossEntropyLoss()
inputs, labels = torch.randn(64, 16), torch.randint(0, 4, (64,))
loader = DataLoader(TensorDataset(inputs, labels), batch_size=8)
"""

LOOPS = {
    "plain": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(500):
            optimizer.zero_grad()
            loss_function(model(inputs), labels).backward()
            optimizer.step()
        """,
    "loader with epochs, a scheduler and validation": """
        optimizer = torch.optim.AdamW(model.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        held_out = DataLoader(TensorDataset(inputs[:16], labels[:16]), batch_size=8)
        for _ in range(100):
            for batch, target in loader:
                optimizer.zero_grad()
                loss_function(model(batch), target).backward()
                optimizer.step()
            scheduler.step()
            with torch.no_grad():
                for batch, _ in held_out:
                    model(batch)
        """,
    "closure": """
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
        def closure():
            optimizer.zero_grad()
            loss = loss_function(model(inputs), labels)
            loss.backward()
            return loss
        for _ in range(500):
            optimizer.step(closure)
        """,
    "gradient accumulation": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(200):
            for row, (batch, target) in enumerate(loader):
                (loss_function(model(batch), target) / 4).backward()
                if row % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()
        """,
    "gradient scaler and autocast": """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu")
        for _ in range(500):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_function(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
    "two models and two optimizers": """
        critic = nn.Linear(4, 1)
        first = torch.optim.Adam(critic.parameters())
        second = torch.optim.Adam(model.parameters())
        for _ in range(200):
            for _ in range(2):
                first.zero_grad()
                critic(model(inputs).detach()).mean().backward()
                first.step()
            second.zero_grad()
            (-critic(model(inputs)).mean()).backward()
            second.step()
        """,
    "trainer that owns the loop": """
        class Trainer:
            def __init__(self, model, optimizer):
                self.model, self.optimizer = model, optimizer
            def training_step(self, batch):
                return loss_function(self.model(batch[0]), batch[1])
            def fit(self, loader, epochs):
                for _ in range(epochs):
                    for batch in loader:
                        self.optimizer.step(lambda: self.run(batch))
            def run(self, batch):
                self.optimizer.zero_grad()
                loss = self.training_step(batch)
                loss.backward()
                return loss
        Trainer(model, torch.optim.Adam(model.parameters())).fit(loader, 100)
        """,
}


def write(tmp_path, body, setup=SETUP):
    script = tmp_path / "train.py"
    script.write_text(setup + textwrap.dedent(body))
    return script


def count(graph, **criteria):
    return int(graph.select(**criteria).sum())


@pytest.mark.parametrize("name", LOOPS)
def test_any_loop_is_captured_and_then_ended(tmp_path, name):
    graph = capture_script(write(tmp_path, LOOPS[name]), iterations=3, warmup=1)

    assert count(graph, phase=Phase.FORWARD, kind=Kind.COMPUTE)
    assert count(graph, phase=Phase.BACKWARD, kind=Kind.COMPUTE)
    assert count(graph, phase=Phase.UPDATE, kind=Kind.COMPUTE)
    assert 3 == len(graph.meta.profiled_iteration_ns["samples"])


def test_an_accumulated_iteration_holds_all_its_passes(tmp_path):
    graph = capture_script(write(tmp_path, LOOPS["gradient accumulation"]), iterations=2, warmup=1)

    assert 4 == count(graph, phase=Phase.FORWARD, op="aten::addmm", layer="2", kind=Kind.COMPUTE)


def test_fetching_data_is_its_own_phase(tmp_path):
    graph = capture_script(
        write(tmp_path, LOOPS["loader with epochs, a scheduler and validation"]), iterations=3, warmup=1
    )

    assert count(graph, phase=Phase.DATA)
    assert count(graph, phase=Phase.DATA, kind=Kind.IO)


def test_layers_of_two_models_are_told_apart(tmp_path):
    graph = capture_script(write(tmp_path, LOOPS["two models and two optimizers"]), iterations=2, warmup=1)

    assert count(graph, layer="Sequential.0")
    assert count(graph, layer="Linear")


def test_the_script_runs_as_the_main_program(tmp_path):
    (tmp_path / "neighbor.py").write_text("value = 5\n")
    script = write(
        tmp_path,
        """
        import neighbor, sys, pathlib
        assert __name__ == "__main__"
        pathlib.Path(sys.argv[1]).write_text(f"{sys.argv[0]} {sys.argv[2:]} {neighbor.value} {__file__}")
        """
        + LOOPS["plain"],
    )
    kept = list(sys.argv), list(sys.path), sys.modules["__main__"]

    capture_script(script, [str(tmp_path / "seen"), "--lr", "1"], iterations=1, warmup=1)

    assert f"{script} ['--lr', '1'] 5 {script}" == (tmp_path / "seen").read_text()
    assert kept == (list(sys.argv), list(sys.path), sys.modules["__main__"])


def test_every_patch_is_taken_back(tmp_path):
    from torch.optim import SGD, Optimizer
    from torch.utils.data import DataLoader

    before = Optimizer.__init__, DataLoader.__init__
    capture_script(write(tmp_path, LOOPS["plain"]), iterations=1, warmup=1)

    assert before == (Optimizer.__init__, DataLoader.__init__)
    assert not getattr(SGD.step, "is_windtunnel", False)


SHORT = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for row in range({steps}):
    optimizer.zero_grad()
    loss_function(model(inputs), labels).backward()
    optimizer.step()
"""


def test_a_script_with_few_iterations_gives_what_it_can(tmp_path):
    script = write(tmp_path, SHORT.format(steps=45))
    graph = capture_script(script, iterations=50, warmup=1)

    assert not graph.meta.is_complete
    assert 4 <= len(graph.meta.profiled_iteration_ns["samples"]) < 50
    assert count(graph, phase=Phase.UPDATE)
    assert num_planned(50, 1) > 45


def test_a_script_that_raises_keeps_what_was_captured(tmp_path):
    script = write(tmp_path, SHORT.format(steps=20) + "raise RuntimeError('out of luck')\n")

    with pytest.raises(IncompleteCaptureError) as caught:
        capture_script(script, iterations=50, warmup=1)

    assert "train.py raised RuntimeError after 20 optimizer steps: out of luck" in str(caught.value)
    assert f"{script}:" in caught.value.where
    assert count(caught.value.graph, phase=Phase.UPDATE)
    assert not caught.value.graph.meta.is_complete
    assert 2 == caught.value.exit_code


RUNS = {
    "capture": lambda script: capture_script(script, iterations=50, warmup=1),
    "memory": lambda script: track_script(script, steps=50),
    "memory on fake tensors": lambda script: track_script(script, steps=50, fake=True),
}
every_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@every_run
@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("import sys\nsys.exit(3)", r"train.py called sys.exit\(3\) after 4 optimizer steps"),
        ("raise KeyboardInterrupt", "interrupted after 4 optimizer steps"),
        ("raise RuntimeError('out of luck')", "train.py raised RuntimeError after 4 optimizer steps: out of luck"),
    ],
)
def test_however_a_script_ends_early_it_is_told_with_its_line(tmp_path, run, ending, said):
    script = write(tmp_path, SHORT.format(steps=4) + ending + "\n")

    with pytest.raises(InputError, match=said) as caught:
        run(script)

    assert f"{script}:{len(script.read_text().splitlines())}" == caught.value.where
    assert caught.value.fix


@every_run
def test_a_script_that_never_steps_says_so(tmp_path, run):
    with pytest.raises(InputError, match="no optimizer stepped in this process") as caught:
        run(write(tmp_path, "model(inputs)\n"))

    assert getattr(caught.value, "graph", None) is None


@every_run
def test_a_script_that_trains_on_another_thread_says_so(tmp_path, run):
    body = """
        import threading
        def train():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for _ in range(5):
                loss_function(model(inputs), labels).backward()
                optimizer.step()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
        """

    with pytest.raises(InputError, match="trains on another thread than its main one"):
        run(write(tmp_path, body))


@every_run
def test_a_script_that_ends_too_early_says_so(tmp_path, run):
    with pytest.raises(InputError, match="ended after 1 optimizer steps, before its loop repeated itself"):
        run(write(tmp_path, SHORT.format(steps=1)))


@every_run
def test_a_script_that_catches_its_end_is_ended_again(tmp_path, run):
    body = """
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(1000):
            try:
                optimizer.zero_grad()
                loss_function(model(inputs), labels).backward()
                optimizer.step()
            except BaseException as error:
                num_ends = globals().get("num_ends", 0) + 1
                if num_ends == 2:
                    raise SystemExit(0)
        """

    assert run(write(tmp_path, body)) is not None


CHILD = """
import os, pathlib
def spawn(number):
    child = os.fork()
    if child == 0:
        pathlib.Path({folder!r}, f"child{{number}}").write_text("trained")
        raise {ending}
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""


@every_run
@pytest.mark.parametrize(("ending", "code"), [("SystemExit(7)", 7), ("OSError('gone')", 1), ("SystemExit", 0)])
def test_a_forked_child_runs_without_us_and_ends_alone(tmp_path, run, ending, code):
    home = os.getpid()
    body = CHILD.format(folder=str(tmp_path), ending=ending) + f"assert spawn(0) == {code}\n"

    with pytest.raises(InputError, match="no optimizer stepped in this process"):
        run(write(tmp_path, body))

    assert home == os.getpid()
    assert "trained" == (tmp_path / "child0").read_text()


@every_run
def test_children_forked_between_iterations_end_alone(tmp_path, run):
    body = CHILD.format(folder=str(tmp_path), ending="SystemExit(7)") + SHORT.format(steps=1000)
    script = write(tmp_path, body + "    if row < 14: assert spawn(row) == 7\n")

    assert run(script) is not None
    assert 14 == len(list(tmp_path.glob("child*")))


def test_a_missing_script_and_a_broken_one_are_told_apart(tmp_path):
    with pytest.raises(InputError, match="there is no script"):
        capture_script(tmp_path / "absent.py")
    with pytest.raises(InputError, match="is not valid Python") as caught:
        capture_script(write(tmp_path, "def (:\n", setup=""))
    assert caught.value.where.endswith("train.py:1")


@pytest.mark.slow
def test_loader_workers_run_without_hooks(tmp_path):
    body = """
        loader = DataLoader(TensorDataset(inputs, labels), batch_size=8, num_workers=1, persistent_workers=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(100):
            for batch, target in loader:
                optimizer.zero_grad()
                loss_function(model(batch), target).backward()
                optimizer.step()
        """

    graph = capture_script(write(tmp_path, body), iterations=2, warmup=1)

    assert count(graph, phase=Phase.DATA)
