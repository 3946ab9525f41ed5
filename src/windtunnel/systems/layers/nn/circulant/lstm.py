"""LSTMs whose weights are circulant blocks, in place of torch's.

In: sequences. Out: what torch's LSTM gives, from a k-th of the weights. Not here: products (``products``).

Source: Li et al., E-RNN, HPCA 2019.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.errors import InputError
from windtunnel.systems.layers.nn.circulant.algebra import nearest
from windtunnel.systems.layers.nn.circulant.layers import BlockCirculantLinear
from windtunnel.systems.layers.nn.circulant.products import AUTOMATIC

__all__ = ["BlockCirculantLSTM"]

Tensor = torch.Tensor


class BlockCirculantLSTM(torch.nn.Module):
    """One or more layers of an LSTM whose eight products are of circulant blocks.

    Parameters
    ----------
    input_size, hidden_size, num_layers : int
    k : int
        Of the four gates together: [4 H, D] and [4 H, H].
    batch_first, way
        As torch's, and as of :class:`BlockCirculantLinear`.

    Examples
    --------
    >>> output, (h, c) = BlockCirculantLSTM(8, 16, k=4)(torch.ones(5, 3, 8))
    >>> tuple(output.shape), tuple(h.shape)
    ((5, 3, 16), (1, 3, 16))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        k: int,
        batch_first: bool = False,
        way: str = AUTOMATIC,
        dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        self.hidden_size, self.batch_first = hidden_size, batch_first
        about: dict[str, Any] = {"way": way, "dtype": dtype, "device": device}
        sizes = [input_size, *[hidden_size] * (num_layers - 1)]
        self.inputs = torch.nn.ModuleList([BlockCirculantLinear(size, 4 * hidden_size, k, **about) for size in sizes])
        self.states = torch.nn.ModuleList(
            [BlockCirculantLinear(hidden_size, 4 * hidden_size, k, bias=False, **about) for _ in sizes]
        )

    @classmethod
    def from_dense(cls, layer: torch.nn.LSTM, k: int, *, way: str = AUTOMATIC) -> BlockCirculantLSTM:
        """The nearest one to torch's.

        Raises
        ------
        InputError
            It has two directions, a projection or dropout.
        """
        if layer.bidirectional or layer.proj_size or layer.dropout:
            raise InputError("no block-circulant LSTM has two directions, projections or dropout")
        weight = layer.weight_ih_l0
        created = cls(
            layer.input_size,
            layer.hidden_size,
            layer.num_layers,
            k=k,
            batch_first=layer.batch_first,
            way=way,
            dtype=weight.dtype,
            device=weight.device,
        )
        with torch.no_grad():
            for depth in range(layer.num_layers):
                inputs: Any = created.inputs[depth]
                states: Any = created.states[depth]
                inputs.weight.copy_(nearest(getattr(layer, f"weight_ih_l{depth}"), inputs.blocks))
                states.weight.copy_(nearest(getattr(layer, f"weight_hh_l{depth}"), states.blocks))
                inputs.bias.zero_()
                if layer.bias:
                    inputs.bias.copy_(getattr(layer, f"bias_ih_l{depth}") + getattr(layer, f"bias_hh_l{depth}"))
        return created.train(layer.training)

    def forward(self, x: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[T, B, D] to [T, B, H], and the last states, each [layers, B, H]."""
        data = x.transpose(0, 1) if self.batch_first else x
        zeros = data.new_zeros(len(self.inputs), data.shape[1], self.hidden_size)
        last = []
        for depth, (inputs, states) in enumerate(zip(self.inputs, self.states, strict=True)):
            h, c = (zeros[depth], zeros[depth]) if hx is None else (hx[0][depth], hx[1][depth])
            outputs = []
            for gates in inputs(data).unbind(0):
                i, f, g, o = (gates + states(h)).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
                outputs.append(h)
            data = torch.stack(outputs)
            last.append((h, c))
        h_last, c_last = (torch.stack(parts) for parts in zip(*last, strict=True))
        return data.transpose(0, 1) if self.batch_first else data, (h_last, c_last)
