"""What is asked, as text: types, units and ranges of parameters, and changes that exclude each other."""

import contextlib
import inspect

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from, text

from windtunnel import registry
from windtunnel.errors import InputError
from windtunnel.whatifs import parse_request, parse_requests, parse_step
from windtunnel.whatifs.request import parse_value


@pytest.mark.parametrize(
    ("asked", "message", "fix"),
    [
        ("batch-size:factor=1e300", "factor cannot be '1e300'", "1e-06 to 1,000,000"),
        ("batch-size:factor=nan", "factor cannot be 'nan'", "a number that has an end"),
        ("batch-size:factor=-2", "factor cannot be '-2'", "1e-06 to 1,000,000"),
        ("loader-workers:num_workers=2.5", "num_workers cannot be '2.5'", "a whole number"),
        ("loader-workers:num_workers=inf", "num_workers cannot be 'inf'", "a number that has an end"),
        ("data-parallel:num_ranks=0", "num_ranks cannot be '0'", "1 to 2,147,483,647"),
        ("data-parallel:num_ranks=two", "num_ranks cannot be 'two'", "a whole number"),
        ("data-parallel:latency_ns=-5us", "below nothing", "90s or 2.5ms"),
        ("data-parallel:latency_ns=400d", "latency_ns cannot be '400d'", "0, or 1 to 86,400,000,000,000"),
        ("data-parallel:bucket_bytes=25M", "no known unit of size", "did you mean 25MB"),
        ("cuda-graphs:with_update=perhaps", "with_update cannot be 'perhaps'", "yes or no"),
    ],
)
def test_a_value_that_no_computation_can_hold_is_refused_where_it_is_read(asked, message, fix):
    with pytest.raises(InputError) as refused:
        parse_request(asked)

    assert message in str(refused.value)
    assert fix in refused.value.fix


def test_workloads_and_cost_models_are_asked_by_the_same_rules():
    with pytest.raises(InputError, match="batch_size cannot be '-4'"):
        parse_step("mlp:batch_size=-4", kind="workload")
    assert {"num_workers": 0} == parse_step("cnn:num_workers=0", kind="workload").parameters


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("amp+amp", "amp is asked twice"),
        ("fused-optimizer+foreach-optimizer", "exclude each other"),
        ("data-parallel+zero-1+zero-2", "zero-1 and zero-2 exclude each other"),
        ("data-parallel+top-k+powersgd", "top-k and powersgd exclude each other"),
    ],
)
def test_changes_that_exclude_each_other_are_not_asked_together(asked, message):
    """Twice the same reduced precision would count its gain twice."""
    with pytest.raises(InputError, match=message):
        parse_request(asked)


def test_changes_of_different_things_go_together():
    assert "faster-cpu+faster-device" == str(parse_request("faster-cpu+faster-device"))
    assert 2 == len(parse_requests("amp,amp"))


def test_the_sign_of_an_exponent_joins_nothing():
    assert {"factor": 1000.0} == parse_request("faster-cpu:factor=1e+3").steps[0].parameters


def _parameters():
    found = []
    for kind in ("whatif", "workload", "cost_model"):
        for plugin in registry.all(kind).values():
            found += [(plugin.name, key, parameter) for key, parameter in plugin.parameters.items()]
    return found


@given(sampled_from(_parameters()), floats() | integers() | text(max_size=12))
def test_any_value_is_read_or_refused_kindly(known, value):
    name, key, parameter = known
    with contextlib.suppress(InputError):
        found = parse_value(key, parameter, str(value), name)

        assert not isinstance(found, float) or 0 <= found <= 2**60


def test_every_default_may_be_given():
    for name, key, parameter in _parameters():
        if isinstance(parameter.default, int | float):
            assert parameter.default == parse_value(key, parameter, str(parameter.default), name)


def test_types_may_stand_where_others_write_their_names():
    """A plug-in without postponed annotations has types."""

    def plugin(graph, size: int | None = None, share: float = 0.5): ...

    parameters = inspect.signature(plugin).parameters

    assert 3 == parse_value("size", parameters["size"], "3", "plugin")
    assert parse_value("size", parameters["size"], "none", "plugin") is None
    assert 0.25 == parse_value("share", parameters["share"], "0.25", "plugin")


def test_what_a_whatif_is_asked_with_by_default_can_be_asked_by_hand():
    """A text that the printed parameters show must mean the same when it is typed."""
    for name, plugin in registry.all("whatif").items():
        texts = {
            key: parameter.default
            for key, parameter in plugin.parameters.items()
            if isinstance(parameter.default, str) and parameter.default
        }
        given = ",".join(f"{key}={value}" for key, value in texts.items())
        (step,) = parse_request(f"{name}:{given}" if given else name).steps

        assert texts == dict(step.parameters)


def test_a_plus_in_a_text_ends_no_step_and_a_misspelt_one_behind_a_number_does():
    both = parse_request("structured-dropout:place=nr+rh,p=0.3+block-circulant:k=8")

    assert [{"place": "nr+rh", "p": 0.3}, {"k": 8}] == [dict(step.parameters) for step in both.steps]
    with pytest.raises(InputError, match="no whatif is called 'chanels-last'"):
        parse_request("batch-size:factor=2+chanels-last")
