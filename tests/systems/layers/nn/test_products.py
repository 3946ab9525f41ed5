import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

torch = pytest.importorskip("torch")

from tests.systems.layers.nn.masked import masks  # noqa: E402
from windtunnel.systems.layers.nn.dropout.keep import draw, spans  # noqa: E402
from windtunnel.systems.layers.nn.dropout.products import WAYS  # noqa: E402


def found_spans(sizes, num_units, dropout, group=1, seed=0):
    return spans(sizes, draw(num_units, dropout, range(len(sizes)), seed=seed, group=group), period=1)


@given(
    sampled_from(sorted(WAYS)),
    integers(1, 5),
    integers(1, 4),
    integers(1, 20),
    integers(1, 9),
    floats(0, 1),
    integers(1, 6),
    integers(0, 99),
)
def test_every_way_is_the_masked_product_and_its_gradients(
    name, steps, batch, num_units, columns, dropout, group, seed
):
    found = found_spans([batch] * steps, num_units, dropout, min(group, num_units), seed)
    generator = torch.Generator().manual_seed(seed)
    rows = steps * batch
    x, weight, dy = (
        torch.randn(size, dtype=torch.double, generator=generator)
        for size in ((rows, num_units), (num_units, columns), (rows, columns))
    )
    mask = masks(found, rows, num_units, torch.double)
    out, dx = torch.ones_like(dy), torch.full_like(x, 7.0)
    WAYS[name].forward(x, weight, found, out)
    WAYS[name].to_input(dy, weight, found, dx)
    dweight = WAYS[name].to_weight(x, dy, found)

    torch.testing.assert_close(out, 1 + (x * mask) @ weight, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dx, (dy @ weight.t()) * mask, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dweight, (x * mask).t() @ dy, rtol=1e-12, atol=1e-12)


def counted(function, *arguments):
    """Multiply-adds of all matrix products that torch is asked for."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        total = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func._opname
            if name in ("mm", "addmm", "addmm_", "_linear_pointwise"):
                first, second = (args[-2], args[-1]) if name.startswith("addmm") else args[:2]
                columns = second.shape[0] if name == "_linear_pointwise" else second.shape[1]
                Count.total += first.shape[0] * first.shape[1] * columns
            return func(*args, **(kwargs or {}))

    with Count():
        function(*arguments)
    return Count.total


@pytest.mark.parametrize("name", ["gather", "runs"])
@pytest.mark.parametrize(("num_units", "dropout", "group"), [(650, 0.5, 1), (1500, 0.65, 1), (640, 0.5, 32)])
def test_what_is_multiplied_is_what_the_formula_counts(name, num_units, dropout, group):
    batch, steps, columns = 4, 3, 16
    found = found_spans([batch] * steps, num_units, dropout, group)
    x, weight = torch.ones(batch * steps, num_units), torch.ones(num_units, columns)
    y, dx = torch.ones(batch * steps, columns), torch.ones(batch * steps, num_units)
    way = WAYS[name]
    kept = round((1 - dropout) * num_units)
    expected = steps * batch * kept * columns  # B x k x 4H, B x 4H x k and 4H x B x k of the table
    counted(way.forward, x, weight, found, y)  # which library is quicker is measured once, by products too

    assert expected == counted(way.forward, x, weight, found, y)
    counted(way.to_input, y, weight, found, dx)
    assert expected == counted(way.to_input, y, weight, found, dx)
    counted(way.to_weight, x, y, found)
    assert expected == counted(way.to_weight, x, y, found)
