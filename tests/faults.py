"""The faults that ``mutations.py`` plants: small mistakes of the kind that leave everything running.

Each names the tests that a developer would expect to notice, so that a test file that has lost its teeth
shows even where another would have caught the fault by chance.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    file: str
    """From the checkout's root, like ``tests``."""
    old: str
    """What the fault replaces; it stands exactly once in the file."""
    new: str
    tests: tuple[str, ...]
    """Files or single tests, as pytest names them: at least one must fail."""


ANSWERS, SPANS = ("tests/decode/test_answers.py",), ("tests/decode/test_spans.py",)
JOINT, COLLATE = ("tests/features/test_joint.py",), ("tests/features/test_collate.py",)
SAMPLER, CACHE = ("tests/features/test_sampler.py",), ("tests/features/test_cache.py",)
GLOVE = ("tests/features/test_glove.py",)
MASKING, POINTER = ("tests/nn/test_masking.py",), ("tests/nn/test_pointer.py",)
RECURRENCE, MATCH = ("tests/nn/test_recurrence.py",), ("tests/nn/test_match_lstm.py",)
SEGMENTS, FUSED = ("tests/nn/test_segments.py",), ("tests/nn/test_fused_recurrence.py",)
SEQUENCES = ("tests/decode/test_sequences.py",)
SCORES, TEXT = ("tests/metrics/test_squad_scores.py",), ("tests/metrics/test_answer_text.py",)
MARGIN = ("tests/metrics/test_null_margin.py",)
GENERATION = ("tests/metrics/test_generation.py",)
READING, SPLITS = ("tests/data/test_reading.py",), ("tests/data/test_splits.py",)
LOSSES, OPTIM = ("tests/training/test_losses.py",), ("tests/training/test_optim.py",)
FITTING, RESUME = "tests/training/test_fitting.py", "tests/training/test_resume.py"
RUN = "tests/training/test_run.py"
TYPES, PAIRS = ("tests/data/test_question_types.py",), ("tests/metrics/test_paraphrase.py",)
CLASSIFYING = ("tests/test_contract_classification.py",)
SELECTING, QA_LSTM = ("tests/features/test_selection.py",), ("tests/baselines/test_qa_lstm.py",)

DATA = (
    Fault(
        "offsets not verified",
        "qa_arch/data/records.py",
        "if start < 0 or not context.startswith(text, start):",
        "if start < 0:",
        ("tests/data/test_malformed.py",),
    ),
    Fault(
        "fingerprint without answers",
        "qa_arch/data/squad.py",
        "context, answers, plausible, example.kind]",
        "context, plausible, example.kind]",
        READING,
    ),
    Fault(
        "splits may share articles",
        "qa_arch/data/splits.py",
        "for pair, shared in pairs.items() if shared}",
        "for pair, shared in pairs.items() if not shared}",
        SPLITS,
    ),
    Fault(
        "a run on shared articles",
        "qa_arch/training/assemble.py",
        "    require_disjoint(**sets, **_closed_titles(data))\n",
        "",
        (f"{RUN}::test_sets_that_share_an_article_are_refused",),
    ),
    Fault(
        "held out and kept as well",
        "qa_arch/data/splits.py",
        "    rest = titles[articles:]",
        "    rest = titles[articles - 1 :]",
        SPLITS,
    ),
)

FEATURES = (
    Fault(
        "gold end one token late",
        "qa_arch/features/joint.py",
        "end = np.where(held, last - token_start + context_at, 0)",
        "end = np.where(held, last - token_start + context_at + 1, 0)",
        JOINT,
    ),
    Fault(
        "gold cut off by a window kept",
        "qa_arch/features/joint.py",
        "(first >= token_start) & (last < token_end)",
        "(first >= token_start) & (last <= token_end)",
        JOINT,
    ),
    Fault(
        "labels of the window before",
        "qa_arch/features/collate.py",
        "labels=self._labels(rows, given >= 0)",
        "labels=self._labels(rows - 1, given >= 0)",
        COLLATE,
    ),
    Fault(
        "stride taken as step",
        "qa_arch/features/joint.py",
        "step = room - stride",
        "step = np.full_like(room, stride)",
        JOINT,
    ),
    Fault(
        "context mask inverted",
        "qa_arch/features/assemble.py",
        "context=context & wide,",
        "context=~context & wide,",
        COLLATE,
    ),
    Fault(
        "segments dropped",
        "qa_arch/features/assemble.py",
        "segments=segments if template.segments else None,",
        "segments=np.zeros_like(segments) if template.segments else None,",
        COLLATE,
    ),
    Fault(
        "sampler drops the last row",
        "qa_arch/features/sampler.py",
        "rest = pool[taken:]",
        "rest = pool[taken:-1]",
        SAMPLER,
    ),
    Fault(
        "every rank does all the work",
        "qa_arch/features/sampler.py",
        "ranks = [part[rank::world] for rank in range(world)]",
        "ranks = [part for _ in range(world)]",
        SAMPLER,
    ),
    Fault(
        "ghost counted as a row",
        "qa_arch/features/sampler.py",
        "own if len(own) else -1 - part[-1:]",
        "own if len(own) else part[-1:]",
        SAMPLER,
    ),
    Fault(
        "one order for all epochs",
        "qa_arch/features/sampler.py",
        "np.random.default_rng((seed, epoch))",
        "np.random.default_rng((seed, 0))",
        SAMPLER,
    ),
    Fault(
        "cache key without a setting",
        "qa_arch/features/cache.py",
        '        **settings,\n        "questions"',
        '        **{key: value for key, value in settings.items() if key != "stride"},\n        "questions"',
        CACHE,
    ),
    Fault(
        "cache key without the tokenizer",
        "qa_arch/features/cache.py",
        '        "tokenizer": vocabulary,\n',
        "",
        CACHE,
    ),
    Fault(
        "cache key without the padding id",
        "qa_arch/features/cache.py",
        '        "pad": tokenizer.pad_token_id,\n',
        "",
        CACHE,
    ),
    Fault(
        "cache key without the questions",
        "qa_arch/features/cache.py",
        '        "questions": questions.fingerprint,\n',
        "",
        CACHE,
    ),
    Fault(
        "GloVe rows one too high",
        "qa_arch/features/glove.py",
        "for row, word in enumerate(self.words, 1):",
        "for row, word in enumerate(self.words):",
        GLOVE,
    ),
    Fault(
        "GloVe rows shuffled when kept",
        "qa_arch/features/glove.py",
        "self.matrix[[0, *(i + 1 for i in kept)]]",
        "self.matrix[[0, *(i + 1 for i in kept[::-1])]]",
        GLOVE,
    ),
    Fault(
        "GloVe rows of other words",
        "qa_arch/features/collate.py",
        "np.append(vectors, 0)[word]",
        "np.append(np.roll(vectors, 1), 0)[word]",
        COLLATE,
    ),
)

NETWORK = (
    Fault(
        "softmax mask inverted",
        "qa_arch/nn/masking.py",
        "torch.finfo(scores.dtype).min).softmax(dim), mask, 0.0)",
        "torch.finfo(scores.dtype).min).softmax(dim), ~mask, 0.0)",
        MASKING,
    ),
    Fault(
        "question mask inverted",
        "qa_arch/nn/recurrence.py",
        "energy, padding, lowest = -2 * score, ~mask[:, None],",
        "energy, padding, lowest = -2 * score, mask[:, None],",
        RECURRENCE,
    ),
    Fault(
        "attention uniform",
        "qa_arch/nn/recurrence.py",
        "torch.softmax(scores.masked_fill_(padding, lowest), -1, out=attention)",
        "torch.softmax(scores.mul_(0).masked_fill_(padding, lowest), -1, out=attention)",
        MATCH,
    ),
    Fault(
        "gradient of the cell's past lost",
        "qa_arch/nn/recurrence.py",
        "        self.dc *= step[..., 3 * width : 4 * width]\n",
        "        self.dc.zero_()\n",
        RECURRENCE,
    ),
    Fault(
        "kernel attends to padding",
        "qa_arch/nn/fused/forward.py",
        'one = tl.where(real, one, float("-inf"))',
        'one = tl.where(there, one, float("-inf"))',
        FUSED,
    ),
    Fault(
        "kernel reads forwards twice",
        "qa_arch/nn/fused/forward.py",
        "step = tl.where(row % 2 == 0, t, back)",
        "step = tl.where(row % 2 == 0, t, t + 0 * back)",
        FUSED,
    ),
    Fault(
        "kernel: gradient of the cell's past lost",
        "qa_arch/nn/fused/backward.py",
        "dc = tl.load(carried, here & (t < C - 1), 0) + ",
        "dc = tl.load(carried, here & (t < 0), 0) + ",
        FUSED,
    ),
    Fault(
        "more kernel programs than run together",
        "qa_arch/nn/fused/launch.py",
        "min(each, groups - group0), True)",
        "groups - group0, True)",
        FUSED,
    ),
    Fault(
        "backward reading begins with padding",
        "qa_arch/nn/segments.py",
        "torch.where(mask, mask.sum(1, keepdim=True) - 1 - position, position)",
        "(mask.shape[1] - 1 - position).expand_as(mask)",
        MATCH,
    ),
    Fault(
        "no question word for nothing",
        "qa_arch/nn/match_lstm.py",
        "pad(mask, (0, 1), value=True)",
        "pad(mask, (0, 1), value=False)",
        MATCH,
    ),
    Fault(
        "padding in a word's mean",
        "qa_arch/nn/segments.py",
        "weight = mask.flatten().to(x.dtype)",
        "weight = torch.ones_like(mask).flatten().to(x.dtype)",
        SEGMENTS,
    ),
    Fault(
        "sentinel ignored",
        "qa_arch/nn/pointer.py",
        "null_start, null_end = start[:, C], end[:, C]",
        "null_start, null_end = neutral_null(start[:, :C], mask), neutral_null(end[:, :C], mask)",
        POINTER,
    ),
    Fault(
        "sentinel masked",
        "qa_arch/nn/pointer.py",
        "nn.functional.pad(mask, (0, 1), value=True)",
        "nn.functional.pad(mask, (0, 1), value=False)",
        POINTER,
    ),
    Fault(
        "end not conditioned on start",
        "qa_arch/nn/pointer.py",
        "self._scores(projected, self.state(state[0])[:, None], shortcut",
        "self._scores(projected, self.state(0 * state[0])[:, None], shortcut",
        POINTER,
    ),
    Fault(
        "word vectors ignored",
        "qa_arch/nn/features.py",
        "nn.functional.embedding(vector, self.vectors, padding_idx=0)",
        "nn.functional.embedding(0 * vector, self.vectors, padding_idx=0)",
        ("tests/models/test_bert_match.py",),
    ),
)

DECODING = (
    Fault(
        "answer one character short",
        "qa_arch/decode/answers.py",
        "return char_start[first], char_end[last]",
        "return char_start[first], char_end[last] - 1",
        ANSWERS,
    ),
    Fault(
        "null sign flipped",
        "qa_arch/decode/answers.py",
        "null_odds[found] = null[found].astype(np.float64) - top[best[found]]",
        "null_odds[found] = top[best[found]] - null[found].astype(np.float64)",
        ANSWERS,
    ),
    Fault(
        "null of the highest window",
        "qa_arch/decode/answers.py",
        "order = np.lexsort((spans.null, example))",
        "order = np.lexsort((-spans.null, example))",
        ANSWERS,
    ),
    Fault(
        "windows read twice accepted",
        "qa_arch/decode/answers.py",
        "if len(np.unique(window)) != len(window):",
        "if len(window) == 0:",
        ANSWERS,
    ),
    Fault(
        "verifier ignored",
        "qa_arch/decode/spans.py",
        "end = end + logits.verifier_weight * logits.verifier.float()",
        "end = end + 0 * logits.verifier.float()",
        SPANS,
    ),
    Fault(
        "band one token too wide",
        "qa_arch/decode/spans.py",
        "limit = min(limit, tokens)",
        "limit = min(limit + 1, tokens)",
        SPANS,
    ),
    Fault(
        "grid one token too wide",
        "qa_arch/decode/spans.py",
        "(length >= limit)",
        "(length > limit)",
        SPANS,
    ),
    Fault(
        "end before start allowed",
        "qa_arch/decode/spans.py",
        "(length < 0) | (length",
        "(length < -limit) | (length",
        SPANS,
    ),
    Fault(
        "null written at equal odds",
        "qa_arch/decode/formats.py",
        "ranking.null_odds > margin",
        "ranking.null_odds >= margin",
        ("tests/decode/test_formats.py",),
    ),
    Fault(
        "null at equal odds",
        "qa_arch/types/text.py",
        "self.null_odds > margin else",
        "self.null_odds >= margin else",
        ("tests/decode/test_formats.py",),
    ),
    Fault(
        "a question lost between two parts",
        "qa_arch/predict/predictor.py",
        "questions.examples[begin : begin + size]",
        "questions.examples[begin : begin + max(1, size - 1)]",
        ("tests/predict/test_predictor.py::test_a_set_in_parts_gives_the_answers_of_the_whole",),
    ),
    Fault(
        "one int8 scale for all tokens",
        "qa_arch/nn/int8.py",
        "rows.abs().amax(1, keepdim=True)",
        "rows.abs().amax()",
        ("tests/predict/test_precision.py::test_an_int8_map_sees_each_token_alone",),
    ),
    Fault(
        "int8 without its bias",
        "qa_arch/nn/int8.py",
        "if self.bias is None else",
        "if self.bias is not None else",
        ("tests/predict/test_precision.py",),
    ),
    Fault(
        "dropout on while predicting",
        "qa_arch/predict/reading.py",
        "    model.eval()\n",
        "    model.train()\n",
        ("tests/predict/test_predictor.py::test_dropout_is_off_while_reading",),
    ),
    Fault(
        "untrusted class imported",
        "qa_arch/config/target.py",
        "if not _under(target, trusted):",
        "if not trusted:",
        ("tests/predict/test_loading.py::test_an_untrusted_class_is_refused_and_not_imported",),
    ),
)

METRICS = (
    Fault(
        "F1 averaged by batch",
        "qa_arch/metrics/squad.py",
        "    return 100.0 * sum(values) / total\n",
        "    values = list(values)\n"
        "    batches = [values[i : i + 4] for i in range(0, len(values), 4)]\n"
        "    return 100.0 * sum(sum(batch) / len(batch) for batch in batches) / len(batches)\n",
        SCORES,
    ),
    Fault(
        "HasAns and NoAns swapped",
        "qa_arch/metrics/squad.py",
        "split = ([s for s in final if s.answerable], [s for s in final if not s.answerable])",
        "split = ([s for s in final if not s.answerable], [s for s in final if s.answerable])",
        SCORES,
    ),
    Fault(
        "no answer at the threshold",
        "qa_arch/metrics/squad.py",
        "if null_scores[s.id] > threshold:",
        "if null_scores[s.id] >= threshold:",
        SCORES,
    ),
    Fault(
        "F1 of the worst gold",
        "qa_arch/metrics/text.py",
        "if f1 > best.f1:",
        "if best is NONE or f1 < best.f1:",
        TEXT,
    ),
    Fault(
        "articles not removed",
        "qa_arch/metrics/text.py",
        "words = [word for word in words if word not in ARTICLES]",
        "words = list(words)",
        TEXT,
    ),
    Fault(
        "precision and recall swapped",
        "qa_arch/metrics/text.py",
        "best = Overlap(0, f1, precision, recall)",
        "best = Overlap(0, f1, recall, precision)",
        TEXT,
    ),
    Fault(
        "duplicate answers accepted",
        "qa_arch/metrics/threshold.py",
        "if len(texts) < len(answers):",
        "if len(texts) > len(answers):",
        MARGIN,
    ),
    Fault(
        "duplicate predictions not named",
        "qa_arch/metrics/files.py",
        "if len(values) < len(pairs):",
        "if len(values) > len(pairs):",
        ("tests/metrics/test_evaluate_command.py",),
    ),
    Fault(
        "margin answers the unanswerable",
        "qa_arch/metrics/threshold.py",
        "value - (not has_answer)",
        "value - has_answer",
        MARGIN,
    ),
    Fault(
        "margin on the odds themselves",
        "qa_arch/metrics/threshold.py",
        "middle = low + (high - low) / 2",
        "middle = high",
        MARGIN,
    ),
    Fault(
        "bleu without its golds' second column",
        "qa_arch/metrics/generation/libraries.py",
        "zip_longest(*references)]",
        "zip(*references)]",
        GENERATION,
    ),
    Fault(
        "cider counts a gram once a gold",
        "qa_arch/metrics/generation/cider.py",
        "held = ({gram for gold in row for n in ORDERS for gram in _grams(gold, n)} for row in golds)",
        "held = ([gram for gold in row for n in ORDERS for gram in _grams(gold, n)] for row in golds)",
        GENERATION,
    ),
    Fault(
        "text metrics of answers below the threshold",
        "qa_arch/cli/evaluate.py",
        '"" if null_scores.get(id_, threshold) > threshold else text',
        "text",
        ("tests/metrics/test_evaluate_command.py",),
    ),
    Fault(
        "long spans called short",
        "qa_arch/metrics/errors.py",
        "if gold.start <= start and end <= gold.end:",
        "if start <= gold.start and gold.end <= end:",
        ("tests/metrics/test_errors.py",),
    ),
    Fault(
        "abstentions judged by the answer that was not given",
        "qa_arch/metrics/errors.py",
        "bool(span_exact if abstained else exact)",
        "bool(exact)",
        ("tests/metrics/test_errors.py",),
    ),
)

TRAINING = (
    Fault(
        "loss of ghosts",
        "qa_arch/training/module.py",
        "total = (losses * weight).sum()",
        "total = losses.sum()",
        (f"{FITTING}::test_a_ghost_changes_nothing",),
    ),
    Fault(
        "last step scaled as a full one",
        "qa_arch/training/module.py",
        "sampler.window_total(batch_idx)",
        "sampler.window_total(0)",
        (f"{FITTING}::test_a_step_has_the_gradient_of_the_mean_over_its_windows",),
    ),
    Fault(
        "accumulation not scaled",
        "qa_arch/training/module.py",
        "(self.accumulate * self.trainer.world_size / windows)",
        "(self.trainer.world_size / windows)",
        (f"{FITTING}::test_a_step_has_the_gradient_of_the_mean_over_its_windows",),
    ),
    Fault(
        "scores of the epoch before in one that was cut short",
        "qa_arch/training/callbacks.py",
        "self.seconds, self.scores = 0.0, {}",
        "self.seconds = 0.0",
        (f"{FITTING}::test_an_epoch_that_was_cut_short_has_no_scores_of_the_one_before",),
    ),
    Fault(
        "last weights kept",
        "qa_arch/training/callbacks.py",
        "if value > self.best:",
        "if value is not None:",
        (f"{FITTING}::test_the_best_epoch_is_kept_and_not_the_last",),
    ),
    Fault(
        "margin fitted on dev",
        "qa_arch/training/final.py",
        '        scores["dev"] = operating_points(',
        '        margin = fit_null_margin(parts.sets["dev"], answered)\n'
        '        scores["dev"] = operating_points(',
        (f"{RUN}::test_a_finished_run_tells_everything",),
    ),
    Fault(
        "resumed with the order of epoch 0",
        "qa_arch/training/datamodule.py",
        "sampler.set_epoch(self.trainer.current_epoch)",
        "sampler.set_epoch(0)",
        (RESUME,),
    ),
    Fault(
        "resumed at the epoch's beginning",
        "qa_arch/training/datamodule.py",
        "sampler.start_at(self.resume_at)",
        "sampler.start_at(0)",
        (RESUME,),
    ),
    Fault(
        "random state not restored",
        "qa_arch/training/callbacks.py",
        "            restore_random_state(self.pending[trainer.global_rank])\n",
        "            random_state()\n",
        (RESUME,),
    ),
    Fault(
        "best score forgotten on resuming",
        "qa_arch/training/callbacks.py",
        '(state_dict[key] for key in ("best", "epoch", "waited"))',
        '(float("-inf"), None, 0)',
        (RESUME,),
    ),
    Fault(
        "each rank scores its share",
        "qa_arch/training/scoring.py",
        "reading.merge(everyone)",
        "reading.merge([reading.parts])",
        ("tests/training/test_ranks.py::test_every_rank_has_the_ranking_of_one",),
    ),
    Fault(
        "verifier taught the opposite",
        "qa_arch/training/losses.py",
        "empty = (~labels.answerable).float()",
        "empty = labels.answerable.float()",
        LOSSES,
    ),
    Fault(
        "unanswerable windows taught a span",
        "qa_arch/training/losses.py",
        "torch.where(answerable & found, position, scores.shape[1])",
        "torch.where(found, position, scores.shape[1])",
        LOSSES,
    ),
    Fault(
        "lower layers learn faster",
        "qa_arch/training/optim.py",
        "layer_decay ** (top - depths[key])",
        "layer_decay ** depths[key]",
        OPTIM,
    ),
)

LOGISTIC = tuple(
    Fault(name, f"baselines/{file}", old, new, ("tests/baselines/test_logistic.py",))
    for name, file, old, new in (
        (
            "neighbours of the next sentence",
            "logistic.py",
            "return low, np.minimum(spans.last + NEAR, spans.sentence_last[spans.last])",
            "return low, np.minimum(spans.last + NEAR, len(spans.tokens) - 1)",
        ),
        (
            "half the penalty's slope",
            "logistic.py",
            "gradient += 2 * np.array(self.settings.l2) * weight",
            "gradient += np.array(self.settings.l2) * weight",
        ),
        (
            "slope of the wrong end",
            "logistic.py",
            "yield rows.end, past[1:]",
            "yield rows.end, past[:-1]",
        ),
        (
            "weights of the last pass",
            "logistic.py",
            "        self.weight[:, best.column] = kept\n",
            "",
        ),
        (
            "candidates across sentences",
            "candidates.py",
            "kept = (sentence[a] == sentence[b]) & open_end[a] & open_end[b]",
            "kept = open_end[a] & open_end[b]",
        ),
        (
            "classes without their order",
            "span_features.py",
            "_mixed(value * _ODD + token + np.uint64(1))",
            "value + token",
        ),
    )
)

POINTS, KILLS = "tests/sweep/test_points.py", "tests/sweep/test_kills.py"
SWEEPS = (
    Fault(
        "a point takes itself for another's rank",
        "qa_arch/sweep/environment.py",
        "if name not in SCRUBBED and not",
        "if not",
        (f"{POINTS}::test_the_environment_of_a_point",),
    ),
    Fault(
        "a lock that two can hold",
        "qa_arch/system/lock.py",
        "fcntl.LOCK_EX | fcntl.LOCK_NB",
        "fcntl.LOCK_SH | fcntl.LOCK_NB",
        ("tests/system/test_lock.py::test_one_holder_at_a_time",),
    ),
    Fault(
        "a parent that died too early is not missed",
        "qa_arch/system/lifeline.py",
        "if os.getppid() != parent:",
        "if os.getppid() == -1:",
        ("tests/system/test_lifeline.py::test_a_child_whose_parent_ended_before_it_was_tied",),
    ),
    Fault(
        "a dead point is believed to run",
        "qa_arch/sweep/state.py",
        'if status.status != "running" or parent:',
        "if True:",
        (f"{KILLS}::test_running_is_believed_only_while_somebody_runs",),
    ),
    Fault(
        "a living point is started a second time",
        "qa_arch/sweep/carry_out.py",
        "engine([entry for entry in todo if entry not in living], plan, watch)",
        "engine(todo, plan, watch)",
        (f"{KILLS}::test_a_point_that_lives_is_left_alone",),
    ),
    Fault(
        "other data, same point",
        "qa_arch/sweep/points.py",
        "config_hash(asdict(config), sources(config))",
        "config_hash(asdict(config), {})",
        (f"{POINTS}::test_data_counts_by_what_is_in_it",),
    ),
    Fault(
        "what a point leaves behind lives on",
        "qa_arch/sweep/processes.py",
        "os.killpg(process.pid, signal.SIGKILL)",
        "process.kill()",
        (f"{KILLS}::test_what_a_point_leaves_behind_is_cleared_away",),
    ),
    Fault(
        "a device is given twice",
        "qa_arch/sweep/schedule.py",
        "free += point.devices",
        "free += 2 * point.devices",
        ("tests/sweep/test_carry_out.py::test_side_by_side_no_device_is_given_twice",),
    ),
    Fault(
        "ranks of two runs share gradients",
        "qa_arch/training/callbacks.py",
        "if len(set(hashes)) > 1:",
        "if len(set(hashes)) > 2:",
        ("tests/training/test_ranks.py::test_ranks_of_different_configs_do_not_train",),
    ),
    Fault(
        "a rank without memory fails the run",
        "qa_arch/training/ranks.py",
        "if not machine.out_of_memory(error) and (",
        "if machine.out_of_memory(error) and (",
        ("tests/training/test_ranks.py::test_a_rank_without_memory_is_an_out_of_memory",),
    ),
    Fault(
        "fewer ranks go on with a checkpoint",
        "qa_arch/training/callbacks.py",
        "if wrote != trainer.world_size:",
        "if wrote < trainer.world_size:",
        ("tests/training/test_resume.py::test_a_checkpoint_is_of_so_many_ranks",),
    ),
    Fault(
        "a device that is not there is handed out",
        "qa_arch/sweep/preflight.py",
        "if found == len(pool):",
        "if found <= len(pool):",
        (f"{POINTS}::test_devices_that_are_handed_out_are_there",),
    ),
    Fault(
        "nohup is of no use",
        "qa_arch/sweep/schedule.py",
        "if signal.getsignal(n) is not signal.SIG_IGN]",
        "if n]",
        (f"{KILLS}::test_under_nohup_a_closed_terminal_ends_nothing",),
    ),
    Fault(
        "a refused folder is written to",
        "qa_arch/cli/sweep.py",
        "if sweep.accepted and sweep.folder",
        "if sweep.folder",
        ("tests/sweep/test_command.py::test_a_folder_that_is_refused_is_left_as_it_is",),
    ),
)


RESULTS = tuple(
    Fault(name, f"qa_arch/{file}", old, new, (f"tests/{tests}",))
    for name, file, old, new, tests in (
        (
            "calibration scores mirrored twice",
            "training/module.py",
            "batch_size=1, logger=False)",
            "batch_size=1)",
            "training/test_mirrors.py",
        ),
        (
            "boundary errors a share of all questions",
            "results/drawbacks.py",
            "_share(row.overlaps for row in answerable)",
            "_share(row.overlaps for row in judged)",
            "results/test_drawbacks.py",
        ),
        (
            "old records claim to tell abstentions apart",
            "results/errors.py",
            "told_apart=rows.span_exact is not None",
            "told_apart=True",
            "results/test_show.py",
        ),
        (
            "Holm forgets its order",
            "metrics/significance.py",
            "highest = max(highest, min(",
            "highest = max(0.0, min(",
            "metrics/test_significance.py",
        ),
        (
            "seeds vary too little",
            "metrics/significance.py",
            "return centre + np.sqrt(runs / (runs - 1)) *",
            "return centre +",
            "metrics/test_significance.py",
        ),
        (
            "abstaining rightly earns nothing",
            "metrics/curves.py",
            '"score": 100 * (gained + by_chance + left_silent)',
            '"score": 100 * (gained + by_chance)',
            "metrics/test_curves.py",
        ),
        (
            "an old record is another system",
            "results/groups.py",
            "flat = {**defaults(), **dict(_flatten(record.config))}",
            "flat = dict(_flatten(record.config))",
            "results/test_groups.py",
        ),
        (
            "labels tell what all namesakes share",
            "results/groups.py",
            "if usual and value == usual[0] else",
            "if False else",
            "results/test_groups.py",
        ),
        (
            "looks of other experiments are not counted",
            "results/openings.py",
            "if other.parent != folder",
            "if other.parent == folder",
            "results/test_records.py",
        ),
        (
            "a model of two batch sizes waits for neither",
            "results/published.py",
            "replace(row, batch=None) for row in reversed(wanted)",
            "row for row in reversed(wanted) if row.batch is None",
            "results/test_drawbacks.py",
        ),
        (
            "kinds of the other system",
            "results/published.py",
            "for label in spec.effects)",
            "for label in reversed(spec.effects))",
            "results/test_published.py",
        ),
        (
            "seeds are systems",
            "results/groups.py",
            '{*NEUTRAL, *PLACES, "seed"}',
            "{*NEUTRAL, *PLACES}",
            "results/test_groups.py",
        ),
        (
            "spans are counted where there are none",
            "results/against.py",
            "where = first.answerable if spans else",
            "where = ~first.answerable if spans else",
            "results/test_against.py",
        ),
        (
            "a flattered margin is not told",
            "results/against.py",
            "if split == CALIBRATION:",
            "if split == DEV:",
            "results/test_compare.py",
        ),
        (
            "abstained answers keep their span",
            "results/compare.py",
            "return None if rows.abstained[q] or rows.start[q] < 0 else",
            "return None if rows.start[q] < 0 else",
            "results/test_compare.py",
        ),
        (
            "the same run again is another seed",
            "results/groups.py",
            "if folder != first]",
            "if False]",
            "results/test_report.py",
        ),
        (
            "text may end its script",
            "results/report/build.py",
            '.replace("<", r"\\u003c")',
            "",
            "results/test_report.py",
        ),
        (
            "attention backwards",
            "nn/match_lstm.py",
            "both = torch.stack([ahead, reverse(back, context_mask)], dim=1)",
            "both = torch.stack([ahead, back], dim=1)",
            "nn/test_match_lstm.py",
        ),
    )
)

BASELINES = (
    Fault(
        "the text read backwards is left so",
        "qa_arch/nn/text_lstm.py",
        "states + reverse(self.back(reverse(x, mask)), mask)",
        "states + self.back(reverse(x, mask))",
        ("tests/nn/test_text_lstm.py",),
    ),
    Fault(
        "an output gate that is half open",
        "qa_arch/nn/text_lstm.py",
        "OPEN = 50.0",
        "OPEN = 0.0",
        ("tests/nn/test_text_lstm.py",),
    ),
    Fault(
        "the question's padding read in place of it",
        "baselines/match_lstm.py",
        "self.preprocess(question, question_mask)",
        "self.preprocess(question, ~question_mask)",
        ("tests/baselines/test_match_lstm.py",),
    ),
    Fault(
        "the usual biases in the published counts",
        "baselines/match_lstm.py",
        'self.all_biases = lstm == "paper"',
        'self.all_biases = lstm != "paper"',
        ("tests/cli/test_params_command.py",),
    ),
    Fault(
        "Adam in place of Adamax",
        "qa_arch/training/optim.py",
        "torch.optim.Adamax(groups",
        "torch.optim.Adam(groups",
        OPTIM,
    ),
    Fault(
        "the stop is never learned",
        "qa_arch/training/losses.py",
        "counts = (steps <= length) & chosen",
        "counts = (steps < length) & chosen",
        LOSSES,
    ),
    Fault(
        "a sequence's stop costs nothing",
        "qa_arch/decode/sequences.py",
        "counts = (stopped - (chosen == stop).long()) == 0",
        "counts = stopped == 0",
        SEQUENCES,
    ),
    Fault(
        "sequences read on behind the stop",
        "qa_arch/decode/sequences.py",
        "chosen.masked_fill(stopped > 0, -1)",
        "chosen.masked_fill(chosen == stop, -1)",
        SEQUENCES,
    ),
    Fault(
        "chosen words as one span, whatever stands between",
        "qa_arch/decode/sequences.py",
        "np.flatnonzero(np.diff(tokens) != 1) + 1",
        "np.flatnonzero(np.diff(tokens) < 1) + 1",
        SEQUENCES,
    ),
    Fault(
        "an ensemble of logarithms",
        "qa_arch/models/ensemble.py",
        "logs.logsumexp(0) - torch.tensor(float(len(logs)), device=logs.device).log()",
        "logs.mean(0)",
        ("tests/models/test_ensemble.py",),
    ),
    Fault(
        "all members read the rows of one",
        "qa_arch/models/ensemble.py",
        "replace(batch, vector=rows[batch.vector])",
        "replace(batch, vector=batch.vector)",
        ("tests/models/test_ensemble.py",),
    ),
    Fault(
        "an ensemble of different windows",
        "qa_arch/predict/ensemble.py",
        "        if ours != theirs:",
        "        if ours > theirs:",
        ("tests/predict/test_ensemble.py",),
    ),
    Fault(
        "the first of several runs alone",
        "qa_arch/results/beside.py",
        'fmean(one["exact"] for one in ours)',
        'ours[0]["exact"]',
        ("tests/results/test_beside.py",),
    ),
)

SELECTION = (
    Fault(
        "a right answer drawn as a wrong one",
        "qa_arch/features/selection.py",
        "for place in places.tolist() if candidates[place] not in right]",
        "for place in places.tolist()]",
        SELECTING,
    ),
    Fault(
        "the same wrong answers in every epoch",
        "qa_arch/features/selection.py",
        "default_rng((self.seed, epoch, pair))",
        "default_rng((self.seed, 0, pair))",
        SELECTING,
    ),
    Fault(
        "an unknown word has no vector",
        "qa_arch/features/selection.py",
        "if found or not buckets:",
        "if found is not None:",
        SELECTING,
    ),
    Fault(
        "a tie counts as right",
        "qa_arch/metrics/selection.py",
        "isnan(score) or score >= best",
        "isnan(score) or score > best",
        ("tests/metrics/test_selection_scores.py",),
    ),
    Fault(
        "the easiest wrong answer counts",
        "qa_arch/training/losses.py",
        "margin - best + hardest",
        "margin - best - hardest",
        QA_LSTM,
    ),
    Fault(
        "attention on padding",
        "baselines/qa_lstm.py",
        "masked_softmax(at_least_float32(self.score(matched)[..., 0]), mask)",
        "at_least_float32(self.score(matched)[..., 0]).softmax(-1)",
        QA_LSTM,
    ),
    Fault(
        "the backward direction reads padding first",
        "baselines/qa_lstm.py",
        "reverse(self.backwards(reverse(x, mask))[0], mask)",
        "self.backwards(x.flip(1))[0].flip(1)",
        QA_LSTM,
    ),
    Fault(
        "the sentence after the answer is right",
        "qa_arch/data/selection.py",
        "sum(start <= gold.start for start, _ in spans) - 1",
        "sum(start <= gold.start for start, _ in spans)",
        ("tests/data/test_selection.py",),
    ),
    Fault(
        "the epoch chosen by another score",
        "qa_arch/training/selection/task.py",
        'monitor = "calibration_mrr"',
        'monitor = "calibration_accuracy"',
        ("tests/training/test_selection_runs.py::test_the_epoch_with_the_highest_mrr_is_kept",),
    ),
)

MACHINE, LAUNCHING = ("tests/training/test_machine.py",), ("tests/training/test_launching.py",)
DAMAGED = (f"{RESUME}::test_a_damaged_checkpoint_costs_only_itself",)

CLASSES = (
    Fault(
        "held-out questions are trained on",
        "qa_arch/data/question_types.py",
        "if question.question not in held]",
        "if question.question]",
        TYPES,
    ),
    Fault(
        "the last wording is trained on",
        "qa_arch/data/synthetic/typed.py",
        "WORDINGS[label][:-1]",
        "WORDINGS[label]",
        TYPES,
    ),
    Fault(
        "scores in the order of the classes alone",
        "baselines/question_types.py",
        "torch.gather(logits, 1, batch.candidate)",
        "torch.nn.functional.pad(logits, (0, batch.candidate.shape[1] - logits.shape[1]))",
        CLASSIFYING,
    ),
    Fault(
        "only the wrong classes share the softmax",
        "qa_arch/training/losses.py",
        "for kept in (offered, right))",
        "for kept in (offered & ~right, right))",
        LOSSES,
    ),
    Fault(
        "ties between paraphrases and others count whole",
        "qa_arch/metrics/paraphrase.py",
        "(np.cumsum(count) - (count - 1) / 2)",
        "np.cumsum(count)",
        PAIRS,
    ),
    Fault(
        "a pair ends at any kind of line break",
        "qa_arch/data/pairs.py",
        '_text(path).split("\\n")',
        "_text(path).splitlines()",
        ("tests/data/test_pairs.py",),
    ),
    Fault(
        "a question compared with itself",
        "qa_arch/predict/selection.py",
        "texts[row], (row ^ 1,), ())",
        "texts[row], (row,), ())",
        ("tests/cli/test_selection_runs.py::test_pairs_of_questions_are_compared",),
    ),
    Fault(
        "answers have the class of their question",
        "baselines/qa_lstm.py",
        "known = words.new_zeros(len(words)) if label is None else label",
        "known = words.new_ones(len(words)) if label is None else label",
        QA_LSTM,
    ),
)

SCALE = (
    Fault(
        "a damaged checkpoint is believed",
        "qa_arch/training/checkpoint.py",
        "return archive.testzip() is None",
        "return True",
        DAMAGED,
    ),
    Fault(
        "the checkpoint before the last is thrown away",
        "qa_arch/training/checkpoint.py",
        "            target.replace(target.with_name(PREVIOUS))",
        "            target.unlink()",
        DAMAGED,
    ),
    Fault(
        "a full disk ends the run",
        "qa_arch/training/checkpoint.py",
        "        except QaArchError as error:\n            kept",
        "        except ZeroDivisionError as error:\n            kept",
        (f"{RESUME}::test_a_full_disk_costs_only_what_it_had_no_room_for",),
    ),
    Fault(
        "fp16 on the first cards with bf16",
        "qa_arch/training/machine.py",
        "get_device_capability() >= BF16",
        "get_device_capability() > BF16",
        MACHINE,
    ),
    Fault(
        "a micro batch makes the global batch smaller",
        "qa_arch/config/schema.py",
        "accumulate=whole // micro",
        "accumulate=trainer.accumulate",
        MACHINE,
    ),
    Fault(
        "a batch script taken for one task of a step",
        "qa_arch/config/launched.py",
        'if int(found.get("SLURM_STEP_NUM_TASKS", 1)) < 2',
        'if int(found.get("SLURM_NTASKS", 1)) < 2',
        LAUNCHING,
    ),
    Fault(
        "a rank numbered by its node",
        "qa_arch/config/launched.py",
        'found["RANK"], found["WORLD_SIZE"] = found["SLURM_PROCID"], str(tasks)',
        'found["RANK"], found["WORLD_SIZE"] = found["SLURM_NODEID"], str(tasks)',
        LAUNCHING,
    ),
)

PLANS = (
    Fault(
        "tensors of before counted as new",
        "qa_arch/training/plan/live.py",
        "if storage._cdata not in given and storage._cdata not in self._alive:",
        "if storage._cdata not in self._alive:",
        ("tests/training/plan/test_live.py",),
    ),
    Fault(
        "gradients of the first part forgotten",
        "qa_arch/training/plan/memory.py",
        "accumulated=accumulate > 1)",
        "accumulated=False)",
        ("tests/training/plan/test_plan_memory.py",),
    ),
    Fault(
        "a proposal with another batch",
        "qa_arch/training/plan/memory.py",
        "for parts in range(1, whole + 1) if whole % parts == 0]",
        "for parts in range(1, whole + 1)]",
        ("tests/training/plan/test_plan_memory.py",),
    ),
    Fault(
        "moments of small parameters in 8 bits",
        "qa_arch/training/plan/memory.py",
        "if count >= _SMALLEST_8BIT else",
        "if count >= 1 else",
        ("tests/training/plan/test_plan_memory.py",),
    ),
    Fault(
        "a search that begins anew draws the same points",
        "qa_arch/sweep/search.py",
        "TPESampler(seed=seed + len(study.trials))",
        "TPESampler(seed=seed)",
        ("tests/sweep/test_search.py",),
    ),
    Fault(
        "a search that forgets what was under way",
        "qa_arch/sweep/search.py",
        "states=(TrialState.RUNNING,)",
        "states=(TrialState.WAITING,)",
        ("tests/sweep/test_search.py",),
    ),
    Fault(
        "a job that runs a finished point again",
        "qa_arch/sweep/submitted.py",
        "if believed(folder, parent=False).status not in RESULTS and not",
        "if not",
        ("tests/sweep/test_submitted.py",),
    ),
)

ASSEMBLY = (
    Fault(
        "an id without an embedding let through",
        "qa_arch/training/assemble.py",
        "table.largest_id >= encoder",
        "table.largest_id > encoder",
        ("tests/training/test_assemble.py",),
    ),
)

COLLECTING = (
    Fault(
        "the search for cycles stays off",
        "qa_arch/system/collector.py",
        "if enabled:",
        "if not enabled:",
        ("tests/system/test_collector.py",),
    ),
    Fault(
        "an unpickled encoder lost its attention",
        "qa_arch/nn/encoder.py",
        "        import qa_arch.nn.attention  # noqa: F401\n",
        "",
        ("tests/nn/test_encoder.py::test_an_encoder_pickled_here_reads_in_another_process",),
    ),
    Fault(
        "a missing srun is found too late",
        "qa_arch/sweep/submitted.py",
        'shutil.which("srun") is None',
        'shutil.which("srun") == ""',
        ("tests/sweep/test_submitted.py",),
    ),
    Fault(
        "an added token may look at blanks",
        "qa_arch/features/pieces.py",
        "token.lstrip or token.rstrip",
        "token.lstrip",
        ("tests/features/test_pieces.py",),
    ),
)

FAULTS = (
    *DATA,
    *FEATURES,
    *NETWORK,
    *DECODING,
    *METRICS,
    *TRAINING,
    *LOGISTIC,
    *SWEEPS,
    *RESULTS,
    *BASELINES,
    *SELECTION,
    *CLASSES,
    *SCALE,
    *PLANS,
    *ASSEMBLY,
    *COLLECTING,
    Fault(
        "a shortcut's start scores end",
        "qa_arch/nn/pointer.py",
        "linear.flip(-1)",
        "linear",
        POINTER,
    ),
    Fault(
        "beside a shortcut the pointer starts loud",
        "qa_arch/nn/pointer.py",
        "gain=0.01",
        "gain=1.0",
        POINTER,
    ),
    Fault(
        "a closed dev set may share articles",
        "qa_arch/training/assemble.py",
        "require_disjoint(**sets, **_closed_titles(data))",
        "require_disjoint(**sets)",
        (f"{RUN}::test_sets_that_share_an_article_are_refused",),
    ),
    Fault(
        "one model's settings in one experiment are not read",
        "conf/train.yaml",
        "optional special: ${experiment}/${model}",
        "optional special: ${experiment}/none",
        ("tests/config/test_compose.py::test_a_model_may_have_settings_of_its_own_in_one_experiment",),
    ),
)
