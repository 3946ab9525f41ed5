"""Integer programs, row by row, solved by HiGHS.

In: columns and rows. Out: ``Solved``: values, objective and the bound that was proven. Ctrl-C ends the search and
keeps what was found. Not here: what columns mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.base.extras import require

__all__ = ["Model", "Solved"]


@dataclass(frozen=True, eq=False)
class Solved:
    """What came of it.

    Parameters
    ----------
    values : float64, or None
        By column; None where nothing feasible was found.
    objective, bound : float
        Of the values, and what no solution is below.
    is_infeasible : bool
        Proven.
    """

    values: NDArray[np.float64] | None
    objective: float
    bound: float
    is_infeasible: bool


@dataclass
class Model:
    """A program to minimize, as it grows."""

    _cost: list[float] = field(default_factory=list)
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)
    _is_integer: list[bool] = field(default_factory=list)
    _starts: list[int] = field(default_factory=lambda: [0])
    _columns: list[int] = field(default_factory=list)
    _factors: list[float] = field(default_factory=list)
    _row_low: list[float] = field(default_factory=list)
    _row_high: list[float] = field(default_factory=list)

    @property
    def num_columns(self) -> int:
        """How many there are."""
        return len(self._cost)

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return len(self._row_low)

    def column(self, low: float = 0.0, high: float = math.inf, *, cost: float = 0.0, is_integer: bool = False) -> int:
        """A new column; gives its number."""
        self._cost.append(cost)
        self._low.append(low)
        self._high.append(high)
        self._is_integer.append(is_integer)
        return self.num_columns - 1

    def choice(self, high: float = 1.0) -> int:
        """A new column that is 0 or 1; with ``high`` 0 it is 0."""
        return self.column(0.0, high, is_integer=True)

    def row(self, terms: Mapping[int, float], *, low: float = -math.inf, high: float = math.inf) -> None:
        """``low <= sum of factor times column <= high``."""
        self._columns += terms
        self._factors += terms.values()
        self._starts.append(len(self._columns))
        self._row_low.append(low)
        self._row_high.append(high)

    def solve(
        self,
        *,
        start: Mapping[int, float] | None = None,
        gap: float = 0.01,
        time_limit_s: float = 1200.0,
        num_threads: int = 0,
        seed: int = 0,
    ) -> Solved:
        """Minimize.

        Parameters
        ----------
        start : mapping of column to value, optional
            A known solution, all columns or only the whole ones.
        gap : float
            Relative, at which the search ends.
        time_limit_s : float
        num_threads, seed : int

        Raises
        ------
        MissingExtraError
            HiGHS is not installed (extra ``plan``).
        """
        highspy = require("highspy", extra="plan")
        solver = highspy.Highs()
        options = {"output_flag": False, "mip_rel_gap": gap, "time_limit": time_limit_s, "random_seed": seed}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        if num_threads:
            solver.setOptionValue("threads", num_threads)
        solver.passModel(self._build_lp(highspy))
        if start:
            columns = np.array(list(start), np.int32)
            solver.setSolution(len(columns), columns, np.array(list(start.values()), np.float64))
        solver.HandleKeyboardInterrupt = True
        solver.solve()
        return _result(solver, highspy)

    def _build_lp(self, highspy: Any) -> Any:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self.num_columns, self.num_rows
        lp.col_cost_ = np.array(self._cost)
        lp.col_lower_, lp.col_upper_ = np.array(self._low), np.array(self._high)
        lp.row_lower_, lp.row_upper_ = np.array(self._row_low), np.array(self._row_high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.array(self._starts)
        lp.a_matrix_.index_ = np.array(self._columns)
        lp.a_matrix_.value_ = np.array(self._factors)
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[item] for item in self._is_integer]
        return lp


def _result(solver: Any, highspy: Any) -> Solved:
    info, status = solver.getInfo(), solver.getModelStatus()
    is_infeasible = status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible)
    has_values = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    is_whole = bool(len(solver.getLp().integrality_))
    bound = info.mip_dual_bound if is_whole else info.objective_function_value
    return Solved(
        np.array(solver.getSolution().col_value) if has_values else None,
        float(info.objective_function_value) if has_values else math.inf,
        float(bound) if math.isfinite(bound) else -math.inf,
        is_infeasible,
    )
