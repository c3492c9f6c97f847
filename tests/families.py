"""Encoder families of extras, for tests that run over families; none where the extra is not there."""

from __future__ import annotations

from qa_arch.manifest import offered

OURS = tuple(offered("families"))
