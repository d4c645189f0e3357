"""Where another machine installs hosim from, as a requirement of pip (PEP 508)."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from importlib import metadata

_NAMED = re.compile(r"\s*hosim\s*(\[(?P<extras>[^\]]*)\])?\s*(?P<rest>(@|[=<>~!]).*)?", re.DOTALL)


def installed_from() -> str:
    """The requirement by which this hosim was installed (PEP 610): a release, or a URL. For one that
    is installed from a folder, which no other machine has, the version at the project's address;
    empty while that has none.
    """
    found = metadata.distribution("hosim")
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    url, vcs = str(direct.get("url", "")), direct.get("vcs_info", {})
    if not url:
        return f"hosim=={found.version}"
    if url.startswith("file:"):
        named = found.metadata.get_all("Project-URL") or []
        address = dict(line.split(", ", 1) for line in named).get("Repository", "")
        return address and f"hosim @ git+{address}@v{found.version}"
    return f"hosim @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"hosim @ {url}"


def with_extras(requirement: str, extras: Collection[str]) -> str:
    """The requirement with these extras, beside those that it has.

    >>> with_extras("hosim==0.1.0", ["torch"])
    'hosim[torch]==0.1.0'
    >>> with_extras("git+URL@main", ["torch"])
    'hosim[torch] @ git+URL@main'
    """
    match = _NAMED.fullmatch(requirement)
    rest = (match["rest"] or "") if match else f"@ {requirement.strip()}"
    own = match["extras"] or "" if match else ""
    listed = sorted({*filter(None, map(str.strip, own.split(","))), *extras})
    name = f"hosim[{','.join(listed)}]" if listed else "hosim"
    return f"{name} {rest}" if rest.startswith("@") else f"{name}{rest}"
