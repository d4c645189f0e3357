"""The requests that are served: from files, or drawn."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.serving.requests.drawn_requests import (
        asked_requests,
        changeable,
        changed_requests,
        changed_text,
        draw_requests,
        is_drawn,
        setting_of,
    )
    from hosim.serving.requests.request import Request
    from hosim.serving.requests.request_files import RequestRows, read_request_rows, read_requests
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "drawn_requests": "asked_requests changeable changed_requests changed_text "
            "draw_requests is_drawn setting_of",
            "request": "Request",
            "request_files": "RequestRows read_request_rows read_requests",
        },
    )

__all__ = [
    "Request", "RequestRows", "asked_requests", "changeable", "changed_requests", "changed_text",
    "draw_requests", "is_drawn", "read_request_rows", "read_requests", "setting_of",
]  # fmt: skip
