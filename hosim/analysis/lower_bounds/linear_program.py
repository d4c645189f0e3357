"""A linear program that is built row by row, and a lower bound on its minimum that does not trust
the solver.

HiGHS, in scipy, works with tolerances. :meth:`LinearProgram.floor` takes the multipliers that it
finds for the rows and adds up what they prove: for multipliers of at least 0, the minimum of the
objective less the multiplied rows over the box of the variables is a lower bound, however the
multipliers came about (Neumaier and Shcherbina, Mathematical Programming 99, 2004).
"""

from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

_SOLVED, _NOTHING_FITS = 0, 2
_MARGIN = 1e-7
_ROUNDING = 1e-6

Term = tuple[int, float]
"""A variable's number and its coefficient."""


def whole_ns(bound: float) -> int:
    """The whole nanoseconds that a bound of floats proves, less what their sums may be off by.

    >>> whole_ns(89.3), whole_ns(90.00001), whole_ns(0.0)
    (90, 90, 0)
    """
    return ceil(bound - _ROUNDING * (bound + 1))


class SolverStopped(Exception):  # noqa: N818
    """The solver has given up: there is no solution, and no proof that there is none."""


class LinearProgram:
    """Minimise one variable under rows ``terms >= limit``; every variable lies between two finite
    numbers.
    """

    def __init__(self) -> None:
        self.low: list[float] = []
        self.high: list[float] = []
        self._row: list[int] = []
        self._column: list[int] = []
        self._value: list[float] = []
        self._limits: list[float] = []

    def variable(self, low: float = 0.0, high: float = 1.0) -> int:
        """The number of a new variable."""
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def at_least(self, terms: Iterable[Term], limit: float) -> None:
        """Add a row: the sum of the terms is at least ``limit``."""
        row = len(self._limits)
        for variable, coefficient in terms:
            self._row.append(row)
            self._column.append(variable)
            self._value.append(coefficient)
        self._limits.append(limit)

    @property
    def entries(self) -> int:
        """Return the number of coefficients in the rows."""
        return len(self._value)

    def floor(
        self, objective: int, fixed: Mapping[int, float] | None = None
    ) -> tuple[float, Any] | None:
        """A lower bound on variable ``objective``, and the values of all variables where the solver
        stopped; some may be ``fixed``.

        ``None`` if nothing satisfies the rows, which is proved in the same way; raises
        :class:`SolverStopped` if the solver gives up.
        """
        import numpy as np

        low, high = np.array(self.low), np.array(self.high)
        for variable, value in (fixed or {}).items():
            low[variable] = high[variable] = value
        status, bound, values = self._solved(objective, low, high, slack=False)
        if status == _NOTHING_FITS and self._solved(objective, low, high, slack=True)[1] > _MARGIN:
            return None
        if status != _SOLVED:
            raise SolverStopped
        return bound, values

    def _solved(
        self, objective: int, low: Any, high: Any, *, slack: bool
    ) -> tuple[int, float, Any]:
        """Status, lower bound and values. With ``slack`` the objective is one number that is added
        to the left side of every row.
        """
        import numpy as np
        from scipy.optimize import linprog
        from scipy.sparse import coo_matrix, csr_matrix, hstack

        limits = np.array(self._limits)
        rows = coo_matrix(
            (self._value, (self._row, self._column)), shape=(len(limits), len(low))
        ).tocsr()
        if slack:
            rows = hstack((rows, csr_matrix(np.ones((len(limits), 1)))), format="csr")
            low, high, objective = (
                np.append(low, 0.0),
                np.append(high, max(1.0, 2 * float(limits.max()))),
                len(low),
            )
        cost = np.zeros(len(low))
        cost[objective] = 1.0
        found = linprog(
            cost, A_ub=-rows, b_ub=-limits, bounds=np.column_stack((low, high)), method="highs"
        )
        if found.status != _SOLVED:
            return found.status, 0.0, None
        multipliers = np.maximum(-found.ineqlin.marginals, 0.0)
        left = cost - rows.T @ multipliers
        return (
            _SOLVED,
            float(multipliers @ limits + np.minimum(left * low, left * high).sum()),
            found.x,
        )
