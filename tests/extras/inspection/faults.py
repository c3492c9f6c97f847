"""Faults in the inspection of attention."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="attention over the wrong axis", at="reading:attention_weights",
          test="test_attention_weights",
          old="tuple(_w.float() for _w in _l)",
          new="tuple(_w.float().transpose(-1, -2) for _w in _l)"),
    Fault(name="attention of a different computation", at="reading:attention_weights",
          test="test_attention_weights",
          old="not _d <= HIDDEN_TOLERANCE[_p]",
          new="False"),
    Fault(name="attention of another head", at="AttentionLayer.head",
          test="test_json_holds_all_weights",
          old="self.weights[self.heads.index(_n)]",
          new="self.weights[-1 - self.heads.index(_n)]"),
    Fault(name="the passage attends to the passage", at="AttentionLayer.over_question",
          test="inspection/test_inspection",
          old='_f(self.columns, "question")',
          new='_f(self.columns, "passage")'),
    Fault(name="rows and columns swapped on the page", at="qa_arch/extras/inspection/page/inspection.js",
          test="test_inspection_browser",
          old="attends ? at(row, i) : at(i, column)",
          new="attends ? at(i, column) : at(row, i)"),
)
