"""Faults in the names of transformers 4."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="compat merges answers of equal case only", at="QuestionAnsweringPipeline.__call__",
          test="test_answers_equal_up_to_case_are_merged",
          old="_t.lower()",
          new="_t"),
    Fault(name="compat no-answer score of the likeliest window", at="QuestionAnsweringPipeline.__call__",
          test="test_no_answer_score_is_the_lowest_of_all_windows",
          old="min(_n[_r], _s)",
          new="max(_n[_r], _s)"),
    Fault(name="compat threshold ignores missing predictions", at="compat.squad_metrics:find_best_thresh",
          test="test_question_without_a_prediction",
          old="sum(not _h for _h in _q.values())",
          new="sum(not _q[_h] for _h in scores)"),
    Fault(name="compat token context on the longer side", at="compat.squad:max_context",
          test="test_windows_of_wordpiece",
          old="min(_p - _s[0], _x)",
          new="max(_p - _s[0], _x)"),
)
