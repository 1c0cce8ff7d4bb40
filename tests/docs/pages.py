"""The Markdown pages of the tree."""

from pathlib import Path

ROOT = Path(__file__).parents[2]

_NOT_OURS = {"demo", "node_modules", "_build", "build", "dist"}


def markdown_pages() -> list[Path]:
    """All of them, without those of environments, caches and built sites."""
    pages = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    ours = [
        page
        for page in pages
        if not any(part.startswith(".") or part in _NOT_OURS for part in page.parts)
    ]
    return sorted(ours)
