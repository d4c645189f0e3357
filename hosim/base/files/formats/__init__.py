"""The likely format of a file, by its first bytes: formats that hosim reads, and those of other
programs.
"""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.base.files.formats.recognised import (
        DATABASE,
        TABLE,
        of_events,
        recognised,
        seeming,
        unexpected,
    )
    from hosim.base.files.formats.recognisers import is_kineto, is_onnx
    from hosim.base.files.formats.sources import (
        Source,
        format_of_source,
        known_formats,
        read_source,
    )
    from hosim.base.files.formats.wire import (
        Fields,
        Part,
        Reader,
        WireError,
        header,
        is_message,
        messages,
        number,
        numbers,
        parts,
        places,
        text,
        varint,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "recognised": "DATABASE TABLE of_events recognised seeming unexpected",
            "recognisers": "is_kineto is_onnx",
            "sources": "Source format_of_source known_formats read_source",
            "wire": "Fields Part Reader WireError header is_message messages number numbers parts "
            "places text varint",
        },
    )

__all__ = [
    "DATABASE", "TABLE", "Fields", "Part", "Reader", "Source", "WireError", "format_of_source",
    "header", "is_kineto", "is_message", "is_onnx", "known_formats", "messages", "number",
    "numbers", "of_events", "parts", "places", "read_source", "recognised", "seeming", "text",
    "unexpected", "varint",
]  # fmt: skip
