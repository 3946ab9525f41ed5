"""The sequence, table, graph and reinforcement half of the suite really trains, on the data that it names."""

import contextlib
import dataclasses
import gc
import gzip
import importlib.util
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

from tests.shared_data import ROOT, shared_path
from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.systems.suite.workloads import speech
from windtunnel.workloads import texts
from windtunnel.workloads.workload import Workload

torch = pytest.importorskip("torch", reason="needs the extra torch")

DOMAINS = {
    "a3c": "reinforcement learning",
    "bert": "language",
    "decoder-lm": "language",
    "deep-speech-2": "speech",
    "dlrm": "recommendation",
    "graph-network": "graphs",
    "moe-lm": "language",
    "ncf": "recommendation",
    "seq2seq": "translation",
    "translation-transformer": "translation",
}
EXTRAS = {"a3c": "gymnasium", "bert": "transformers", "graph-network": "torch_geometric"}
LONGER = {"bert", "deep-speech-2", "graph-network", "moe-lm", "seq2seq", "translation-transformer"}
LOSS_NAMES = sorted(set(DOMAINS) - {"a3c"})
STEPPING = [pytest.param(name, marks=[pytest.mark.slow] if name == "a3c" else []) for name in DOMAINS]
DRY = [pytest.param(name, marks=[pytest.mark.slow] if name == "deep-speech-2" else []) for name in DOMAINS]
TRAINING = [pytest.param(name, marks=[pytest.mark.slow] if name in LONGER else []) for name in LOSS_NAMES]


@pytest.fixture
def make(monkeypatch):
    """Make workloads on synthesized data, and close them."""
    monkeypatch.delenv("WINDTUNNEL_DATA", raising=False)
    made = []

    def maker(name, size="tiny", **options) -> Workload:
        if name in EXTRAS and importlib.util.find_spec(EXTRAS[name]) is None:
            pytest.skip("needs the extra suite")
        made.append(registry.get("workload", name).function(size=size, **options))
        return made[-1]

    yield maker
    for workload in made:
        workload.close()


def losses(workload, num_steps):
    return [float(workload.step()) for _ in range(num_steps)]


def parameters(workload):
    return [parameter for model in workload.models for parameter in model.parameters()]


@pytest.mark.parametrize("name", DOMAINS)
def test_it_is_registered_with_its_domain_and_its_source(name):
    plugin = registry.get("workload", name)

    assert DOMAINS[name] == plugin.domain
    assert any(year.isdigit() and len(year) == 4 for year in plugin.source.replace(";", " ").replace(",", " ").split())
    assert ["size", "batch_size", "seed"] == list(plugin.parameters)


@pytest.mark.parametrize("name", STEPPING)
def test_a_few_steps_change_every_parameter(name, make):
    workload = make(name)
    before = [parameter.detach().clone() for parameter in parameters(workload)]

    found = losses(workload, 2)

    after = parameters(workload)
    assert all(math.isfinite(loss) for loss in found)
    assert len(before) == sum(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@pytest.mark.parametrize("name", LOSS_NAMES)
def test_the_same_seed_gives_the_same_losses_and_another_seed_others(name, make):
    first, second, other = (losses(make(name, seed=seed), 2) for seed in (3, 3, 4))

    assert first == pytest.approx(second, rel=1e-4)
    assert first != pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("name", TRAINING)
def test_the_loss_falls_on_fresh_batches(name, make):
    found = losses(make(name), 40)

    assert np.mean(found[-5:]) < np.mean(found[:5])


@pytest.mark.parametrize("name", DRY)
def test_it_runs_without_memory_and_without_data(name, make):
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    with FakeTensorMode():
        workload = make(name)
        loss = workload.step()

    assert isinstance(loss, FakeTensor)
    assert () == loss.shape
    assert not loss.requires_grad


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("decoder-lm", 6_738_415_616),  # Llama 7B
        ("moe-lm", 46_702_792_704),  # Mixtral 8x7B
        ("bert", 335_174_458),  # BERT-large with the masked-word head of transformers
        ("translation-transformer", 63_082_496),  # base: the paper rounds to 65 million
        ("dlrm", 33_762_577 * 16 + 155_984 + 320_001),  # Criteo Kaggle's categories times 16, bottom and top
        ("a3c", 4 * 16 * 64 + 16 + 16 * 32 * 16 + 32 + 2592 * 256 + 256 + 4 * 257),
    ],
)
def test_the_paper_size_has_the_published_number_of_parameters(name, num_parameters, make):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        workload = make(name, size="paper")

    assert num_parameters == sum(parameter.numel() for parameter in parameters(workload))


@pytest.mark.parametrize("name", DOMAINS)
def test_an_unknown_size_is_refused(name):
    if name in EXTRAS:
        pytest.importorskip(EXTRAS[name])

    with pytest.raises(InputError, match="'huge'"):
        registry.get("workload", name).function(size="huge")


@pytest.mark.parametrize("name", sorted(set(LOSS_NAMES) - {"graph-network"}))
def test_nothing_global_is_left_behind(name, make):
    before = (torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled(), list(warnings.filters))

    make(name).step()

    assert before == (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        list(warnings.filters),
    )


# units


def test_tokens_of_translation_are_words_and_ends_without_padding():
    pairs = [(np.array([5, 6]), np.array([8])), (np.array([7]), np.array([9, 10]))]

    batch = texts.pad_pairs(pairs, 3)

    assert 2 + (1 + 1) + 1 + (2 + 1) == batch.num_tokens
    assert [[5, 6, 0], [7, 0, 0]] == batch.source.tolist()
    assert [[2, 8, 3, 0], [2, 9, 10, 3]] == batch.target.tolist()


@pytest.mark.parametrize("name", ["seq2seq", "translation-transformer"])
def test_a_translation_step_counts_the_tokens_of_its_batch(name, make):
    workload = make(name, batch_size=3, seed=5)
    batch = texts.translations(1000, 5).draw(3, np.random.default_rng(5))

    workload.step()

    assert "tokens" == workload.unit
    assert (batch.source != 0).sum() + (batch.target[:, 1:] != 0).sum() == workload.units()


@pytest.mark.parametrize("name", ["bert", "decoder-lm", "moe-lm"])
def test_a_language_step_counts_every_place(name, make):
    workload = make(name, batch_size=3)

    losses(workload, 2)

    assert 2 * 3 * 32 == workload.units()


def test_a_speech_step_counts_its_seconds(make):
    workload = make("deep-speech-2", batch_size=2, seed=1)
    buckets = {0.6: 0.3, 0.9: 0.4, 1.2: 0.3}
    batch = speech.Voice.of(41, buckets, 1).draw(2, np.random.default_rng(1))

    workload.step()

    assert "seconds of audio" == workload.unit
    assert sum(batch.num_frames) / 100 == pytest.approx(workload.units())
    assert not batch.spectra[0, 0, :, batch.num_frames[0] :].any()


# data


def test_synthesized_data_is_called_so(make):
    assert all(make(name).data.startswith("synthetic: ") for name in LOSS_NAMES)


def test_real_text_is_used_where_it_lies(tmp_path, monkeypatch, make):
    story = ["Preface", "*** START OF THIS BOOK ***", *["a b a b c"] * 9, "*** END OF THIS BOOK ***", "licence"]
    files = {
        "multi30k/train.en.gz": ["A man .", "Two men run ."],
        "multi30k/train.de.gz": ["Ein Mann .", "Zwei Männer rennen ."],
        "gutenberg/war_and_peace.txt.gz": story,
    }
    for name, lines in files.items():
        path = tmp_path / "text" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress("\n".join(lines).encode()))
    monkeypatch.setenv("WINDTUNNEL_DATA", str(tmp_path))

    pairs, text = texts.translations(100, 0), texts.Text.of(8, 0)

    assert [3, 4] == [len(source) for source, _ in pairs.pairs]
    assert "Multi30k" in pairs.origin
    assert [5, 6, 5, 6, 7] * 9 == text.tokens.tolist()
    assert "War and Peace" in make("decoder-lm").data


@pytest.mark.slow
def test_the_shipped_corpora_are_what_they_should_be(monkeypatch, make):
    folder = shared_path("text/multi30k/train.en.gz").parents[2]
    monkeypatch.setenv("WINDTUNNEL_DATA", str(folder))

    pairs, text = texts.translations(8000, 0), texts.Text.of(18_000, 0)

    assert 28_900 < len(pairs.pairs) <= 29_000
    assert 13 == pytest.approx(np.mean([len(source) for source, _ in pairs.pairs]), abs=0.5)
    assert 500_000 < len(text.tokens) < 800_000
    assert "Multi30k" in make("seq2seq").data
    assert "War and Peace" in make("bert").data
    assert "War and Peace" in make("deep-speech-2").data


def test_an_invented_translation_is_the_sentence_reversed_word_by_word():
    pairs = texts.translations(50, 0, num_pairs=400).pairs

    meaning = {}
    for source, target in pairs:
        assert len(source) == len(target)
        for word, translated in zip(source, target[::-1], strict=True):
            assert translated == meaning.setdefault(word, translated)
    assert len(meaning) == len(set(meaning.values()))


def test_words_follow_the_law_of_zipf_and_mandelbrot():
    drawn = texts.zipf(4, 200_000, np.random.default_rng(0))

    shares = 1 / (np.arange(4) + 2.7)
    assert np.bincount(drawn) / len(drawn) == pytest.approx(shares / shares.sum(), abs=0.005)


def test_a_bucket_holds_sentences_of_like_length():
    pairs = texts.translations(50, 0, num_pairs=400)

    batch = pairs.draw(16, np.random.default_rng(0))

    length = batch.source.shape[1]
    longest = np.maximum((batch.source != 0).sum(axis=1), (batch.target != 0).sum(axis=1) - 1)
    assert (longest > length - 8).all()
    assert (longest <= length).all()


def test_a_speaker_leaves_room_for_every_letter():
    batch = speech.Voice.of(11, {1.0: 1.0}, 0).draw(20, np.random.default_rng(0))

    for frames, count, labels in zip(batch.num_frames, batch.num_labels, batch.labels, strict=True):
        repeats = int((labels[1:count] == labels[: count - 1]).sum())
        assert count + repeats <= math.ceil(frames / 2)
        assert 0.7 <= frames / 100 <= 1.0
        assert labels[:count].all()


# the parts that only one workload has


def test_the_ctc_operator_is_the_loss_of_torch():
    from windtunnel.systems.suite.workloads.ctc import ctc_loss

    torch.manual_seed(0)
    scores = torch.randn(12, 3, 5, requires_grad=True)
    labels = torch.tensor([[1, 2, 2, 0], [4, 0, 0, 0], [3, 1, 2, 4]])
    num_frames, num_labels = [12, 10, 9], [3, 1, 4]

    ours = ctc_loss(scores.log_softmax(-1), labels, num_frames, num_labels)
    (our_gradient,) = torch.autograd.grad(ours, scores)
    theirs = torch.nn.functional.ctc_loss(scores.log_softmax(-1), labels, num_frames, num_labels)
    (their_gradient,) = torch.autograd.grad(theirs, scores)

    assert theirs.item() == ours.item()
    assert torch.equal(their_gradient, our_gradient)


def test_fake_tensors_know_the_shapes_of_the_ctc_operator():
    from windtunnel.systems.suite.workloads.ctc import _operator

    scores = torch.randn(6, 2, 4, requires_grad=True)
    arguments = (scores.log_softmax(-1).detach().requires_grad_(), torch.tensor([[1, 2], [3, 0]]), [6, 5], [2, 1])

    torch.library.opcheck(_operator(), arguments, test_utils=("test_schema", "test_faketensor"))


def test_words_find_seats_in_order_until_an_expert_is_full():
    from windtunnel.systems.suite.workloads.moe_lm import assign_seats

    chosen = torch.tensor([[0, 1], [0, 1], [0, 2]])

    seats = assign_seats(chosen, num_experts=3, capacity=2)

    nowhere = 6
    assert [[0, 2], [1, 3], [nowhere, 4]] == seats.tolist()


def test_even_routing_has_an_imbalance_of_one_and_one_expert_for_all_has_more():
    from windtunnel.systems.suite.workloads.moe_lm import imbalance

    even = imbalance(torch.full((4, 4), 0.25), torch.arange(4))
    lonely = imbalance(torch.eye(4)[torch.zeros(4, dtype=torch.long)], torch.zeros(4, dtype=torch.long))

    assert 1.0 == even.item()
    assert 4.0 == lonely.item()


def test_experts_equal_the_slow_sum_over_words():
    from windtunnel.systems.suite.workloads.moe_lm import PRESETS, experts

    torch.manual_seed(0)
    layer = experts(dataclasses.replace(PRESETS["tiny"], capacity_factor=2.0))  # a seat for every choice
    words, imbalances = torch.randn(1, 5, 64), []

    fast = layer(words, imbalances)[0]

    for word, found in zip(words[0], fast, strict=True):
        weights, chosen = layer.router(word).softmax(-1).topk(2)
        answers = torch.stack([_answer(layer, expert, word) for expert in chosen])
        assert torch.allclose(weights / weights.sum() @ answers, found, atol=1e-4)
    assert 1 == len(imbalances)


def _answer(layer, expert, word):
    return (torch.nn.functional.silu(word @ layer.gate[expert]) * (word @ layer.up[expert])) @ layer.down[expert]


def test_words_without_a_seat_get_no_answer():
    from windtunnel.systems.suite.workloads.moe_lm import PRESETS, experts

    layer = experts(dataclasses.replace(PRESETS["tiny"], capacity_factor=1e-9))  # one seat in each expert
    same = torch.randn(64).expand(1, 3, 64)

    found = layer(same, [])[0]

    assert found[0].any()
    assert not found[1:].any()


def test_of_the_words_fifteen_percent_are_asked_for_and_most_of_these_hidden():
    pytest.importorskip("transformers", reason="needs the extra suite")
    from windtunnel.systems.suite.workloads.bert import IGNORED, mask_words

    words = np.full((400, 100), 7)
    shown, labels = mask_words(words, 1000, np.random.default_rng(0))

    asked = labels != IGNORED
    assert 0.15 == pytest.approx(asked.mean(), abs=0.01)
    assert 0.8 == pytest.approx((shown[asked] == texts.MASK).mean(), abs=0.02)
    assert 0.1 == pytest.approx((shown[asked] == 7).mean(), abs=0.02)
    assert (shown[~asked] == 7).all()


def test_only_the_rows_that_were_read_are_updated(make):
    workload = make("dlrm", batch_size=4)
    tables = [table.weight for table in workload.model.tables]
    before = [table.detach().clone() for table in tables]

    workload.step()

    assert all(table.grad.is_sparse for table in tables)
    for old, table in zip(before, tables, strict=True):
        changed = (old != table).any(dim=1).nonzero().flatten()
        assert set(changed.tolist()) <= set(table.grad.coalesce().indices()[0].tolist())


def test_sampled_neighbors_are_neighbors_and_links_lead_to_who_drew_them():
    from windtunnel.systems.suite.workloads.graph_network import PRESETS, batch_edges, citations

    random = np.random.default_rng(0)
    graph = citations(PRESETS["tiny"], random)
    nodes = np.array([3, 1000])

    drawn = graph.sample(nodes, 4, random)

    for node, neighbors in zip(nodes, drawn.reshape(2, 4), strict=True):
        assert set(neighbors) <= set(graph.neighbors[graph.starts[node] : graph.starts[node + 1]])
    far, near = batch_edges(2, (1, 2))
    assert [[2, 3], [0, 1]] == near.tolist()
    assert [[4, 5, 6, 7, 8, 9, 10, 11], [0, 0, 1, 1, 2, 2, 3, 3]] == far.tolist()


# reinforcement


def test_the_environment_keeps_the_rules_of_gymnasium():
    pytest.importorskip("gymnasium", reason="needs the extra suite")
    from gymnasium.utils.env_checker import check_env

    from windtunnel.systems.suite.workloads.catch import Court, catch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*", UserWarning, "gymnasium")  # advice about rendering and registration
        check_env(catch(Court(8, 4, paddle=1, num_balls=2)), skip_render_check=True)


@pytest.mark.parametrize("follows", [True, False])
def test_who_follows_the_ball_catches_it_and_who_flees_does_not(follows):
    pytest.importorskip("gymnasium", reason="needs the extra suite")
    from windtunnel.systems.suite.workloads.catch import Court, catch

    environment = catch(Court(8, 8, paddle=3, num_balls=5))
    picture, _ = environment.reset(seed=1)
    total, ended = 0.0, False
    while not ended:
        ball = int(np.argwhere(picture == 255)[0][1])
        paddle = int(np.flatnonzero(picture[-1] == 128)[0]) + 1
        side = np.sign(ball - paddle) if follows else (1 if ball < 4 else -1)
        picture, reward, ended, _, _ = environment.step(1 + side)
        total += reward

    assert (5.0 if follows else -5.0) == total


def test_returns_stop_at_the_end_of_an_episode():
    from windtunnel.systems.suite.workloads.a3c import n_step_returns

    rewards = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    goes_on = torch.tensor([[1.0, 0.0], [1.0, 1.0]])

    returns = n_step_returns(rewards, goes_on, torch.tensor([10.0, 20.0]))

    assert torch.allclose(torch.tensor([[0.99 * 11.9, 1.0], [11.9, 0.99 * 20]]), returns)


def test_a_batch_is_made_of_whole_messages():
    pytest.importorskip("gymnasium", reason="needs the extra suite")

    with pytest.raises(InputError, match="multiple of the 8"):
        registry.get("workload", "a3c").function(size="tiny", batch_size=9)


def children():
    """Process ids of living actors whose parent is this process."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"_actors" in (folder / "cmdline").read_bytes():
                found.add(int(folder.name))
    return found


def is_alive(process_id):
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here")


@pytest.mark.slow
@needs_proc
def test_no_actor_is_left_after_close(make):
    before = children()
    workload = make("a3c")
    workload.step()

    assert 2 == len(children() - before)
    assert "frames" == workload.unit
    assert 160 == workload.units()
    workload.close()
    assert before == children()
    workload.close()
    with pytest.raises(InputError, match="have ended"):
        workload.step()


@pytest.mark.slow
@needs_proc
def test_actors_end_with_their_workload(make):
    pytest.importorskip("gymnasium", reason="needs the extra suite")
    before = children()
    workload = registry.get("workload", "a3c").function(size="tiny")
    assert 2 == len(children() - before)

    del workload
    gc.collect()

    assert before == children()


@pytest.mark.slow
@needs_proc
def test_actors_die_when_their_parent_dies():
    pytest.importorskip("gymnasium", reason="needs the extra suite")
    script = (
        "import os\n"
        "from tests.workloads.test_suite_sequences import children\n"
        "from windtunnel.systems.suite.workloads.a3c import a3c\n"
        "workload = a3c(size='tiny')\n"
        "workload.step()\n"
        "print(*children(), flush=True)\n"
        "os._exit(1)\n"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, cwd=ROOT)
    orphans = [int(word) for word in done.stdout.split()]

    assert 2 == len(orphans)
    assert wait_until(lambda: not any(is_alive(process_id) for process_id in orphans))


@pytest.mark.slow
@needs_proc
def test_a_dead_actor_is_reported(make, monkeypatch):
    workload = make("a3c")
    workload.step()
    for process_id in children():
        os.kill(process_id, 9)

    with pytest.raises(InputError, match="has died"):
        losses(workload, 5)


@pytest.mark.slow
def test_the_return_rises(make):
    workload = make("a3c")
    losses(workload, 10)
    early = workload.objective()

    losses(workload, 110)

    assert workload.objective() < early - 0.3
