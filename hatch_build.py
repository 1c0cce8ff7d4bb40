"""A hook of the package's build: the README as the package's description.

On a package index a relative link or picture leads nowhere. With SWEEN_REPOSITORY_URL, the address
under which a code host shows files of the tree (docs/conf.py has the same), they become absolute
and the package links to it; without it, links become their text and pictures are left out.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"<picture>.*?</picture>\n*", re.DOTALL)
_ATTRIBUTE = re.compile(r'(src|srcset)="(?!https?:)([^"]+)"')
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


class DescriptionHook(MetadataHookInterface):
    """Sets `readme` and `urls`, which pyproject.toml calls dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        address = os.environ.get("SWEEN_REPOSITORY_URL", "").rstrip("/")
        if address:
            metadata["urls"] = {"Source": address}
        text = describe(readme, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def describe(readme: str, address: str) -> str:
    """The README without relative addresses."""
    if not address:
        return _LINK.sub(r"\1", _PICTURE.sub("", readme))
    readme = _ATTRIBUTE.sub(rf'\1="{address}/\2?raw=true"', readme)
    return _LINK.sub(rf"[\1]({address}/\2)", readme)
