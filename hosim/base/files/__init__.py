"""Files of any program within limits: bytes, text, JSON, YAML and CSV."""

from typing import TYPE_CHECKING

from hosim.lazy_names import lazy_names

if TYPE_CHECKING:
    from hosim.base.files.bounded import (
        check_json,
        check_lines,
        check_names,
        mapped,
        opened,
        read_bytes,
        read_head,
        read_json,
    )
    from hosim.base.files.csv_text import cell_text, check_widths, csv_line, csv_rows
    from hosim.base.files.reading import (
        KINDS,
        check_ending,
        check_format,
        check_no_name,
        check_target,
        compressed,
        content,
        content_of,
        decode,
        did_you_mean,
        format_of,
        name_of_file,
        parse,
        read,
        to_text,
        unknown_name,
        write,
        write_bytes,
    )
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "bounded": "check_json check_lines check_names mapped opened read_bytes read_head "
            "read_json",
            "csv_text": "cell_text check_widths csv_line csv_rows",
            "reading": "KINDS check_ending check_format check_no_name check_target compressed "
            "content content_of decode "
            "did_you_mean format_of name_of_file parse read to_text unknown_name write write_bytes",
        },
    )

__all__ = [
    "KINDS", "cell_text", "check_ending", "check_format", "check_json", "check_lines",
    "check_names", "check_no_name", "check_target", "check_widths", "compressed", "content",
    "content_of", "csv_line", "csv_rows", "decode", "did_you_mean", "format_of", "mapped",
    "name_of_file", "opened", "parse", "read", "read_bytes", "read_head", "read_json", "to_text",
    "unknown_name", "write", "write_bytes",
]  # fmt: skip
