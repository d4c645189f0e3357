"""Text that JSON and YAML can hold, and no file."""

import pytest

from hosim.base.files import check_no_name, parse
from hosim.errors import InputError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": ["\\udfff x"]}', "got half of a character (\\udfff) in \\udfff x; remove it"),
        ('{"a": {"b\\ud83d": 1}}', "got half of a character (\\ud83d) in b\\ud83d; remove it"),
    ],
)
def test_half_of_a_character_is_no_text(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text, "f")
    assert str(error.value) == f"f: expected text, {said}"


def test_both_halves_of_a_character_are_one() -> None:
    assert parse('{"a": "\\ud83d\\ude00"}', "f") == {"a": "\U0001f600"}
    assert parse('{"a": "\\\\udfff"}', "f") == {"a": "\\udfff"}  # a backslash and five letters


@pytest.mark.parametrize("text", ["", "a\nb", "h100.yaml", "folder/h100", "/"])
def test_what_is_no_name(text: str) -> None:
    check_no_name(text, "find({!r})")
    with pytest.raises(InputError, match=r"^h100: no such file; for a name give find\('h100'\)$"):
        check_no_name("h100", "find({!r})")
