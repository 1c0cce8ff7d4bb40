"""A Sphinx extension: pages that read the same on the site and on a code host.

A page is plain Markdown with relative links and pictures, as a code host shows it. On the site,

- a link to a file or folder that is not a page (../src, ../results) becomes a link into the
  repository, or its path as code where `repository_url` is not set; for one that leads nowhere
  Sphinx warns, as for any other;
- a picture NAME.png with a NAME-dark.png beside it is shown in the light or the dark version.
"""

import os
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class LinkRepositoryFiles(SphinxTransform):
    """Links to what is in the tree but not in the site."""

    default_priority = 5  # before links are resolved

    def apply(self, **options: Any) -> None:
        site = Path(self.env.srcdir)
        page = site / self.env.doc2path(self.env.docname, base=False)
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node.get("reftype") == "myst" and node["reftarget"] not in self.env.found_docs:
                self._link(node, page)
        for node in list(self.document.findall(addnodes.download_reference)):
            if site not in _target(node, page).parents:
                self._link(node, page)

    def _link(self, node: nodes.Element, page: Path) -> None:
        target, root = _target(node, page), Path(self.env.srcdir).parent
        if not target.exists() or root not in target.parents:
            return  # a heading of the page itself, or Sphinx will warn
        path = target.relative_to(root).as_posix()
        if self.config.repository_url:
            address = f"{self.config.repository_url}/{path}"
            link = nodes.reference("", "", *node.children, refuri=address, internal=False)
            node.parent.replace(node, link)
            return
        shown = node.astext()
        new: list[nodes.Node] = [nodes.literal(path, path)]
        if shown not in path:
            new = [*node.children[0].children, nodes.Text(" ("), *new, nodes.Text(")")]
        node.parent.replace(node, new)


def _target(node: nodes.Element, page: Path) -> Path:
    """What a link of a page leads to, if it is a path."""
    target = str(node["reftarget"]).partition("#")[0]
    if node.get("refdomain") == "doc":  # a page outside of the site: absolute, without its suffix
        target += ".md"
    return Path(os.path.normpath(page.parent / target))


class LightAndDarkPictures(SphinxTransform):
    """Each picture that has a dark version twice; the theme shows one of them."""

    default_priority = 5

    def apply(self, **options: Any) -> None:
        page = Path(self.env.doc2path(self.env.docname))
        for node in list(self.document.findall(nodes.image)):
            light = Path(node["uri"])
            dark = light.with_stem(f"{light.stem}-dark")
            if not (page.parent / dark).is_file():
                continue
            other = node.copy()
            other["uri"] = dark.as_posix()
            other["classes"] = [*node["classes"], "only-dark"]
            node["classes"] = [*node["classes"], "only-light"]
            node.parent.insert(node.parent.index(node) + 1, other)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("repository_url", "", "env")
    app.add_transform(LinkRepositoryFiles)
    app.add_transform(LightAndDarkPictures)
    return {"parallel_read_safe": True}
