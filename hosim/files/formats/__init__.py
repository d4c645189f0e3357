"""What a file seems to be, by its first bytes: formats that hosim reads, and those of other programs."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.files.formats.recognised import DATABASE, TABLE, of_events, recognised, seeming, unexpected
    from hosim.files.formats.recognisers import is_chakra, is_g10, is_kineto, is_mindir, is_nsys, is_onnx
    from hosim.files.formats.sources import FORMATS, format_of_source, read_source
    from hosim.files.formats.wire import Fields, Part, Reader, WireError, header, messages, number, numbers, parts, places, text
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "recognised": "DATABASE TABLE of_events recognised seeming unexpected",
            "recognisers": "is_chakra is_g10 is_kineto is_mindir is_nsys is_onnx",
            "sources": "FORMATS format_of_source read_source",
            "wire": "Fields Part Reader WireError header messages number numbers parts places text",
        },
    )

__all__ = [
    "DATABASE", "FORMATS", "TABLE", "Fields", "Part", "Reader", "WireError", "format_of_source", "header", "is_chakra", "is_g10",
    "is_kineto", "is_mindir", "is_nsys", "is_onnx", "messages", "number", "numbers", "of_events", "parts", "places", "read_source",
    "recognised", "seeming", "text", "unexpected",
]  # fmt: skip
