"""The same calls to transformers 4 and to the names that replace it.

``old_and_new.py CASES.json FOLDER`` writes the results of the interpreter's transformers, which must be
version 4, to ``FOLDER/old.json``; ``results`` computes ours. An exception's result is its class name.
"""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def results(cases: dict[str, Any], folder: Path, names: SimpleNamespace) -> dict[str, list[Any]]:
    """Results of the cases by kind, in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            kind: [_result_or_error(KINDS[kind], case, folder, names) for case in cases[kind]]
            for kind in cases
        }


def _result_or_error(
    call: Callable[..., Any], case: dict[str, Any], folder: Path, names: SimpleNamespace
) -> Any:
    try:
        return call(case, folder, names)
    except BaseException as error:  # a panic of tokenizers is no Exception; ours is a ValueError
        return type(error).__name__.replace("PanicException", "ValueError")


def _pair(case, folder, names):
    metrics = names.squad_metrics
    calls = (metrics.compute_exact, metrics.compute_f1)
    return [*(call(*case["pair"]) for call in calls), metrics.get_tokens(case["pair"][0])]


def _evaluation(case, folder, names):
    metrics = names.squad_metrics
    examples = [
        names.squad.SquadExample(id_, "q", "a b", None, None, "t", [{"text": text} for text in golds])
        for id_, golds in case["golds"].items()
    ]
    arguments = [examples, case["texts"]]
    if case["odds"] is not None:
        arguments += [case["odds"], case["threshold"]]
    scores = metrics.squad_evaluate(*arguments)
    raw = metrics.get_raw_scores(examples, case["texts"])
    answerable = {id_: bool(golds) for id_, golds in case["golds"].items()}
    odds = case["odds"] or dict.fromkeys(case["texts"], 0.0)
    more: dict[str, float] = {}
    metrics.find_all_best_thresh_v2(more, case["texts"], *raw, odds, answerable)
    best = metrics.find_best_thresh(case["texts"], raw[1], odds, answerable)
    return [list(scores.items()), list(more.items()), list(best)]


def _final_text(case, folder, names):
    return names.squad_metrics.get_final_text(case["pred"], case["orig"], case["lower"])


def _logits(case, folder, names):
    metrics = names.squad_metrics
    return [metrics._get_best_indexes(case["logits"], case["n"]), metrics._compute_softmax(case["logits"])]


def _features(case, folder, names):
    squad = names.squad
    examples = [squad.SquadExample(**fields) for fields in case["examples"]]
    features, data = squad.squad_convert_examples_to_features(
        examples=examples,
        tokenizer=names.tokenizer(case["family"], folder),
        return_dataset="pt",
        tqdm_enabled=False,
        **case["settings"],
    )
    tensors = [[str(tensor.dtype), tensor.tolist()] for tensor in data.tensors]
    rows = [{**vars(feature), "encoding": None} for feature in features]
    return [rows, tensors, [[e.doc_tokens, e.char_to_word_offset] for e in examples]]


def _predictions(case, folder, names):
    squad, tokenizer = names.squad, names.tokenizer(case["family"], folder)
    examples = [squad.SquadExample(**fields) for fields in case["examples"]]
    features = squad.squad_convert_examples_to_features(
        examples, tokenizer, is_training=False, tqdm_enabled=False, **case["settings"]
    )
    rng = random.Random(case["seed"])
    results = []
    for feature in features:
        start, end = ([round(rng.gauss(0, 2), case["digits"]) for _ in feature.input_ids] for _ in range(2))
        results.append(squad.SquadResult(feature.unique_id, start, end))
    files = [folder / f"{names.version}_{name}.json" for name in ("texts", "nbest", "odds")]
    for file in files:
        file.unlink(missing_ok=True)
    texts = names.squad_metrics.compute_predictions_logits(
        examples, features, results, *case["options"], *map(str, files), False, *case["null"], tokenizer
    )
    return [texts, [file.read_bytes().decode() if file.exists() else None for file in files]]


def _answers(case, folder, names):
    pipe = names.pipeline("question-answering", model=str(folder / case["family"]), device=-1)
    pipe.tokenizer.padding_side = case["side"]
    return pipe(*case["args"], **case["options"])


def _processors(case, folder, names):
    read = {"1": names.squad.SquadV1Processor, "2": names.squad.SquadV2Processor}[case["version"]]()
    call = read.get_train_examples if case["training"] else read.get_dev_examples
    return [sorted(vars(example).items()) for example in call(str(folder), case["file"])]


KINDS = {
    "pairs": _pair,
    "evaluations": _evaluation,
    "final_texts": _final_text,
    "logits": _logits,
    "processors": _processors,
    "features": _features,
    "predictions": _predictions,
    "answers": _answers,
}


def old_names() -> SimpleNamespace:
    """The names of transformers 4, with slow tokenizers: it converts SQuAD with no others."""
    import transformers
    from tokenizers import Tokenizer
    from transformers.data.metrics import squad_metrics
    from transformers.data.processors import squad

    assert transformers.__version__.startswith("4."), transformers.__version__
    transformers.logging.set_verbosity_error()

    class Pieces(transformers.PreTrainedTokenizer):
        """A slow tokenizer with ALBERT's template that splits words with a trained backend."""

        def __init__(self, backend, **specials):
            self.backend = backend
            super().__init__(**specials)

        @property
        def vocab_size(self):
            return self.backend.get_vocab_size()

        def get_vocab(self):
            return self.backend.get_vocab()

        def _tokenize(self, text):
            return self.backend.encode(text, add_special_tokens=False).tokens

        def _convert_token_to_id(self, token):
            number = self.backend.token_to_id(token)
            return self.backend.token_to_id("<unk>") if number is None else number

        def _convert_id_to_token(self, index):
            return self.backend.id_to_token(index)

        def convert_tokens_to_string(self, tokens):
            return self.backend.decoder.decode(tokens)

        def build_inputs_with_special_tokens(self, token_ids_0, token_ids_1=None):
            first = [self.cls_token_id, *token_ids_0, self.sep_token_id]
            return first if token_ids_1 is None else [*first, *token_ids_1, self.sep_token_id]

    def tokenizer(family: str, folder: Path):
        path = folder / family
        if family == "bert":
            return transformers.BertTokenizer(path / "vocab.txt")
        if family == "roberta":
            return transformers.RobertaTokenizer(path / "vocab.json", path / "merges.txt")
        names = {"unk": "<unk>", "pad": "<pad>", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
        specials = {f"{name}_token": token for name, token in names.items()}
        return Pieces(Tokenizer.from_file(str(path / "tokenizer.json")), **specials)

    return SimpleNamespace(
        version="old",
        squad_metrics=squad_metrics,
        squad=squad,
        tokenizer=tokenizer,
        pipeline=transformers.pipeline,
    )


if __name__ == "__main__":
    cases_file, folder = map(Path, sys.argv[1:])
    old = results(json.loads(cases_file.read_text(encoding="utf-8")), folder, old_names())
    (folder / "old.json").write_text(json.dumps(old), encoding="utf-8")
