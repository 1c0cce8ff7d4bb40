"""A Sphinx extension: formulas as MathML, which browsers draw themselves, without a network.

docutils translates the LaTeX; what it does not know fails the build.
"""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

_BAR = re.compile(r"<mo[^>]*>_</mo>")
"""Of underline and overline. Few fonts stretch it, so site.css draws a border instead."""


def draw_inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(_translated(node, as_block=False))
    raise nodes.SkipNode


def draw_block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_translated(node, as_block=True)}</div>\n')
    raise nodes.SkipNode


def _translated(node: nodes.Element, *, as_block: bool) -> str:
    try:
        return _BAR.sub('<mo class="bar"></mo>', tex2mathml(node.astext(), as_block=as_block))
    except MathError as error:
        logger.warning("%s: %s", node.astext(), error, location=node)
        return ""


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_html_math_renderer("mathml", (draw_inline, None), (draw_block, None))
    return {"parallel_read_safe": True}
