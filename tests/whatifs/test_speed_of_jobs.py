"""Samples and tokens of jobs that were traced without being run: which ranks share a batch is seen at the source."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.sources.test_dry_composed import COMPOSED, SHARDS, STAGES  # noqa: E402
from tests.sources.test_dry_run import AVERAGED, SPLIT, traced  # noqa: E402
from windtunnel.whatifs.speed import samples_of, speed_of, tokens_of, why_no_samples  # noqa: E402

# a language model whose sequences are split between two ranks, sharded over all
SEQUENCES = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.experimental import context_parallel

mesh = init_device_mesh("cuda", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "cp"))
both = mesh["dp", "cp"]._flatten("dp_cp")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.project, self.out = nn.Embedding(100, 64), nn.Linear(64, 192), nn.Linear(64, 100)

    def forward(self, tokens):
        heads = [part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.project(self.table(tokens)).chunk(3, -1)]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2)).float()


model = Model().to(device, torch.bfloat16)
fully_shard(model, mesh=both)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    tokens, target = (torch.randint(0, 100, (2, 256), device=device) for _ in range(2))
    with context_parallel(
        mesh["cp"], buffers=[tokens, target], buffer_seq_dims=[1, 1], no_restore_buffers={tokens, target}
    ):
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), target.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
# each rank reduces its gradients itself, or activations: messages of one kind
BY_HAND = """
model = nn.Linear(64, 64).to(device)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(5):
    model(torch.randn(8, 64, device=device)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


def of_one_rank(graph) -> int:
    """Samples that the operators of one rank show."""
    return samples_of(graph) // graph.meta.distributed["batches"]["num_replicas"]


@pytest.mark.parametrize(("inner", "num_samples"), [("sharded", 4 * 8), ("tensor parallel", 8)])
def test_a_composed_pipeline_has_the_microbatches_of_each_replica(tmp_path, inner, num_samples):
    """Two stages of four ranks: with data parallelism four batches of 8, with tensor parallelism one."""
    graph = traced(tmp_path, COMPOSED.replace("SHARD", SHARDS[inner]), 8)

    assert num_samples == samples_of(graph)
    assert 8 == speed_of(graph, 1e6).num_devices


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_pipeline_counts_each_microbatch_once(tmp_path, chunks):
    schedule = "Interleaved1F1B" if chunks > 1 else "1F1B"
    body = STAGES.replace("SCHEDULE(", f"Schedule{schedule}(").replace("NUM_CHUNKS", str(chunks))

    assert 16 == samples_of(traced(tmp_path, body, 2))


def test_ranks_that_average_gradients_have_batches_of_their_own(tmp_path):
    graph = traced(tmp_path, AVERAGED, 8)

    assert 8 == graph.meta.distributed["batches"]["num_replicas"]
    assert 0 < 8 * of_one_rank(graph) == samples_of(graph)


def test_ranks_that_split_tensors_share_a_batch(tmp_path):
    graph = traced(tmp_path, SPLIT, 16)

    assert 4 == graph.meta.distributed["batches"]["num_replicas"]
    assert 0 < 4 * of_one_rank(graph) == samples_of(graph)


def test_ranks_that_split_sequences_share_samples_and_not_tokens(tmp_path):
    graph = traced(tmp_path, SEQUENCES, 8)

    assert 4 * 2 == samples_of(graph)
    assert 4 * 2 * 256 == tokens_of(graph)


def test_what_averages_by_hand_is_not_guessed(tmp_path):
    """An all-reduce of the script's own may be of gradients as well as of activations."""
    graph = traced(tmp_path, BY_HAND, 4)

    assert 0 == samples_of(graph) == tokens_of(graph)
    assert "which ranks share a batch" in why_no_samples(graph)
