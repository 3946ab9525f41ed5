"""Structured dropout is exact, counts what the paper counts, is quicker than torch's LSTM, and costs no quality.

Exact: outputs and all gradients of LSTM and GRU, in every way of their products, beside masks on whole matrices.
Counted: multiply-adds of the three products. Wall-clock, on two threads in one process, a training step of two layers:
beside our own form with masks, and ``torch.nn.LSTM`` with its dropout. Where nothing is dropped from step to step, no
size may be slower than torch. Predicted: the what-if on six cells beside its flight. Quality: a language model on
WikiText-2's shipped part, case III beside I (and IV), the same seeds. ``--seeds N --epochs N --units N --rounds N``;
``--no-quality`` leaves the last out, and does not hold.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from tests.systems.layers.nn.masked import gru_layer, lstm_layer, masks
from tests.systems.layers.nn.test_products import counted

from benchmarks import bar
from benchmarks.layer_quality.run import compare_layers
from benchmarks.whatif_error import fresh_prices
from windtunnel.flights import Ledger, verify
from windtunnel.measure import StopRule
from windtunnel.systems.layers.nn import StructuredLSTM
from windtunnel.systems.layers.nn.dropout.keep import draw, spans
from windtunnel.systems.layers.nn.dropout.products import WAYS
from windtunnel.systems.layers.nn.dropout.sequence import Dropped, Steps, gru, lstm, product

STEPS, BATCH, LAYERS = 35, 20, 2
PRECISIONS = {torch.float32: 1e-5, torch.float64: 1e-10}
# units, share, period, least over dense with masks, least over torch
SPEEDS = {
    "medium": (650, 0.5, 1, 1.25, 1.1),
    "large": (1500, 0.65, 1, 1.5, 1.3),
    "large_period_5": (1500, 0.65, 5, 1.7, 0.0),
}
CELLS = ((256, 0.5, "nr+rh"), (650, 0.5, "nr"), (650, 0.5, "nr+rh"), (650, 0.65, "rh"), (1000, 0.5, "nr+rh"),
         (1500, 0.65, "nr+rh"))  # fmt: skip
NEVER_SLOWER = (64, 200, 650, 1500)
SLOWER, PREDICTION, QUALITY = 0.97, 0.07, 0.015
RULE = StopRule(rounds=12, precision=0.01, time_limit_s=25.0, warmup=2)
TARGET = (
    "gradients equal, products counted, >= 1.25x and 1.5x over masks, >= 1.1x and 1.3x over torch, 1.7x with a period "
    "of 5, predicted within 7 %, perplexity within 1.5 %"
)


def main() -> int:
    """Compare, count, time, fly, train; print the bar; 1 if it does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("seeds", 3), ("epochs", 5), ("units", 200), ("rounds", 9), ("processes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--no-quality", action="store_true")
    options, _ = parser.parse_known_args()
    torch.set_num_threads(2)
    worst = {str(dtype): _worst(dtype) for dtype in PRECISIONS}
    miscounted = _miscounted()
    speeds = {name: _speed(*cell[:3], options.rounds) for name, cell in SPEEDS.items()}
    never = {units: _against_torch(units, options.rounds) for units in NEVER_SLOWER}
    errors = {f"{units} {place} {p}": _predicted(units, p, place) for units, p, place in CELLS}
    checks = {
        "exact": all(worst[str(dtype)] <= most for dtype, most in PRECISIONS.items()),
        "counted": not miscounted,
        **{f"{name}_masked": speeds[name]["masked"] >= cell[3] for name, cell in SPEEDS.items()},
        **{f"{name}_torch": speeds[name]["torch"] >= cell[4] for name, cell in SPEEDS.items() if cell[4]},
        "never_slower": min(never.values()) >= SLOWER,
        "predicted": max(abs(one["error"]) for one in errors.values()) <= PREDICTION,
        "quality": False,
    }
    quality = {}
    if not options.no_quality:
        found = compare_layers(
            "word-lm", ("I", "III", "IV"), num_seeds=options.seeds, epochs=options.epochs, width=options.units,
            processes=options.processes,
        )  # fmt: skip
        quality = {one.case: one.mean("perplexity") for one in found.cases}
        checks["quality"] = found.ratio("III") - 1 <= QUALITY
    holds = all(checks.values())
    bar.report(
        "structured_dropout",
        speeds["large"]["torch"],
        TARGET,
        holds,
        large_over_masked=speeds["large"]["masked"],
        medium_over_torch=speeds["medium"]["torch"],
        medium_over_masked=speeds["medium"]["masked"],
        period_5_over_masked=speeds["large_period_5"]["masked"],
        worst_prediction=max(abs(one["error"]) for one in errors.values()),
        median_prediction=statistics.median(abs(one["error"]) for one in errors.values()),
        perplexity_ratio=quality.get("III", 0.0) / quality.get("I", 1.0),
        perplexity_ratio_iv=quality.get("IV", 0.0) / quality.get("I", 1.0),
        perplexity=quality,
        speeds=speeds,
        over_torch_without_recurrent=never,
        predictions=errors,
        off=worst,
        miscounted=miscounted,
        checks=checks,
    )
    return 0 if holds else 1


# --- exact, counted ------------------------------------------------------------------------------------------


def _worst(dtype: torch.dtype, num: int = 12) -> float:
    """Largest relative deviation of an output or gradient from the masked form, all ways and both kinds."""
    worst = 0.0
    for seed in range(num):
        for way in WAYS:
            worst = max(worst, _deviation("lstm", way, dtype, seed), _deviation("gru", way, dtype, seed))
    return worst


def _deviation(kind: str, way: str, dtype: torch.dtype, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    units, hidden, batch, steps = (int(torch.randint(*ends, (), generator=generator)) for ends in
                                   ((2, 40), (2, 40), (1, 6), (1, 8)))  # fmt: skip
    num_gates, sizes = 4 if kind == "lstm" else 3, [batch] * steps
    drop_x = spans(sizes, draw(units, 0.4, range(steps), seed=seed), 1)
    drop_h = spans(sizes, draw(hidden, 0.5, range(steps), seed=seed, site=1), 1)

    def random(*size: int) -> torch.Tensor:
        return (torch.randn(size, dtype=dtype, generator=generator) / 2).requires_grad_()

    rows, gates = batch * steps, num_gates * hidden
    x, weight, recurrent = random(rows, units), random(gates, units), random(gates, hidden)
    bias, second, h, c = random(gates), random(gates), random(batch, hidden), random(batch, hidden)
    given, again = product(x, weight, bias, Dropped(drop_x, way=way)), Dropped(drop_h, way=way)
    mask_x, mask_h = masks(drop_x, rows, units, dtype), masks(drop_h, rows, hidden, dtype)
    order = Steps(tuple(sizes), bool(seed % 2))
    if kind == "lstm":
        inputs = [x, weight, recurrent, bias, h, c]
        ours = lstm(given, recurrent, h, c, order, again)
        theirs = lstm_layer(x, weight, recurrent, bias, h, c, sizes, mask_x, mask_h, is_reverse=order.is_reverse)
    else:
        inputs = [x, weight, recurrent, bias, second, h]
        ours = gru(given, recurrent, second, h, order, again)
        theirs = gru_layer(x, weight, recurrent, bias, second, h, sizes, mask_x, mask_h, is_reverse=order.is_reverse)
    pairs = zip((*ours, *_gradients(ours, inputs)), (*theirs, *_gradients(theirs, inputs)), strict=True)
    return max(float((mine - one).detach().norm()) / max(float(one.detach().norm()), 1.0) for mine, one in pairs)


def _gradients(values: tuple[torch.Tensor, ...], inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    total = sum((one * torch.linspace(-1, 1, one.numel(), dtype=one.dtype).view(one.shape)).sum() for one in values)
    return torch.autograd.grad(total, inputs)


def _miscounted() -> list[str]:
    """Products that do not take steps x batch x kept x columns multiply-adds."""
    found = []
    for units, p, group in ((650, 0.5, 1), (1500, 0.65, 1), (640, 0.5, 32)):
        sets, columns = spans([BATCH] * 3, draw(units, p, range(3), seed=0, group=group), 1), 64
        rows, kept = 3 * BATCH, round((1 - p) * units)
        x, weight, y = torch.ones(rows, units), torch.ones(units, columns), torch.ones(rows, columns)
        for name in ("gather", "runs"):
            way = WAYS[name]
            calls = {"forward": (x, weight, sets, y), "to_input": (y, weight, sets, x), "to_weight": (x, y, sets)}
            for one, given in calls.items():
                counted(getattr(way, one), *given)  # which library is quicker is found out by products too
                if rows * kept * columns != counted(getattr(way, one), *given):
                    found.append(f"{name} {one} {units}")
    return found


# --- wall-clock ----------------------------------------------------------------------------------------------


def _stepping(layer: torch.nn.Module, units: int):
    x = torch.randn(STEPS, BATCH, units, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        x.grad = None
        layer(x)[0].sum().backward()

    return step


def _speed(units: int, p: float, period: int, rounds: int) -> dict[str, float]:
    """Of a training step, ours over both others, and the spread of ours."""
    how = {"num_layers": LAYERS, "dropout": p}
    ours = {**how, "input_dropout": p, "recurrent_dropout": p, "period": period}
    steps = {
        "ours": _stepping(StructuredLSTM(units, units, **ours), units),
        "masked": _stepping(StructuredLSTM(units, units, **ours, way="dense"), units),
        "torch": _stepping(_dropping_torch(units, p), units),
    }
    timing = bar.interleave(steps, rounds, 2)
    fastest = {name: one.best for name, one in timing.items()}
    return {
        "masked": fastest["masked"] / fastest["ours"],
        "torch": fastest["torch"] / fastest["ours"],
        "ours_ms": 1e3 * fastest["ours"],
        "spread": timing["ours"].spread,
    }


def _dropping_torch(units: int, p: float) -> torch.nn.Module:
    """Torch's LSTM with its dropout between layers, and one before it, as the network has without ours."""

    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.lstm = torch.nn.Dropout(p), torch.nn.LSTM(units, units, LAYERS, dropout=p)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, object]:
            return self.lstm(self.before(x))

    return Dropping()


def _against_torch(units: int, rounds: int, p: float = 0.5) -> float:
    """Speed over torch's where nothing is dropped from step to step."""
    ours = StructuredLSTM(units, units, num_layers=LAYERS, dropout=p, input_dropout=p)
    steps = {"ours": _stepping(ours, units), "torch": _stepping(_dropping_torch(units, p), units)}
    timing = bar.interleave(steps, rounds, 2)
    return timing["torch"].best / timing["ours"].best


# --- predicted -----------------------------------------------------------------------------------------------


def _predicted(units: int, p: float, place: str) -> dict[str, float]:
    """The what-if of a training step, flown."""
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({"lstm": torch.nn.LSTM(units, units, LAYERS), "scores": torch.nn.Linear(units, 1000)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, words = torch.randn(STEPS, BATCH, units), torch.randint(0, 1000, (STEPS * BATCH,))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        scores = model["scores"](model["lstm"](x)[0]).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(scores, words)
        loss.backward()
        optimizer.step()
        return loss.detach()

    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "receipts.db")
        receipt = verify(
            step, f"structured-dropout:p={p},place={place}", model=model, optimizer=optimizer, rule=RULE,
            ledger=ledger, **fresh_prices(ledger),
        )  # fmt: skip
    return {"predicted": receipt.predicted, "measured": receipt.measured, "error": receipt.error_ratio}


if __name__ == "__main__":
    sys.exit(main())
