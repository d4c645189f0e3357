"""Options, declared once for commands, keywords of functions and keys of cases."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.io.options.keywords import keywords
    from hosim.io.options.option import (
        REQUIRED,
        Given,
        Option,
        Options,
        check_known,
        check_together,
        file_of,
        flag,
        is_given,
        real,
        refuse_others,
        whole,
    )
    from hosim.io.options.shared import OPTIONS, RESERVED, declared
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "keywords": "keywords",
            "option": "REQUIRED Given Option Options check_known check_together file_of flag "
            "is_given real refuse_others whole",
            "shared": "OPTIONS RESERVED declared",
        },
    )

__all__ = [
    "OPTIONS", "REQUIRED", "RESERVED", "Given", "Option", "Options", "check_known",
    "check_together", "declared", "file_of", "flag", "is_given", "keywords", "real",
    "refuse_others", "whole",
]  # fmt: skip
