"""Programs that compute nothing do what they do in a real run: under memory --fake, capture --fake and dry-run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.sources.uncomputed_scripts import CUDA, HEAD, REAL, SLICES  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.hardware import device  # noqa: E402
from windtunnel.sources.dry.run import dry_run  # noqa: E402
from windtunnel.sources.memory.fake_mode import fake_tensors, value_of  # noqa: E402
from windtunnel.sources.memory.script import track_script  # noqa: E402
from windtunnel.sources.torch.fake import fake_capture_script  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    return path


def num_products(graph):
    return sum("mm" in op for op in graph.tasks.strings("op").to_numpy().tolist())


@pytest.mark.parametrize("name", REAL)
def test_memory_without_computing_is_that_of_a_real_run(tmp_path, name):
    path = script(tmp_path, REAL[name])
    real, fake = track_script(path), track_script(path, fake=True)

    # what an operator allocates for itself is known only when it runs
    assert fake.peak_bytes == pytest.approx(real.peak_without_workspace_bytes, rel=0.02)


@pytest.mark.parametrize("name", CUDA)
def test_a_script_for_a_device_that_is_not_there_runs_under_every_fake_tracer(tmp_path, name):
    path = script(tmp_path, CUDA[name])
    followed, captured, traced = track_script(path, fake=True), fake_capture_script(path), dry_run(path, num_ranks=1)

    assert followed.peak_bytes == traced.meta.distributed["peak_bytes"]["0"]
    assert followed.by_category()["weight"] > 0
    assert num_products(captured) >= num_products(traced) >= 2


@pytest.mark.parametrize("reentrant", ["False", "True"])
def test_attention_of_a_device_is_recomputed_as_it_was_computed(tmp_path, reentrant):
    name = "checkpointed" if reentrant == "False" else "reentrant"

    profile = track_script(script(tmp_path, REAL[name]), fake=True, chip=device("h100"))

    assert profile.by_category()["feature map"] > 0


def test_a_larger_batch_of_slices_holds_more(tmp_path):
    text = HEAD + SLICES
    small = track_script(script(tmp_path, text), fake=True, chip=device("h100"))
    large = track_script(script(tmp_path, text.replace("(6,)", "(24,)")), fake=True, chip=device("h100"))

    assert large.at_most()["feature map"] == pytest.approx(4 * small.at_most()["feature map"], rel=0.1)


@pytest.mark.parametrize("run", [lambda path: track_script(path, fake=True), fake_capture_script,
                                 lambda path: dry_run(path, num_ranks=1)])  # fmt: skip
def test_an_empty_batch_is_refused(tmp_path, run):
    text = (HEAD + SLICES).replace("return x, y", "return x[:0], y[:0]")

    with pytest.raises(
        InputError, match=r"Decoder is called with an empty batch, a tensor of shape \[0, 16\]"
    ) as error:
        run(script(tmp_path, text))
    assert "train.py" in error.value.where


@pytest.mark.parametrize("run", [track_script, fake_capture_script])
def test_a_decision_by_a_value_that_depends_on_weights_is_refused_unless_it_may_be_guessed(tmp_path, run):
    text = (HEAD + SLICES).replace("    optimizer.step()", "    if loss.item() < 3.0:\n        optimizer.step()")
    path = script(tmp_path, text + "    optimizer.step()\n")
    options = {"fake": True} if run is track_script else {}

    with pytest.raises(InputError, match="decides by a value that only a real run has") as error:
        run(path, **options)
    assert "--guess-values" in error.value.fix
    assert run(path, guesses=True, **options)


def test_an_optimizer_that_decides_by_gradients_is_refused(tmp_path):
    with pytest.raises(InputError, match="decides by a value"):
        track_script(script(tmp_path, HEAD + LBFGS), fake=True)


def test_a_script_that_fails_for_another_reason_says_so(tmp_path):
    text = (HEAD + SLICES).replace("return x, y", "return x, y.missing")

    with pytest.raises(InputError, match="has no attribute 'missing'"):
        track_script(script(tmp_path, text), fake=True)


def test_values_follow_from_numbers_draws_and_arrays():
    with fake_tensors():
        drawn = torch.randint(3, 9, (5,))
        mask = torch.arange(6) % 2 == 0
        chosen = torch.arange(6)[mask]
        known, weight = value_of(drawn.sum()), torch.nn.Linear(2, 2).weight

        assert 15 <= known.item() <= 40
        assert [0, 2, 4] == value_of(chosen).tolist()
        assert 3 == int(mask.sum())
        assert value_of(weight.detach()) is None
        assert value_of(torch.zeros(2**21)) is None


def test_a_known_mask_selects_as_many_of_unknown_values_as_in_a_real_run():
    """The page promises it: what is masked by values of the script itself is as large as in a real run."""
    with fake_tensors():
        rows, cells = torch.arange(10) % 3 == 0, torch.arange(30).reshape(10, 3) % 4 == 0
        output = torch.nn.Linear(8, 3)(torch.randn(10, 8))
        selected = [output[rows], output[cells], torch.masked_select(output, cells), output[:, cells[0]]]
        sum(item.sum() for item in selected).backward()  # writes gradients through the masks
        output.detach()[rows] = selected[0].detach()

        assert [(4, 3), (8,), (8,), (10, 1)] == [tuple(item.shape) for item in selected]


def test_an_unknown_mask_is_refused_with_the_line_that_uses_it():
    def select_positive():
        with fake_tensors():
            output = torch.nn.Linear(8, 3)(torch.randn(10, 8))
            return output[output > 0]

    with pytest.raises(InputError, match="cannot be predicted without its values") as refused:
        select_positive()

    assert refused.value.where.rpartition(":")[0] == __file__


def test_a_value_is_lost_for_all_views_once_something_unknown_is_written():
    with fake_tensors():
        buffer = torch.zeros(4)
        row, weight = buffer[1:], torch.nn.Linear(3, 1).weight
        buffer.add_(1)
        before = value_of(row).tolist()
        row.copy_(weight.detach()[0])

        assert [1, 1, 1] == before
        assert value_of(buffer) is None
        assert value_of(row) is None


def test_a_model_of_fake_tensors_is_copied_with_its_shared_weights():
    from copy import deepcopy

    from windtunnel.sources.dry.no_compute import skip_compute
    from windtunnel.sources.dry.values import Values

    with skip_compute(Values()):
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
        model[1].weight = model[0].weight
        copy = deepcopy(model)

    assert copy[0].weight is copy[1].weight
    assert copy[0].weight is not model[0].weight
    assert copy[0].weight.requires_grad
    assert isinstance(copy[0].weight, torch.nn.Parameter)


LBFGS = """
model = nn.Linear(30, 3)
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=2)
x, y = torch.randn(50, 30), torch.randint(0, 3, (50,))
def closure():
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss
for _ in range(20):
    optimizer.step(closure)
"""
