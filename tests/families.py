"""Encoder families offered by installed extras, for tests over families."""

from __future__ import annotations

from qa_arch.manifest import from_extras

EXTRA_FAMILIES = tuple(from_extras("families"))
