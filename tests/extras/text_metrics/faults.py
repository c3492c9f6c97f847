"""Faults in text metrics."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="bleu drops golds beyond the shortest list", at="bleu", test="text_metrics/test_metrics",
          old="zip_longest(*_r)",
          new="zip(*_r)"),
    Fault(name="cider counts an n-gram once per gold", at="cider", test="text_metrics/test_metrics",
          old="{_x for _g in _r for _n in ORDERS for _x in _f(_g, _n)}",
          new="[_x for _g in _r for _n in ORDERS for _x in _f(_g, _n)]"),
    Fault(name="text metrics ignore the null threshold", at="final_texts",
          test="test_text_metrics_leave_the_official_keys_unchanged",
          old='"" if _n.get(_i, _t) > _t else _x',
          new="_x"),
)
