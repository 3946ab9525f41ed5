"""A data set that stays on the host takes no memory of a GPU; what the script puts on the device does."""

import pytest

from windtunnel.hardware import device
from windtunnel.sources.memory.script import track_script

pytest.importorskip("torch", reason="needs the extra torch")

NUM_SAMPLES, WIDTH, BATCH = 20_000, 64, 32
DATA_BYTES = NUM_SAMPLES * (WIDTH * 4 + 8)
INPUT_BYTES = BATCH * WIDTH * 4
LABEL_BYTES = BATCH * 8  # which autograd keeps, too: then they count with the feature maps

SCRIPT = f"""
import torch
device = "cuda" if torch.cuda.is_available() else "cpu"
data, labels = torch.randn({NUM_SAMPLES}, {WIDTH})DATA_TO, torch.randint(10, ({NUM_SAMPLES},))DATA_TO
model = torch.nn.Linear({WIDTH}, 10)MODEL_TO
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    index = BATCH
    inputs, targets = data[index]BATCH_TO, labels[index]BATCH_TO
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()
"""
SLICE = f"slice({BATCH} * step, {BATCH} * step + {BATCH})"
RANDOM = f"torch.randint({NUM_SAMPLES}, ({BATCH},))"
TO = ".to(device)"


def input_bytes(tmp_path, batch, *, data_to="", model_to="", batch_to="", on="h100"):
    script = tmp_path / "train.py"
    text = SCRIPT.replace("DATA_TO", data_to).replace("MODEL_TO", model_to).replace("BATCH_TO", batch_to)
    script.write_text(text.replace("BATCH", batch))
    profile = track_script(script, fake=True, chip=device(on) if on else None)
    return profile.at_most()["input"]


@pytest.mark.parametrize("batch", [SLICE, RANDOM])
def test_of_data_on_the_host_the_gpu_holds_the_batch(tmp_path, batch):
    moved = input_bytes(tmp_path, batch, model_to=TO, batch_to=TO)

    assert INPUT_BYTES == moved


@pytest.mark.parametrize("batch", [SLICE, RANDOM])
def test_a_script_without_a_device_is_imagined_with_its_data_on_the_host(tmp_path, batch):
    imagined = input_bytes(tmp_path, batch)

    assert INPUT_BYTES <= imagined <= INPUT_BYTES + LABEL_BYTES


def test_data_that_the_script_puts_on_the_device_count(tmp_path):
    assert DATA_BYTES == input_bytes(tmp_path, SLICE, data_to=TO, model_to=TO)


def test_data_of_which_every_step_reads_all_count(tmp_path):
    assert DATA_BYTES == input_bytes(tmp_path, "slice(None)")


def test_on_this_host_data_count_as_they_do_in_a_real_run(tmp_path):
    assert DATA_BYTES == input_bytes(tmp_path, SLICE, on="")
