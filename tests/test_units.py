"""Sizes, times, rates and ratios as people write them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis.strategies import text

from windtunnel.errors import InputError
from windtunnel.units import parse_duration, parse_rate, parse_ratio, parse_size


@pytest.mark.parametrize(
    ("written", "fix"),
    [
        ("16G", "did you mean 16GB (1,000,000,000 bytes each) or 16GiB (1,073,741,824 bytes each)?"),
        ("16gb", "did you mean 16GB (1,000,000,000 bytes each)?"),
        ("4k", "did you mean 4kB (1,000 bytes each) or 4KiB (1,024 bytes each)?"),
        ("16", "use one of B, kB"),
        ("16 apples", "use one of B, kB"),
    ],
)
def test_a_size_that_may_mean_two_things_is_refused_with_both(written, fix):
    with pytest.raises(InputError, match="no known unit of size") as refused:
        parse_size(written)

    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("parse", "written"),
    [(parse_size, "-5GiB"), (parse_duration, "-1s"), (parse_rate, "-1 GB/s"), (parse_ratio, "-5%")],
)
def test_no_quantity_is_negative(parse, written):
    with pytest.raises(InputError, match="below nothing"):
        parse(written)


@pytest.mark.parametrize(("parse", "written"), [(parse_size, "1e300GiB"), (parse_duration, "1e12d")])
def test_a_quantity_that_64_bits_cannot_hold_is_refused(parse, written):
    with pytest.raises(InputError, match="too large"):
        parse(written)


@given(text(max_size=20))
def test_any_text_is_read_or_refused(written):
    for parse in (parse_size, parse_duration, parse_rate, parse_ratio):
        with contextlib.suppress(InputError):
            assert parse(written) >= 0
