"""Faults in the names of transformers 4."""

from __future__ import annotations

from planting import Fault

# fmt: off
FAULTS = (
    Fault(name="compat merges answers of equal case only", at="QuestionAnsweringPipeline.__call__",
          test="test_answers_equal_up_to_case_are_merged",
          old="text.lower()", new="text"),
    Fault(name="compat segment ids of ALBERT alone", at="QuestionAnsweringPipeline._logits",
          test="test_answers_equal_transformers_4",
          old="self.model.config.model_type in WITH_SEGMENTS",
          new='self.model.config.model_type == "albert"'),
    Fault(name="compat no-answer score of the likeliest window", at="QuestionAnsweringPipeline.__call__",
          test="test_no_answer_score_is_the_lowest_of_all_windows",
          old="min(null[row], null_score)", new="max(null[row], null_score)"),
    Fault(name="compat threshold ignores missing predictions", at="compat.squad_metrics:find_best_thresh",
          test="test_question_without_a_prediction",
          old="sum(not has_answer for has_answer in qid_to_has_ans.values())",
          new="sum((not qid_to_has_ans[has_answer] for has_answer in scores))"),
    Fault(name="compat token context on the longer side", at="compat.squad:max_context",
          test="test_windows_of_wordpiece",
          old="min(token - span[0], span[1] - 1 - token)", new="max(token - span[0], span[1] - 1 - token)"),
)
