"""The errors in a plan, or in edits of one, found by a walk that shares no code with the replay."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.analysis.verifying.finding import Finding
    from hosim.analysis.verifying.verifier import check_edits, verify
    from hosim.analysis.verifying.verifier_walk import StreamClocks
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "finding": "Finding",
            "verifier": "check_edits verify",
            "verifier_walk": "StreamClocks",
        },
    )

__all__ = ["Finding", "StreamClocks", "check_edits", "verify"]
