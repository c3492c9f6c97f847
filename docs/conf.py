"""Sphinx configuration for ``make docs``: ``docs/``, the pages of experiments and benchmarks, and docstrings.

The source folder is the root of the checkout, so the pages use the same links as in the repository. ``make
docs`` treats warnings as errors: a broken link or a failing notebook stops the build. Neither the build nor
the pages fetch anything.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any

from sphinx.application import Sphinx

import qa_arch

project = "qa_arch"
version = release = qa_arch.__version__
copyright = "qa_arch developers"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["*.md", "docs/**", "experiments/README.md", "experiments/*/*.md", "benchmarks/*.md"]
exclude_patterns = [".*", "docs/_static", "docs/_templates", "runs", "site"]

myst_heading_anchors = 4
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # tables begin at "##"; "..." in JSON
nb_execution_mode = "force"
nb_execution_show_tb = True
nb_execution_timeout = 300
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 100

html_theme = "furo"
html_title = f"qa_arch {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "index.html"}
html_copy_source = False
html_show_sphinx = False


def plain(signature: str) -> str:
    """``Annotated[int, Field(ge=1)]`` as ``int``: what validates a value says nothing to a reader."""
    while match := re.search(r"(?:~?typing\.)?Annotated\[", signature):
        inside = signature[match.end() :]
        depth = list(accumulate((char in "[(") - (char in "])") for char in inside))
        first = next(n for n, char in enumerate(inside) if char == "," and depth[n] == 0)
        signature = signature[: match.start()] + inside[:first] + inside[depth.index(-1) + 1 :]
    return signature


class PlainTypes:
    """Mixin for directives of the Python domain."""

    def handle_signature(self: Any, signature: str, node: Any) -> Any:
        if "type" in self.options:
            self.options["type"] = plain(self.options["type"])
        return super().handle_signature(plain(signature), node)  # type: ignore[misc]


def setup(app: Sphinx) -> None:
    for name, directive in app.registry.domains["py"].directives.items():
        if hasattr(directive, "handle_signature"):
            made = type(directive.__name__, (PlainTypes, directive), {})
            app.add_directive_to_domain("py", name, made, override=True)
