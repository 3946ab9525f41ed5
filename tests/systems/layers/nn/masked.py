"""The slow, obvious form: dropout as masks on whole matrices, one step after the other, by torch's own autograd."""

import torch


def masks(spans, num_rows, num_units, dtype):
    """Scale of every row and unit."""
    whole = torch.ones(num_rows, num_units, dtype=dtype)
    for span in spans:
        for row in range(span.first, span.last):
            whole[row] = 0
            for unit in span.keep.index.tolist():
                whole[row, unit] = span.keep.scale
    return whole


def lstm_layer(x, weight, recurrent, bias, h, c, batch_sizes, drop_x, drop_h, *, is_reverse=False):
    """One direction over packed rows; gives output, last h, last c."""
    first, outputs = [0], {}
    for size in batch_sizes:
        first.append(first[-1] + size)
    steps = range(len(batch_sizes))
    for step in reversed(steps) if is_reverse else steps:
        rows = slice(first[step], first[step + 1])
        size = batch_sizes[step]
        gates = (x[rows] * drop_x[rows]) @ weight.t() + (h[:size] * drop_h[rows]) @ recurrent.t() + bias
        i, f, g, o = gates.chunk(4, dim=1)
        cell = f.sigmoid() * c[:size] + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        h, c = torch.cat([state, h[size:]]), torch.cat([cell, c[size:]])
        outputs[step] = state
    return torch.cat([outputs[step] for step in steps]), h, c


def gru_layer(x, weight, recurrent, bias_x, bias_h, h, batch_sizes, drop_x, drop_h, *, is_reverse=False):
    """The same of a GRU; gives output, last h."""
    first, outputs = [0], {}
    for size in batch_sizes:
        first.append(first[-1] + size)
    steps = range(len(batch_sizes))
    for step in reversed(steps) if is_reverse else steps:
        rows = slice(first[step], first[step + 1])
        size = batch_sizes[step]
        rx, zx, nx = ((x[rows] * drop_x[rows]) @ weight.t() + bias_x).chunk(3, dim=1)
        rh, zh, nh = ((h[:size] * drop_h[rows]) @ recurrent.t() + bias_h).chunk(3, dim=1)
        r, z = (rx + rh).sigmoid(), (zx + zh).sigmoid()
        n = (nx + r * nh).tanh()
        state = (1 - z) * n + z * h[:size]
        h = torch.cat([state, h[size:]])
        outputs[step] = state
    return torch.cat([outputs[step] for step in steps]), h
