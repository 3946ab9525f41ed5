"""The floor that every room stands on: errors, units, registry, the flat package."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windtunnel
from windtunnel import errors, registry, units
from windtunnel.base import extras


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_survives_the_way_between_processes(name):
    error = getattr(errors, name)("broken", where="here", fix="mend it")
    back = pickle.loads(pickle.dumps(error))

    assert (type(error), str(error), error.__dict__) == (type(back), str(back), back.__dict__)


@pytest.mark.parametrize("name", errors.__all__)
def test_one_base_class_catches_every_error(name):
    assert issubclass(getattr(errors, name), errors.WindtunnelError)


def test_an_error_says_what_where_and_what_to_do():
    expected = "rank 3 of 8 is missing\n  where: traces/\n  fix:   add its file"

    assert expected == str(errors.TraceError("rank 3 of 8 is missing", where="traces/", fix="add its file"))


@given(st.integers(0, 10**18))
def test_a_printed_duration_reads_back_within_its_digits(duration_ns):
    back = units.parse_duration(units.format_duration(duration_ns))

    assert abs(back - duration_ns) <= 0.005 * duration_ns + 0.5


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("80GiB", 80 * 2**30), ("4.5GB", 4_500_000_000), ("0B", 0), ("1 KiB", 1024)]
)
def test_decimal_and_binary_prefixes_never_mix(text, size_bytes):
    assert size_bytes == units.parse_size(text)


@pytest.mark.parametrize("text", ["", "x", "5 parsecs", "nan s", "1e999s", "--3s"])
def test_what_is_no_duration_says_how_to_write_one(text):
    with pytest.raises(errors.InputError, match="duration"):
        units.parse_duration(text)


def test_a_percentage_and_a_ratio_are_two_spellings():
    assert units.parse_ratio("5%") == units.parse_ratio("0.05") == 0.05


def test_a_misspelt_plugin_offers_the_nearest():
    with pytest.raises(errors.InputError, match="did you mean"):
        registry.get("whatif", "fusd-optimizer")


def test_two_plugins_of_one_name_name_both_packages():
    def first() -> None: ...

    def second() -> None: ...

    registry.policy("a-test-of-names", source="tests")(first)
    with pytest.raises(errors.InputError, match="two plug-ins of kind policy are called"):
        registry.policy("a-test-of-names", source="tests")(second)


def test_a_missing_extra_says_how_to_install_it():
    with pytest.raises(errors.MissingExtraError, match=r"pip install 'windtunnel\[torch\]'"):
        extras.require("no_such_module_anywhere", extra="torch")


def test_importing_the_package_needs_neither_torch_nor_numba():
    code = "import sys, windtunnel; print([m for m in ('torch', 'numba', 'pyarrow', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == found.stdout.strip()


def test_rooms_and_verbs_do_not_shadow_each_other():
    for room in pkgutil.iter_modules(windtunnel.__path__):
        importlib.import_module(f"windtunnel.{room.name}")
    for name in windtunnel.__all__:
        thing = getattr(windtunnel, name)

        assert callable(thing), name


def test_the_flat_surface_is_sorted_and_small():
    assert sorted(windtunnel.__all__) == windtunnel.__all__
    assert set(windtunnel._HOMES) == set(windtunnel.__all__)
    assert len(windtunnel.__all__) <= 25
