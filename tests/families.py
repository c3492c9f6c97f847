"""Encoder families offered by installed extras, for tests over families."""

from __future__ import annotations

from qa_arch.manifest import offered

EXTRA_FAMILIES = tuple(offered("families"))
