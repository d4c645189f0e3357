"""Lines and kernels fitted to measurements, with intervals."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.validate.fits.calibrated_kernels import (
        KernelErrors,
        KernelFit,
        errors_by_row,
        errors_of_tables,
        fit_kernel,
        fit_kernels,
        kernels_report,
        predicted_us,
        profile_with_kernels,
        summary,
        write_kernels,
    )
    from hosim.validate.fits.channel_fit import (
        ChannelFit,
        MeasuredCopy,
        copies_of,
        fit_ways,
    )
    from hosim.validate.fits.robust import (
        CONFIDENCE,
        ErrorSpread,
        Figure,
        clock_tick,
        draws,
        figure,
        fit_line,
        fit_slope,
        inverse,
        median_figure,
        spread,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "calibrated_kernels": "KernelErrors KernelFit errors_by_row errors_of_tables fit_kernel fit_kernels "
            "kernels_report predicted_us profile_with_kernels summary write_kernels",
            "channel_fit": "ChannelFit MeasuredCopy copies_of fit_ways",
            "robust": "CONFIDENCE ErrorSpread Figure clock_tick draws figure fit_line fit_slope "
            "inverse median_figure spread",
        },
    )

__all__ = [
    "CONFIDENCE", "ChannelFit", "ErrorSpread", "Figure", "KernelErrors", "KernelFit",
    "MeasuredCopy", "clock_tick", "copies_of", "draws", "errors_by_row", "errors_of_tables",
    "figure", "fit_kernel", "fit_kernels", "fit_line", "fit_slope", "fit_ways", "inverse",
    "kernels_report", "median_figure", "predicted_us", "profile_with_kernels", "spread", "summary",
    "write_kernels",
]  # fmt: skip
