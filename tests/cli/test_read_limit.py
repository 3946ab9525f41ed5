"""What a file may take can be said where it is read."""

import gzip
import json

import pytest

from tests.cli.command import windtunnel
from tests.sources.kineto_traces import op


@pytest.fixture
def wide(tmp_path):
    """A trace of two operators and seventy megabytes of white space."""
    path = tmp_path / "wide.json.gz"
    text = json.dumps([op("a", 1, 1), op("b", 3, 1)]).replace(", {", "," + " " * (70 << 20) + "{", 1)
    path.write_bytes(gzip.compress(text.encode(), 1))
    return path


@pytest.mark.parametrize("verb", [("explain",), ("explain", "--table", "resources")])
def test_a_file_over_the_limit_says_the_option_that_raises_it(wide, verb):
    refused = windtunnel(*verb, wide)
    read = windtunnel(*verb, wide, "--read-limit", "1GiB")

    assert 2 == refused.code
    assert "the limit is 64.0 MiB" in refused.stderr
    assert "--read-limit SIZE" in refused.stderr
    assert 0 == read.code


def test_a_limit_needs_a_unit_that_exists(wide):
    refused = windtunnel("explain", wide, "--read-limit", "much")

    assert 2 == refused.code
    assert "much" in refused.stderr
