"""Draw the picture of the README: predicted against measured speed-up of every pair that was flown.

In: the pairs that ``python -m benchmarks.whatif_error --json docs/receipts/whatif_pairs.json`` wrote. Out:
``docs/images/predicted_measured.png``. Every pair is drawn, the bad ones too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
PAIRS = ROOT / "docs" / "receipts" / "whatif_pairs.json"
PICTURE = ROOT / "docs" / "images" / "predicted_measured.png"
# Okabe and Ito's colors, told apart by color-blind readers; markers say the same
LOOKS = (("#0072B2", "o"), ("#E69F00", "s"), ("#009E73", "^"), ("#CC79A7", "D"), ("#D55E00", "v"), ("#56B4E9", "P"))


def main() -> int:
    pairs = [pair for pair in json.loads(PAIRS.read_text()) if "error" in pair]
    errors = np.abs([pair["error"] for pair in pairs])
    figure, axes = plt.subplots(figsize=(7.2, 5.4), layout="constrained")
    ends = np.array([0.6, 2.2])
    axes.fill_between(ends, 0.85 * ends, 1.15 * ends, color="#eeeeee", label="within 15 %")
    axes.plot(ends, ends, color="#888888", linewidth=1)
    for model, (color, marker) in zip(dict.fromkeys(pair["model"] for pair in pairs), LOOKS, strict=False):
        own = [pair for pair in pairs if pair["model"] == model]
        measured = np.array([pair["measured"] for pair in own])
        spans = np.abs([[pair["measured"] - pair["low"], pair["high"] - pair["measured"]] for pair in own]).T
        predicted = [pair["predicted"] for pair in own]
        axes.errorbar(
            measured, predicted, xerr=spans, fmt=marker, color=color, markerfacecolor="none", elinewidth=1, label=model
        )
    axes.set(xscale="log", yscale="log", xlabel="measured speed-up (90 % interval)", ylabel="predicted speed-up")
    ticks = [0.7, 0.8, 1.0, 1.2, 1.5, 2.0]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(mpl.ticker.FixedLocator(ticks))
        axis.set_major_formatter(mpl.ticker.FormatStrFormatter("%.1fx"))
        axis.set_minor_locator(mpl.ticker.NullLocator())
    axes.set_title(
        f"{len(pairs)} what-ifs predicted from a capture of the baseline, then really run:\n"
        f"half of the predictions are off by less than {100 * np.median(errors):.1f} %, nine in ten by less than "
        f"{100 * np.quantile(errors, 0.9):.1f} %",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=130)
    print(PICTURE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
