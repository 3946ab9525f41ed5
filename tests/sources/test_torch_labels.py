"""Names of modules and blocks on their way through torch's exports."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from windtunnel.sources.torch.profile import escape_label, plain


@given(st.text())
def test_a_name_comes_back_whatever_it_holds(name):
    assert name == plain(escape_label(name))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_escaped_name_needs_no_escape_in_json(name):
    assert escape_label(name) == json.loads(f'"{escape_label(name)}"')


def test_a_plain_name_stays_as_it_is():
    assert "encoder.layers.0" == escape_label("encoder.layers.0") == plain("encoder.layers.0")
    assert 'a"b' == plain("a%22b")
