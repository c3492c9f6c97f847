"""Sphinx configuration for ``make docs``: ``docs/``, the pages of experiments and benchmarks, and docstrings.

The source folder is the root of the checkout, so the pages use the same links as in the repository. ``make
docs`` treats warnings as errors: a broken link or a failing notebook stops the build. Neither the build nor
the pages fetch anything.
"""

from __future__ import annotations

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
