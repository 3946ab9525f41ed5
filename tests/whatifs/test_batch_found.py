"""One function finds the batch, in whichever dimension it is, of a capture and of a dry run."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from windtunnel.errors import InputError  # noqa: E402
from windtunnel.sources.dry.run import dry_run  # noqa: E402
from windtunnel.sources.torch.fake import fake_capture_script  # noqa: E402
from windtunnel.whatifs.another_batch import batch_of  # noqa: E402
from windtunnel.whatifs.speed import samples_of, speed_of, tokens_of  # noqa: E402

HEAD = """
import torch
from torch import nn
import torch.nn.functional as F
"""
LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    DATA
    loss = LOSS
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
TAGGER = """
class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(80, 16), nn.LSTM(16, 24), nn.Linear(24, 6)
    def forward(self, x):
        return self.out(self.rnn(self.embed(x))[0])
model = Tagger()
"""
TIME_FIRST_ATTENTION = """
class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64)
    def forward(self, x):
        return self.out(self.layer(self.embed(x)))
model = Translator()
"""
IMAGES = """
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(16, 10))
data = torch.utils.data.TensorDataset(torch.randn(640, 3, 12, 12), torch.randint(0, 10, (640,)))
loader = iter(torch.utils.data.DataLoader(data, batch_size=64, shuffle=True))
"""
SEQUENCES = """
class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(90, 32), nn.Linear(32, 2)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    def forward(self, input_ids, attention_mask, labels):
        hidden = self.layer(self.embed(input_ids), src_key_padding_mask=attention_mask == 0)
        return F.cross_entropy(self.out(hidden[:, 0]), labels)
model = Classifier()
"""
TRANSLATOR = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project, self.bias = nn.Linear(16, 16), nn.Embedding(32, 4)
        self.register_buffer("positions", torch.arange(20))
    def forward(self, x, memory):
        q, k = (self.project(t).unflatten(-1, (4, 4)).transpose(1, 2) for t in (x, memory))
        DISTANCES
        scores = q @ k.transpose(-1, -2) + self.bias(distances).permute(2, 0, 1)
        return x + (scores.softmax(-1) @ k).transpose(1, 2).flatten(2)
class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(50, 16), nn.Linear(16, 50)
        self.layers = nn.ModuleList(Attention() for _ in range(4))
    def forward(self, source, target):
        memory, x = self.embed(source), self.embed(target)
        for layer in self.layers[:2]:
            memory = layer(memory, memory)
        for layer in self.layers[2:]:
            x = layer(x, x)
        return self.out(x + memory.mean(1, keepdim=True))
model = Translator()
"""
COMPUTED = "n = x.shape[1]; i = torch.arange(n); distances = (i[None] - i[:, None]).clamp(-16, 15) + 16"
OF_A_BUFFER = "i = self.positions[:x.shape[1]]; distances = (i[None] - i[:, None]).clamp(-16, 15) + 16"
PAIRS = (
    "x = torch.randint(0, 50, (6, 31)); source, target = x[:, :20], x[:, 20:]",
    "F.cross_entropy(model(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten())",
)
TOKENS = "model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 100))\n"
ROWS = """
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16))
X, Y = torch.randn(160, 4), torch.randn(160, 16)
"""


FULL_BATCH = """
torch.manual_seed(0)
class Messages(nn.Module):
    def __init__(self):
        super().__init__()
        self.own, self.other = nn.Linear(16, 7), nn.Linear(16, 7)
    def forward(self, x, src, dst):
        degree = torch.zeros(len(x)).index_add_(0, dst, torch.ones(len(dst))).clamp_(min=1)
        return self.own(x) + self.other(torch.zeros_like(x).index_add_(0, dst, x[src]) / degree[:, None])
model = Messages()
nodes, src, dst = torch.randn(90, 16), torch.randint(0, 90, (500,)), torch.randint(0, 90, (500,))
classes, is_trained = torch.randint(0, 7, (90,)), torch.arange(90) % 9 < 5
is_trained[0] = False
"""


def loop(data, loss):
    return LOOP.replace("DATA", data).replace("LOSS", loss)


SCRIPTS = {
    "time steps first, a loss over all of them": (
        20,
        TAGGER
        + loop(
            "x, y = torch.randint(0, 80, (35, 20)), torch.randint(0, 6, (35, 20))",
            "F.cross_entropy(model(x).flatten(0, 1), y.flatten())",
        ),
    ),
    "time steps first, a loss over the last": (
        20,
        TAGGER
        + loop("x, y = torch.randint(0, 80, (35, 20)), torch.randint(0, 6, (20,))", "F.cross_entropy(model(x)[-1], y)"),
    ),
    "time steps first, attention": (
        12,
        TIME_FIRST_ATTENTION
        + loop(
            "x = torch.randint(0, 50, (40, 12)); y = torch.randint(0, 50, (40, 12))",
            "F.cross_entropy(model(x).reshape(-1, 50), y.reshape(-1))",
        ),
    ),
    "images of a loader": (64, IMAGES + loop("x, y = next(loader)", "F.cross_entropy(model(x), y)")),
    "arguments by name": (
        6,
        SEQUENCES
        + loop(
            "b = dict(input_ids=torch.randint(0, 90, (6, 30)), attention_mask=torch.ones(6, 30), "
            "labels=torch.randint(0, 2, (6,)))",
            "model(**b)",
        ),
    ),
    "relative positions computed in each layer": (6, TRANSLATOR.replace("DISTANCES", COMPUTED) + loop(*PAIRS)),
    "relative positions of a buffer": (6, TRANSLATOR.replace("DISTANCES", OF_A_BUFFER) + loop(*PAIRS)),
    "all nodes of a graph, a loss over some": (
        0,  # 90 nodes, 500 edges, 49 classes to learn: a degree of each node is no sample of its own
        FULL_BATCH + loop("x = nodes.clone()", "F.cross_entropy(model(x, src, dst)[is_trained], classes[is_trained])"),
    ),
    "flattened tokens": (
        512,
        TOKENS
        + loop("x = torch.randint(0, 100, (512,)); y = torch.randint(0, 100, (512,))", "F.cross_entropy(model(x), y)"),
    ),
    "rows drawn from a table": (
        64,
        ROWS + loop("i = torch.randperm(160)[:64]", "F.mse_loss(model(X[i]), Y[i])"),
    ),
}


def script(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(HEAD + text)
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_batch_is_found(tmp_path, name):
    expected, text = SCRIPTS[name]
    path = script(tmp_path, text)
    captured, traced = fake_capture_script(path), dry_run(path, num_ranks=1)

    assert [expected] * 3 == [batch_of(captured), batch_of(traced), samples_of(traced)]


def test_lookups_of_relative_positions_are_no_tokens(tmp_path):
    _, text = SCRIPTS["relative positions computed in each layer"]

    path = script(tmp_path, text)

    assert [6 * (20 + 10)] * 2 == [tokens_of(fake_capture_script(path)), tokens_of(dry_run(path, num_ranks=1))]


def test_a_dry_run_knows_its_tokens(tmp_path):
    data = "x = torch.randint(0, 90, (6, 30)); y = torch.randint(0, 2, (6,))"
    path = script(tmp_path, SEQUENCES + loop(data, "model(x, torch.ones(6, 30), y)"))

    assert 6 * 30 == tokens_of(dry_run(path, num_ranks=1))


def test_a_dry_run_answers_for_a_named_dimension(tmp_path):
    traced = dry_run(script(tmp_path, SCRIPTS["time steps first, attention"][1]), num_ranks=1)

    assert [40, 12, 12] == [batch_of(traced, 0), batch_of(traced, 1), batch_of(traced, -1)]
    with pytest.raises(InputError, match="no size in dimension 3"):
        batch_of(traced, 3)


ACCUMULATED = """
model = MODEL
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
same = torch.randint(0, 50, (12, 10))
for _ in range(8):
    for _ in range(4):
        x = DATA
        (model(x).float().mean() / 4).backward()
    optimizer.step(); optimizer.zero_grad()
"""


@pytest.mark.parametrize(("model", "data"), [
    ("nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))", "torch.randn(12, 8)"),
    ("nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))", "torch.randint(0, 50, (12, 10))"),
    ("nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50))", "same"),
])  # fmt: skip
def test_all_passes_that_a_step_accumulates_count_for_its_throughput(tmp_path, model, data):
    """Four passes over 12 samples, of 10 tokens each, in a step of one second."""
    path = script(tmp_path, ACCUMULATED.replace("MODEL", model).replace("DATA", data))
    captured, traced = fake_capture_script(path), dry_run(path, num_ranks=1)
    speed, other = (speed_of(captured, 1e9, batch_size=size) for size in (0, 24))
    num_tokens = 480 if "Embedding" in model else 0

    assert [12, 12] == [batch_of(captured), batch_of(traced)]
    assert [48, 48, 48] == [samples_of(captured), samples_of(traced), speed.samples_per_s]
    assert [num_tokens, 96, 2 * num_tokens] == [speed.num_tokens, other.num_samples, other.num_tokens]


def test_passes_are_counted_whatever_the_script_does_with_their_losses(tmp_path):
    """A trainer adds up detached losses: its first pass was once taken for one of another loss."""
    text = ACCUMULATED.replace("MODEL", "nn.Linear(8, 4)").replace("DATA", "torch.randn(12, 8)")
    loss = "loss = model(x).float().mean() / 4; loss.backward(); total = total + loss.detach()"
    text = text.replace("(model(x).float().mean() / 4).backward()", loss).replace(
        "    for", "    total = 0.0\n    for", 1
    )
    path = script(tmp_path, text)

    assert [48, 48] == [samples_of(fake_capture_script(path)), samples_of(dry_run(path, num_ranks=1))]


def test_passes_that_do_not_add_into_one_gradient_count_once(tmp_path):
    """Two models in turns, and two views of a batch in one loss."""
    text = """
first, second = nn.Linear(8, 8), nn.Linear(8, 8)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (first, second)]
for _ in range(8):
    x = torch.randn(12, 8)
    (first(x) - first(x.flip(0))).pow(2).mean().backward()
    optimizers[0].step(); optimizers[0].zero_grad()
    second(x).pow(2).mean().backward()
    optimizers[1].step(); optimizers[1].zero_grad()
"""
    path = script(tmp_path, text)

    assert [12, 12] == [samples_of(fake_capture_script(path)), samples_of(dry_run(path, num_ranks=1))]


GAN = """
maker, critic = nn.Linear(32, 40), nn.Linear(40, 1)
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (maker, critic)]
data = torch.utils.data.TensorDataset(torch.randn(4800, 40))
batches = iter(torch.utils.data.DataLoader(data, batch_size=12, shuffle=True))
for _ in range(8):
    for _ in range(NUM_BATCHES):
        DATA
        fake = maker(torch.randn(12, 32)).detach()
        critic(x).mean().backward()
        critic(fake).mean().backward()
        optimizers[1].step(); optimizers[1].zero_grad()
    critic(maker(torch.randn(12, 32))).mean().backward()
    optimizers[0].step(); optimizers[0].zero_grad()
"""


@pytest.mark.parametrize("num_batches", [1, 5])
def test_all_batches_that_an_iteration_takes_from_a_loader_count_once(tmp_path, num_batches):
    """Of a GAN whose critic is trained more often, the samples of one batch were once stated; noise is no sample."""
    text = GAN.replace("DATA", "x, = next(batches)").replace("NUM_BATCHES", str(num_batches))
    path = script(tmp_path, text)
    captured, traced = fake_capture_script(path), dry_run(path, num_ranks=1)

    assert [12 * num_batches] * 2 == [samples_of(captured), samples_of(traced)]


def test_samples_of_noise_alone_are_not_guessed(tmp_path):
    text = GAN.replace("DATA", "x = torch.randn(12, 40)").replace("NUM_BATCHES", "5")

    assert 0 == samples_of(fake_capture_script(script(tmp_path, text)))


def test_parts_of_a_batch_are_other_samples_and_equal_parts_are_not(tmp_path):
    head = IMAGES + "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\nfor _ in range(8):\n"
    loop = "    x, y = next(loader)\n    for i in range(4):\n        PART\n        model(part).mean().backward()\n"
    update = "    optimizer.step(); optimizer.zero_grad()\n"
    paths = [tmp_path / name for name in ("parts.py", "same.py")]
    for path, part in zip(paths, ("part = x[16 * i : 16 * i + 16]", "part = x[:16]"), strict=True):
        path.write_text(HEAD + head + loop.replace("PART", part) + update)

    assert [64, 16] == [samples_of(fake_capture_script(path)) for path in paths]
