"""Dropout of a dry run: one operator with a mask where it drops, and nothing where it does not."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from windtunnel.sources.torch.device_operators import dropout  # noqa: E402


class Seen(TorchDispatchMode):
    """Names of what is called."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("given", "drops"), [
    ({}, True),
    ({"training": False}, False),
    ({"p": 0.0}, False),
    ({"p": 1.0}, False),
    ({"inplace": True}, False),
])  # fmt: skip
def test_a_mask_is_kept_where_units_are_dropped(given, drops):
    with Seen() as seen:
        dropout(torch.ones(4, 3), **given)

    assert drops == any(name.startswith("native_dropout") for name in seen.names)


def test_of_no_numbers_none_are_dropped():
    with Seen() as seen:
        dropout(torch.ones(0, 3))

    assert not any(name.startswith("native_dropout") for name in seen.names)
