"""Logs of users' runs, and runtimes fitted to them."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.logged.fitted_runtime import (
        FittedRuntime,
        RunBeside,
        fit_runtime,
        fitted_speed,
    )
    from hosim.validate.logged.log_lines import LoggedRun, figures_in, read_logged_runs
    from hosim.validate.logged.server_lines import ServedStep, server_figures
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "fitted_runtime": "FittedRuntime RunBeside fit_runtime fitted_speed",
            "log_lines": "LoggedRun figures_in read_logged_runs",
            "server_lines": "ServedStep server_figures",
        },
    )

__all__ = [
    "FittedRuntime", "LoggedRun", "RunBeside", "ServedStep", "figures_in", "fit_runtime",
    "fitted_speed", "read_logged_runs", "server_figures",
]  # fmt: skip
