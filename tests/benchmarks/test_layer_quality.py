import numpy as np
import pytest

from windtunnel.errors import InputError

torch = pytest.importorskip("torch")

from benchmarks.layer_quality.circulant import circulant_network  # noqa: E402
from benchmarks.layer_quality.dropping import CASES, Recurrent, Scores  # noqa: E402
from benchmarks.layer_quality.run import compare_layers  # noqa: E402
from benchmarks.layer_quality.tasks import train_words  # noqa: E402
from benchmarks.layer_quality.words import WordText  # noqa: E402

from windtunnel.systems.layers.nn import BlockCirculantConv2d, BlockCirculantLinear  # noqa: E402


def counting(length):
    """Words that follow one another in a circle: what comes next is certain."""
    words = np.arange(length) % 20 + 5
    return WordText("a circle", 25, words, words[:400], words[:400])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_case_learns_what_follows(case):
    score = train_words(counting(40_000), case, 0, 3, 32, 0.2)

    assert score.metrics["perplexity"] < 15  # 20 words, so that not to know is 20
    assert 3 == len(score.by_epoch)


def test_cases_of_one_seed_begin_with_the_same_weights_and_are_the_same_function():
    given = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(1))
    outputs = []
    for case in CASES:
        torch.manual_seed(0)
        recurrent, scores = Recurrent(case, 6, 8, 2, 0.5), Scores(case, 8, 5, 0.5)
        outputs.append(scores.eval()(recurrent.eval()(given)[0]))

    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0])


def test_what_is_dropped_together_is_what_the_case_says():
    """Of ones through a layer that copies, one sees what was dropped where."""
    patterns = {}
    for case in ("I", "III", "IV"):
        torch.manual_seed(0)
        scores = Scores(case, 16, 16, 0.5)
        with torch.no_grad():
            scores.linear.weight.copy_(torch.eye(16))
            scores.linear.bias.zero_()
        patterns[case] = scores(torch.ones(6, 4, 16)) > 0

    over_batch = {case: bool((one == one[:, :1]).all()) for case, one in patterns.items()}
    over_steps = {case: bool((one == one[:1]).all()) for case, one in patterns.items()}
    assert {"I": False, "III": True, "IV": True} == over_batch
    assert {"I": False, "III": False, "IV": True} == over_steps


def test_blocks_replace_all_but_the_first_convolution_and_the_scores():
    model = circulant_network("convolutions", "k=8", 3, 32, 16)

    kinds = [type(one) for one in model if hasattr(one, "weight")]
    assert [torch.nn.Conv2d, *[BlockCirculantConv2d] * 3, BlockCirculantLinear, torch.nn.Linear] == kinds


@pytest.mark.slow
def test_a_comparison_trains_each_case_on_each_seed_and_repeats_itself():
    found = compare_layers("mnist", ("dense", "k=4"), num_seeds=2, epochs=1, width=16)
    again = compare_layers("mnist", ("dense", "k=4"), num_seeds=2, epochs=1, width=16, processes=2)

    assert found.to_dict() == again.to_dict()
    assert [2, 2] == [len(one.scores) for one in found.cases]
    dense, blocks = (one.scores[0].num_weights for one in found.cases)
    assert blocks < dense / 3


@pytest.mark.parametrize(
    ("task", "cases", "said"),
    [
        ("words", (), "no task is called 'words'"),
        ("word-lm", ("V",), "no case of dropout is called 'V'"),
        ("mnist", ("k=1",), "'k=1' is no kind of layers"),
    ],
)
def test_what_is_not_known_is_said(task, cases, said):
    with pytest.raises(InputError, match=said):
        compare_layers(task, cases)


def test_a_number_that_cannot_be_trained_with_is_refused():
    with pytest.raises(InputError, match="cannot be trained"):
        compare_layers("mnist", p=1.0)
