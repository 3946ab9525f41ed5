from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.systems.tensor_programs.model.small_set import small_set  # noqa: E402
from windtunnel.errors import InputError  # noqa: E402
from windtunnel.systems.tensor_programs.model.network import PRESETS, Network  # noqa: E402
from windtunnel.systems.tensor_programs.model.samples import Buckets, Normalizer  # noqa: E402


def tiny(**changes):
    return replace(PRESETS["small"], num_layers=1, feed_forward=32, projection=(16, 16, 8), decoder=(8, 8), **changes)


def warm(network, num_context=0):
    """Give batch normalization statistics that are not 0 and 1."""
    network.train()
    for count in (1, 2, 3, 16):
        network(torch.rand(9, count, 164), torch.rand(9, num_context) if num_context else None)
    return network.eval()


def test_sizes_of_the_presets():
    """The released configuration has about 14 million parameters for one number of leaves."""
    paper = Network(PRESETS["paper"])
    sizes = {name: sum(value.numel() for value in part.parameters()) for name, part in paper.named_children()}

    assert sum(sizes.values()) - sizes["projections"] + sum(
        value.numel() for value in paper.projections["5"].parameters()
    ) == pytest.approx(14e6, rel=0.05)
    assert len(paper.encoder.layers) == 11
    assert paper.last.in_features == 930
    assert list(paper.projections) == [str(count) for count in range(1, 17)]
    assert paper.program_norm is paper.context_norm
    assert not any(True for _ in paper.program_norm.parameters())


@pytest.mark.parametrize("fusion", ["add", "multiply", "concatenate"])
def test_fusions_run_and_see_the_context(fusion):
    network = warm(Network(tiny(fusion=fusion, num_context=3)), 3)
    leaves = torch.rand(1, 2, 164).expand(2, 2, 164)

    with torch.no_grad():
        predicted, latent = network(leaves, torch.rand(2, 3))

    assert latent.shape == (2, 8)
    assert predicted[0] != predicted[1]


def test_features_that_heads_cannot_share():
    with pytest.raises(InputError, match="among 4 heads"):
        Network(replace(PRESETS["small"], num_features=6))


def test_buckets_scale_then_add_places():
    from windtunnel.systems.tensor_programs.model.encoding import positional_encoding

    programs = small_set(num_tasks=4, per_task=3)
    samples = np.column_stack([np.arange(programs.num_programs), np.zeros(programs.num_programs, dtype=int)])
    normalizer = Normalizer.fit(programs, samples)
    buckets = Buckets(programs, samples, normalizer)

    for batch in buckets.batches(4):
        for row, leaves in zip(batch.rows, batch.leaves, strict=True):
            index = slice(programs.leaf_offset[row], programs.leaf_offset[row + 1])
            expected = normalizer.features(programs.features[index]) + positional_encoding(programs.leaf_pos[index])
            np.testing.assert_allclose(leaves.numpy(), expected, rtol=1e-6, atol=1e-6)
        seconds, clamped = normalizer.decode(batch.label.numpy(), programs, samples[batch.rows])
        np.testing.assert_allclose(seconds, programs.mean_s[batch.rows, 0], rtol=1e-5)
        assert clamped == 0
