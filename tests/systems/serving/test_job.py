"""What a model answers to requests that bring something."""

import torch

from windtunnel.systems.serving.job import Served


def doubled(bodies):
    return (torch.tensor(bodies, dtype=torch.float64),)


def test_each_request_gets_its_row():
    what = Served(torch.nn.Flatten(), lambda batch: (torch.zeros(batch, 2),), preprocess=doubled)

    assert [[1.0, 2.0], [3.0, 4.0]] == [one.output for one in what.answers([[1, 2], [3, 4]])]


def test_one_that_fails_does_not_fail_the_others():
    what = Served(torch.nn.Identity(), lambda batch: (torch.zeros(batch),), preprocess=doubled)
    found = what.answers([1, None, 3])

    assert [1.0, None, 3.0] == [one.output for one in found]
    assert ["", "", ""] != [one.error for one in found]
    assert found[1].error.startswith("TypeError") or found[1].error.startswith("RuntimeError")


def test_answers_that_do_not_fit_the_requests_are_refused():
    what = Served(torch.nn.Identity(), lambda batch: (torch.zeros(batch),), doubled, lambda out: [7])

    assert "1 answers came to 2 requests" not in what.answers([1])[0].error
    assert [7, 7] == [one.output for one in what.answers([1, 2])]  # each alone
    nothing = Served(torch.nn.Identity(), lambda batch: (torch.zeros(batch),))
    assert "takes nothing from a request" in nothing.answers([1])[0].error
