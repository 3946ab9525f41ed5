from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("xgboost")
pytest.importorskip("sklearn")

from benchmarks.peers.rankers import RANKER_TRAINING, train_ranker  # noqa: E402
from benchmarks.peers.ranking import (  # noqa: E402
    Calibration,
    best_times,
    lambda_rank_loss,
    pairwise_rank_accuracy,
    task_batches,
    throughput,
)
from benchmarks.peers.recursive_lstm import (  # noqa: E402
    LSTM_TRAINING,
    RecursiveLstm,
    parse_tree,
    train_recursive_lstm,
)
from benchmarks.peers.trees import _SummedError, pooled, train_trees  # noqa: E402

from tests.systems.tensor_programs.model.small_set import small_set, split_sorted  # noqa: E402
from windtunnel.cost.metrics import mape  # noqa: E402
from windtunnel.systems.tensor_programs.model.samples import labels_of  # noqa: E402
from windtunnel.systems.tensor_programs.model.splits import split_by_device  # noqa: E402


@pytest.fixture(scope="module")
def programs():
    return small_set()


@pytest.fixture(scope="module")
def split(programs):
    return split_sorted(programs, "slow")


@pytest.mark.parametrize("kind", ["cdmpp", "ansor", "metaschedule", "strong", "strong-efficiency"])
def test_trees_learn(programs, split, kind):
    """Better than the geometric mean of the training times."""
    truth = labels_of(programs, split.test)
    constant = np.exp(np.log(labels_of(programs, split.train)).mean()) * np.ones_like(truth)

    model = train_trees(programs, split, kind)

    assert mape(model.predict(programs, split.test), truth) < 0.6 * mape(constant, truth)


def test_strong_trees_see_devices(programs):
    split = split_by_device(programs, "fast")
    model = train_trees(programs, replace(split, train=np.concatenate([split.train, split.target])), "strong")
    pair = np.array([[split.train[0, 0], 0], [split.train[0, 0], 1]])

    slow, fast = model.predict(programs, pair)

    assert fast < slow


def test_pooling_by_hand(programs):
    samples = np.array([[0, 0], [11, 0]])
    begin, end = programs.leaf_offset[11:13]
    rows = programs.features[begin:end].astype(np.float32)

    strong = pooled(programs, samples, is_strong=True)[1]

    np.testing.assert_allclose(pooled(programs, samples, is_strong=False)[1], rows.sum(0), rtol=1e-6)
    np.testing.assert_allclose(strong, np.concatenate([rows.sum(0), rows.max(0), rows.mean(0), [len(rows)]]), rtol=1e-5)


def test_gradient_of_summed_scores():
    """Against finite differences."""
    error = _SummedError(np.array([0, 2, 5]), np.array([0.5, 1.0]))
    predicted = np.array([0.1, 0.3, 0.2, 0.4, 0.6])
    loss = lambda p: 0.5 * (np.array([0.5, 1.0]) * (error.sums(p) - error.label) ** 2).sum()  # noqa: E731
    numeric = [(loss(predicted + 1e-6 * unit) - loss(predicted - 1e-6 * unit)) / 2e-6 for unit in np.eye(5)]

    np.testing.assert_allclose(error.gradient(predicted)[0], numeric, rtol=1e-6)


def test_best_times_by_task_and_device(programs):
    samples = np.column_stack([np.arange(programs.num_programs), np.zeros(programs.num_programs, dtype=int)])

    best = best_times(programs, samples)

    for number in range(len(programs.tasks)):
        rows = programs.task == number
        assert (best[rows] == programs.mean_s[rows, 0].min()).all()
    assert throughput(programs, samples).max() == 1


def test_ranking_loss_prefers_the_right_order():
    label = torch.tensor([0.2, 1.0, 0.5])
    right, wrong = torch.tensor([0.0, 4.0, 2.0]), torch.tensor([4.0, 0.0, 2.0])

    assert lambda_rank_loss([right], [label]) < lambda_rank_loss([wrong], [label])
    score = torch.zeros(3, requires_grad=True)
    lambda_rank_loss([score], [label]).backward()
    assert score.grad[1] < score.grad[2] < score.grad[0] or score.grad[1] < 0 < score.grad[0]


def test_calibration_is_increasing():
    generator = np.random.default_rng(0)
    scores = generator.random(50)

    shares = Calibration.fit(scores, np.clip(scores + 0.1 * generator.standard_normal(50), 0, 1))(
        np.linspace(-1, 2, 30)
    )

    assert (np.diff(shares) >= 0).all()
    assert shares.min() >= 1e-3


def test_task_batches_hold_whole_tasks(programs, split):
    seen = []
    for batch in task_batches(programs, split.train, 30, seed=1):
        for rows in batch:
            assert len(set(programs.task[split.train[rows, 0]])) == 1
            seen.append(rows)
    assert sorted(np.concatenate(seen)) == list(range(len(split.train)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tenset-mlp", "tlp"])
def test_rankers_learn_the_order(programs, split, kind):
    config = replace(RANKER_TRAINING[kind], max_epochs=25, batch_size=40, learning_rate=2e-3)

    ranker, history = train_ranker(programs, split, kind, config)

    truth = labels_of(programs, split.test)
    task = programs.task[split.test[:, 0]]
    assert pairwise_rank_accuracy(-ranker.scores(programs, split.test), truth, task) > 0.7
    assert np.isfinite(ranker.predict(programs, split.test)).all()
    assert history.samples_per_s > 0


def test_tree_of_the_published_serialization():
    """A loop with a store and a loop with a store."""
    serialized = np.array([0, 1, 2, -1, 3, 4, -1, -1, -1, -1])

    assert parse_tree(serialized, np.array([2, 5])) == ((0, (1,)),)


def test_recursive_lstm_sees_order_and_depth():
    torch.manual_seed(0)
    model = RecursiveLstm(4, width=8).eval()
    leaves = torch.rand(1, 2, 4)

    with torch.no_grad():
        values = [float(model(tree, leaves)) for tree in (((0, (1,)),), ((1, (0,)),), ((0, 1),), (((0, (1,)),),))]

    assert len(set(values)) == 4


@pytest.mark.slow
def test_recursive_lstm_learns(programs, split):
    truth = labels_of(programs, split.test)
    constant = np.exp(np.log(labels_of(programs, split.train)).mean()) * np.ones_like(truth)

    model, history = train_recursive_lstm(programs, split, replace(LSTM_TRAINING, max_epochs=15), width=32)

    assert mape(model.predict(programs, split.test), truth) < mape(constant, truth)
    assert history.num_samples == 15 * len(split.train) or history.reason != "all epochs done"


def test_pairs_in_order_by_task():
    measured, task = np.array([1.0, 2.0, 4.0, 10.0, 20.0]), np.array([0, 0, 0, 1, 1])
    predicted = np.array([1.09, 1.82, 4.0, 22.0, 21.0])

    assert pairwise_rank_accuracy(predicted, measured, task) == pytest.approx((1 + 0) / 2)
    assert pairwise_rank_accuracy(np.ones(5), measured, task) == pytest.approx(0.5)
