"""Certificates of replays: plan, events and the proof of a lower bound.
:mod:`hosim.check_certificate` checks them without hosim.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.certificates.certificate_file import check_certifiable, to_certificate
else:
    __getattr__, __dir__ = lazy_names(
        __name__, {"certificate_file": "check_certifiable to_certificate"}
    )

__all__ = ["check_certifiable", "to_certificate"]
