"""The loss of a language model in chunks of rows: equal to that of all rows at once, with less memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra torch")

from windtunnel.cost.rerun.chunked_loss import cross_entropy_in_chunks  # noqa: E402


def leaves(num_rows, width=6, classes=11, *, bias=True, dtype=torch.float64):
    torch.manual_seed(num_rows)
    shapes = [(num_rows, width), (classes, width), *([(classes,)] if bias else [])]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def labels_of(num_rows, classes=11, ignored=0):
    labels = torch.randint(0, classes, (num_rows,))
    labels[:ignored] = -100
    return labels


@settings(max_examples=25, deadline=None)
@given(
    num_rows=st.integers(2, 20), num_chunks=st.integers(1, 30), ignored=st.integers(0, 1), bias=st.booleans(),
    reduction=st.sampled_from(["mean", "sum"]), smoothing=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
def test_chunks_have_the_loss_and_the_gradients_of_all_rows(num_rows, num_chunks, ignored, bias, reduction, smoothing):
    labels = labels_of(num_rows, ignored=ignored)
    options = {"reduction": reduction, "label_smoothing": smoothing}
    whole, parts = leaves(num_rows, bias=bias), leaves(num_rows, bias=bias)
    expected = torch.nn.functional.cross_entropy(torch.nn.functional.linear(*whole), labels, **options)
    result = cross_entropy_in_chunks(*(parts if bias else [*parts, None]), labels, num_chunks=num_chunks, **options)
    (3 * expected).backward()
    (3 * result).backward()

    torch.testing.assert_close(expected, result, rtol=1e-5, atol=1e-8)
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-5)


def test_only_what_trains_gets_gradients():
    rows, weight, bias = leaves(4)
    weight.requires_grad_(False)
    cross_entropy_in_chunks(rows, weight, bias, labels_of(4), num_chunks=2).backward()

    assert weight.grad is None
    assert rows.grad is not None
    assert bias.grad is not None


def test_autocast_computes_products_in_its_type_and_the_loss_in_float32():
    rows, weight, bias = leaves(8, dtype=torch.float32)
    labels = labels_of(8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = torch.nn.functional.cross_entropy(torch.nn.functional.linear(rows, weight, bias), labels)
        result = cross_entropy_in_chunks(rows, weight, bias, labels, num_chunks=2)
    result.backward()

    assert torch.float32 is result.dtype
    torch.testing.assert_close(expected, result, rtol=1e-5, atol=1e-8)
    assert torch.float32 is weight.grad.dtype


def test_no_more_than_a_chunk_of_logits_is_there():
    from windtunnel.sources.memory.watch import Watch

    num_rows, classes, width = 64, 2000, 4
    rows, weight, _ = leaves(num_rows, width, classes, dtype=torch.float32)
    labels = labels_of(num_rows, classes)

    def peak_bytes(num_chunks):
        watch = Watch()
        with watch:
            cross_entropy_in_chunks(rows, weight, None, labels, num_chunks=num_chunks).backward()
        rows.grad = weight.grad = None
        return watch.profile().peak_bytes

    logits = 4 * num_rows * classes
    assert peak_bytes(16) < logits < peak_bytes(1)
