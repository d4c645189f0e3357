"""The data of a page's timelines, as its script reads them."""

import json
import re
from itertools import accumulate
from typing import Any


def data_of(text: str) -> Any:
    """The data with whole names, and with places instead of how much further each is."""
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    data = json.loads(found)
    names: list[str] = []
    for shared, rest in zip(data["names"]["shared"], data["names"]["rests"], strict=True):
        names.append((names[-1] if names else "")[:shared] + rest)
    data["names"] = names
    for group in data["groups"]:
        numbers = group["blames"]
        group["blames"] = list(
            zip(
                numbers[::4],
                accumulate(numbers[1::4]),
                numbers[2::4],
                accumulate(numbers[3::4]),
                strict=True,
            )
        )
        for row in group["rows"]:
            places = accumulate(row["name"])
            row["name"] = [
                -1 if what < 0 else place for what, place in zip(row["what"], places, strict=True)
            ]
    return data
