"""``qa-arch report``: runs as one self-contained HTML page.

``collect`` reads records into a plain value, ``pack`` makes rows of questions small, ``page`` puts both
into the template of ``page/``, which draws everything in the browser. No torch, no wandb, no network.
"""

from qa_arch.results.report.write_page import LIMIT, Report, write_report

__all__ = ["LIMIT", "Report", "write_report"]
