"""Pre-training runs: scores, resuming, two devices, span runs that start from them, and commands on them."""

import hashlib
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from devices import simulated
from safetensors.torch import load_file
from stops import stopped_after
from training.conftest import Trained
from transformers import AutoModel, AutoTokenizer

import qa_arch
from qa_arch.cli.runs import next_steps
from qa_arch.errors import ConfigError, DataError
from qa_arch.extras.pretraining import recipe
from qa_arch.extras.pretraining.corpus import Corpus, load_splits, open_corpus
from qa_arch.extras.pretraining.denoising import Written
from qa_arch.extras.pretraining.recipe import BlockScores, language_scores
from qa_arch.features import tokenizers
from qa_arch.features.cache import tokenizer_hash
from qa_arch.provenance import encoder_run, pretrained_run
from qa_arch.qa import task
from qa_arch.qa.loading import load_predictor
from qa_arch.records import is_squad, read_questions, read_record, write_record
from qa_arch.results.columns import runs_table
from qa_arch.results.systems import group_by_system
from qa_arch.sweep import point_key, sources
from qa_arch.training.run import train


@pytest.fixture
def run(configure, tmp_path):
    """``run(name, *overrides)``: train in folder ``name``."""

    def start(name: str, *overrides: str, resume: bool = False, model: str = "mlm"):
        folder = tmp_path / name
        return Trained(train(configure(*overrides, model=model), folder=folder, resume=resume), folder)

    return start


# Scores

BLOCKS = [
    BlockScores(loss=6.0, tokens=2, right=1, odds=2.0, follows=True),
    BlockScores(loss=1.0, tokens=8, right=7, odds=-1.0, follows=True),
    BlockScores(loss=3.0, tokens=10, right=2, odds=0.5, follows=False),
]


def test_language_scores_average_over_tokens():
    scores = language_scores(BLOCKS, 100, 400)
    assert scores["loss"] == pytest.approx(10 / 20)
    assert scores["perplexity"] == pytest.approx(math.exp(0.5))
    assert scores["token_accuracy"] == pytest.approx(50.0)
    assert (scores["targets"], scores["blocks"]) == (20, 3)
    assert scores["bits_per_byte"] == pytest.approx(0.5 / math.log(2) * 100 / 400)
    exact = language_scores(BLOCKS, None, 400)["bits_per_byte"]
    assert exact == pytest.approx(10 / math.log(2) / 400)  # all bits over all bytes
    assert scores["sentence_accuracy"] == pytest.approx(100 / 3)
    assert scores["sentence_f1"] == pytest.approx(50.0)  # P = R = 1/2
    assert not {"sentence_accuracy", "sentence_f1"} & set(language_scores([BlockScores(1.0, 1, 0)], 100, 400))
    noisy = [BlockScores(1.0, 9, 5, noised=3, restored=1), BlockScores(1.0, 9, 9, noised=5, restored=5)]
    assert language_scores(noisy, None, 400)["restored_tokens"] == pytest.approx(100 * 6 / 8)
    never = [BlockScores(1.0, 1, 0, 0.0, True), BlockScores(1.0, 1, 0, -3.0, False)]
    scores = language_scores(never, 100, 400)
    assert (scores["sentence_accuracy"], scores["sentence_f1"]) == (50.0, 0.0)
    assert language_scores([BlockScores(1e6, 1, 0)], None, 400)["perplexity"] == math.inf


def test_written_texts_are_scored(run_of, monkeypatch):
    """Texts without noise are written rightly but for one, those with noise as they were."""
    predictor = qa_arch.load_predictor(run_of("denoising"), device="cpu")
    predictor.config = replace(predictor.config, trainer=replace(predictor.config.trainer, eval_batch_size=2))
    table = predictor.table(recipe.load_splits(predictor.config)["calibration"])
    end, mask = predictor.template.after[0].id, predictor.tokenizer.mask_token_id

    def write(batch):
        rows = [table.content(row).tolist() for row in batch.index.tolist()]
        if 0 in batch.index and mask not in batch.ids:
            rows[0] = rows[0][1:]
        return [[Written(-0.5 if len(row) % 2 else -1.0, [*row, end])] for row in rows]

    monkeypatch.setattr(predictor, "write", write)
    scores = recipe.writing_scores(predictor, table)
    lengths = table.lengths - 2  # with the end, without the three special tokens of a pair
    loss = sum(length * (1.0 if length % 2 else 0.5) for length in lengths) / sum(lengths)
    assert scores["written_perplexity"] == pytest.approx(math.exp(loss))
    assert scores["exact_copies"] == pytest.approx(100 * (1 - 1 / len(table)))
    assert (scores["bleu"], scores["rouge_l"]) == pytest.approx((100, 100))
    assert 0 < scores["bleu_noisy"] < 90
    monkeypatch.setattr(recipe, "from_extras", lambda _: {})
    assert {*recipe.writing_scores(predictor, table)} == {"exact_copies", "written_perplexity"}


def test_protocol_covers_the_masking_settings(configure, tiny_encoder):
    tokenizer = tokenizers.build("wordpiece", ["Tarn keeps bees."], 50)

    def protocol(model: str, *settings: str) -> str:
        config = configure(*settings, model=model)
        corpus = Corpus("c", "c", "f", lambda: iter(["Tarn keeps bees."]))
        return recipe.table_of(config, corpus, tokenizer, tiny_encoder(), cache=False).protocol

    noise = {"mask_share": 0.15, "masked": 0.8, "replaced": 0.1, "whole_words": False}
    settings = [tokenizer_hash(tokenizer), 32, {"sentence_task": "none", **noise}]
    digest = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:8]
    assert protocol("mlm") == f"masked_lm:{digest}", "as in committed records"
    assert protocol("mlm", "pretraining.whole_words=true") != protocol("mlm")
    assert protocol("causal").startswith("causal_lm:")
    noises = [[], ["denoising.noise=deletion"], ["denoising.share=0.2"], ["denoising.span_length=2"]]
    assert len({protocol("denoising", *noise) for noise in noises}) == 4


@pytest.mark.parametrize("name", ["mlm_nsp", "causal", "denoising"])
def test_loaded_run_reproduces_its_scores(run_of, name):
    folder = run_of(name)
    record = read_record(folder)
    assert (record.status, record.threshold, record.finds_spans) == ("ok", None, False)
    assert record.epochs[-1].train_loss < record.epochs[0].train_loss
    point = record.scores["calibration"]["tokens"]
    assert not is_squad(point.protocol)
    assert point.protocol == record.data["train"].protocol == record.data["calibration"].protocol
    epoch = record.epochs[record.best_epoch]
    for metric in ("loss", "perplexity", "token_accuracy", "bits_per_byte"):
        assert epoch.value(f"calibration_{metric}") == pytest.approx(point.metric(metric), rel=1e-6)
    predictor = qa_arch.load_predictor(folder, device="cpu")
    _, blocks = predictor.rank(recipe.load_splits(predictor.config)["calibration"])
    rows = read_questions(folder / "sets" / "calibration")
    assert [block.loss for block in blocks] == pytest.approx(rows["loss"], rel=1e-5)
    assert [block.right for block in blocks] == rows["right"]


def test_each_objective_has_its_own_table(qa_arch, run_of):
    """Perplexities of different objectives are not comparable."""
    names = ("mlm", "mlm_nsp", "causal", "denoising")
    code, out, err = qa_arch("tables", *map(run_of, names), "--format", "json")
    assert code == 0, err
    rows = [table["rows"] for table in json.loads(out)]
    assert sorted(row["model"] for (row,) in rows) == sorted(names)
    for (row,) in rows:
        assert (row["split"], row["perplexity"] > 1, row["bits_per_byte"] > 0) == ("calibration", True, True)
        assert ("sentence_f1" in row, "f1" in row) == (row["model"] == "mlm_nsp", False)


# Training


def test_resumed_run_equals_an_uninterrupted_one(run):
    settings = ["trainer.checkpoint_minutes=1e-9", "trainer.batch_size=2", "encoder.hidden_dropout=0.1"]
    uninterrupted = run("uninterrupted", *settings, model="denoising")
    with stopped_after(6):  # in the second epoch
        run("stopped", *settings, model="denoising")
    resumed = run("stopped", *settings, resume=True, model="denoising")
    assert resumed.results == uninterrupted.results
    assert resumed.weights == uninterrupted.weights


@pytest.mark.parametrize("model", ["mlm_nsp", "causal", "denoising"])
def test_run_on_a_device_that_is_not_the_cpu(run, model):
    expected = run("cpu", model=model).record
    with simulated():
        record = run("device", model=model).record
    for epoch, other in zip(record.epochs, expected.epochs, strict=True):
        assert epoch.train_loss == pytest.approx(other.train_loss, abs=1e-4)
        assert epoch.metrics == pytest.approx(other.metrics, rel=1e-3)


def test_epoch_of_lowest_loss_is_selected(run, monkeypatch):
    losses = iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(recipe, "validation_scores", lambda *_: {"calibration_loss": next(losses)})
    assert run("selected", "trainer.epochs=3").record.best_epoch == 1


def test_documents_are_held_out_and_train_is_truncated(configure):
    config = configure("data.calibration=null", "data.hold_out_share=0.4")
    splits = {name: list(split.documents()) for name, split in load_splits(config).items()}
    assert sorted(splits["train"] + splits["calibration"]) == sorted(
        open_corpus(config.data.train).documents()
    )
    truncated = load_splits(replace(config, data=replace(config.data, train_questions=2)))
    assert list(truncated["train"].documents()) == splits["train"][:2]
    assert list(truncated["calibration"].documents()) == splits["calibration"]
    all_splits = (*truncated.values(), *load_splits(config).values())
    assert len({split.fingerprint for split in all_splits}) == 3


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (["data.hold_out_articles=3", "data.calibration=null"], ConfigError, "data.hold_out_share"),
        (["data.train=SINGLE", "model.sentence_task=nsp"], DataError, "single document"),
        (["data.train=[SINGLE,synthetic:train]", "data.calibration=SINGLE"], DataError, "trained on"),
        (["pretraining.masked=0.9", "pretraining.replaced=0.2"], ConfigError, "sum to more than 1"),
        (["encoder=words", "encoder.layers=null"], ConfigError, "words"),
    ],
    ids=lambda value: value[0].replace("/", "-") if isinstance(value, list) else "",
)
def test_invalid_settings_are_refused_before_training(configure, tmp_path, overrides, error, message):
    single = tmp_path / "single.txt"
    single.write_text("Tarn keeps bees. It rains in Lomm.")
    with pytest.raises(error, match=message):
        train(
            configure(*(word.replace("SINGLE", str(single)) for word in overrides)), folder=tmp_path / "run"
        )
    assert not (tmp_path / "run" / "model" / "model.safetensors").exists()


def test_next_sentences_are_not_evaluated_on_a_single_document(run_of):
    """The search for another document would never end."""
    predictor = qa_arch.load_predictor(run_of("mlm_nsp"), device="cpu")
    with pytest.raises(DataError, match=r"one\.txt: is a single document"):
        predictor.table(Corpus("one.txt", "one.txt", "f", lambda: iter(["Tarn keeps bees. " * 30])))


def test_validation_masks_do_not_depend_on_the_seed(configure):
    """So perplexities of all seeds are over the same tokens. Training masks differ."""
    batches = []
    for seed in (1, 2):
        config = configure(f"seed={seed}")
        made = recipe.fitting(config, recipe.assemble(config)).batches
        batches.append((made.calibration([0, 1]).ids, made.train((0, [0, 1])).ids))
    (first, train_ids), (second, other_train_ids) = batches
    assert torch.equal(first, second)
    assert not torch.equal(train_ids, other_train_ids)


# Starting from a pre-training run


def test_span_run_starts_from_the_pretrained_encoder_and_tokenizer(run_of, fine_tuning, spans):
    for run in (run_of("denoising"), run_of("mlm")):
        parts = task.new_parts(fine_tuning(run))
        trained = load_file(run / "model" / "model.safetensors")
        for name, value in parts.encoder.state_dict().items():
            assert torch.equal(value, trained[f"encoder.{name}"]), name
    folder = run / "model" / "encoder"
    assert parts.tokenizer.get_vocab() == AutoTokenizer.from_pretrained(folder).get_vocab()
    assert AutoModel.from_pretrained(folder).config.hidden_size == parts.encoder.out_dim
    record, origin = read_record(spans), read_record(run)
    assert (record.status, record.config["encoder"]["name"]) == ("ok", str(run))
    assert (record.encoder.model, record.encoder.seed) == ("mlm", origin.seed)
    assert record.encoder.run_hash == origin.run_hash
    table = runs_table([(spans, record)], columns=["model", "encoder", "f1"])
    assert table.rows[-1]["encoder"] == "mlm, seed 13"


def test_systems_and_points_ignore_seed_and_path_of_the_pretrained_run(run_of, fine_tuning, spans, tmp_path):
    pretrained = run_of("mlm")
    origin, started = read_record(pretrained), read_record(spans)
    records = [(spans, started)]
    for seed, trainer in ((14, {}), (15, {"epochs": 1})):
        folder = shutil.copytree(pretrained, tmp_path / str(seed))
        changed = {"seed": seed, "trainer": {**origin.config["trainer"], **trainer}}
        write_record(folder, replace(origin, seed=seed, config={**origin.config, **changed}))
        changed = {"seed": seed, "encoder": {**started.config["encoder"], "name": str(folder)}}
        fields = {"config": {**started.config, **changed}, "encoder": encoder_run(str(folder))}
        records.append((folder, replace(started, seed=seed, **fields)))
    systems = group_by_system(records)
    assert [len(system.runs) for system in systems] == [2, 1]
    assert all("name=mlm (" in system.label for system in systems)
    shutil.copytree(pretrained, tmp_path / "moved")
    original, moved = (fine_tuning(run) for run in (pretrained, tmp_path / "moved"))
    assert point_key(original) == point_key(moved)
    assert sources(original)["encoder"] == origin.run_hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": "killed"}, r"not finished \(status 'killed'\).*--if-exists resume"),
        ({"config": {"model": {"task": "span"}}}, r"a run of task span, not .* \(a random one\)"),
        ({}, r"has no weights.*train it again"),
    ],
    ids=["unfinished", "answers", "published"],
)
def test_unusable_pretrained_run_is_refused_with_a_remedy(run_of, tmp_path, change, message):
    folder = shutil.copytree(run_of("mlm"), tmp_path / "mlm-1")
    record = read_record(folder)
    write_record(folder, replace(record, **change | {"config": record.config | change.get("config", {})}))
    if not change:
        shutil.rmtree(folder / "model")
    with pytest.raises(ConfigError, match=message):
        pretrained_run(str(folder))


def test_pretrained_run_is_named_by_a_glob_of_one(run_of):
    run = run_of("mlm")
    run_of("mlm_nsp")
    assert pretrained_run(str(run.parent / "ml?"))[0] == run
    assert pretrained_run("bert-base-uncased") is None
    for pattern, count in (("mlm*", 2), ("nothing-*", 0)):
        with pytest.raises(ConfigError, match=f"matches {count} runs"):
            pretrained_run(str(run.parent / pattern))


# Commands


def test_ask_lists_masked_tokens_with_probabilities(qa_arch, run_of):
    run, text = run_of("mlm"), "Tarn [MASK] nine [MASK]."
    code, out, error = qa_arch("pretrain", "ask", run, text, "--top-k", "3", "--json")
    assert code == 0, error
    (table,) = json.loads(out)
    assert [row["place"] for row in table["rows"]] == [1, 1, 1, 2, 2, 2]
    predictor = load_predictor(run)
    first, second = predictor.fill(text, 10**6)
    shown = [(row["token"], row["probability"]) for row in table["rows"]]
    assert shown == [*first[:3], *second[:3]]
    assert sum(probability for _, probability in first) == pytest.approx(1, abs=1e-4)
    assert first == sorted(first, key=lambda guess: -guess[1])
    inputs = predictor.tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        hidden = predictor.model.encoder.backbone(**inputs)[0][:, [-3]]  # before the full stop and [SEP]
        scores = predictor.model.scores(hidden)[0, 0].softmax(-1)
    assert second[0][1] == pytest.approx(float(scores.max()), rel=1e-4)
    assert second[0][0] == predictor.tokenizer.convert_ids_to_tokens(int(scores.argmax()))


def test_causal_model_predicts_the_token_after_a_text(run_of, qa_arch):
    run = run_of("causal")
    code, out, error = qa_arch("pretrain", "ask", run, "Tarn keeps", "--top-k", "2")
    assert (code, out.count("│     1 │")) == (0, 2), error
    predictor = load_predictor(run)
    (guesses,) = predictor.fill("Tarn keeps", 10**6)
    table = predictor.table(Corpus("c", "c", "f", lambda: iter(["Tarn keeps bees"])), cache=False)
    batch = recipe.collator(predictor.config, table)([0])
    last = len(predictor.tokenizer("Tarn keeps", add_special_tokens=False)["input_ids"])
    with torch.inference_mode():
        scores = predictor.model(batch).tokens[0, last].softmax(-1)
    assert guesses[0][1] == pytest.approx(float(scores.max()), rel=1e-4)


def test_denoising_model_restores_a_text(run_of, qa_arch):
    run, text = run_of("denoising"), "Tarn keeps [MASK]. On day 3 it"
    code, out, error = qa_arch("pretrain", "ask", run, text, "--top-k", "3", "--json")
    assert code == 0, error
    rows, predictor = json.loads(out)[0]["rows"], load_predictor(run)
    (texts,) = predictor.write(predictor.batch(text), 3)
    assert [row["text"] for row in rows] == [predictor.decode(one.ids) for one in texts]
    assert [row["perplexity"] for row in rows] == pytest.approx([math.exp(-one.score) for one in texts])
    best, batch = texts[0], predictor.batch(text)
    targets = torch.tensor([best.ids])
    prefix = torch.tensor([[predictor.tokenizer.cls_token_id, *best.ids[:-1]]])
    batch = replace(batch, prefix=prefix, targets=targets, counted=targets > 0, positions=None)
    with torch.inference_mode():
        logits = predictor.model(batch).tokens[0].log_softmax(-1)
    log_p = logits.gather(1, torch.tensor(best.ids)[:, None]).mean()
    assert best.score == pytest.approx(log_p.item(), rel=1e-4)


def test_attention_of_the_decoder_is_inspected(run_of, qa_arch):
    pytest.importorskip("qa_arch.extras.inspection", reason="the page is of another extra")
    run, text = run_of("denoising"), "Tarn keeps [MASK]. It rains."
    code, out, error = qa_arch("inspect", run, "--context", text, "--layer", "all", "--json")
    assert code == 0, error
    predictor, maps = load_predictor(run), json.loads(out)["attention"]
    layers = range(1, len(predictor.model.decoder.blocks) + 1)
    assert [one["layer"] for one in maps] == [f"{n} {kind}" for n in layers for kind in ("self", "cross")]
    ((best,),) = predictor.write(predictor.batch(text))
    to_pieces = predictor.tokenizer.convert_ids_to_tokens
    written, read = to_pieces(best.ids), to_pieces(predictor.batch(text).ids[0].tolist())
    for one in maps:
        weights, is_self = np.array(one["weights"]), one["layer"].endswith("self")
        assert [unit["text"] for unit in one["rows"]] == written
        columns = ["(start)", *written[:-1]] if is_self else read
        assert [unit["text"] for unit in one["columns"]] == columns
        assert weights.sum(1) == pytest.approx(np.ones(len(written)), abs=1e-4)
        assert not is_self or not np.triu(weights, 1).any()
    code, _, error = qa_arch("inspect", run_of("mlm"), "--context", text)
    assert (code, "has no decoder" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("pretrain ask RUN bees", "the text has no [MASK]: put it where a token is missing"),
        ("pretrain ask RUN " + "bees-" * 60 + "[MASK]", "tokens and the model reads 32: shorten it"),
        ("pretrain ask CAUSAL [MASK]", "the text has a [MASK]: the model predicts what follows"),
        ("pretrain ask SPANS [MASK]", "was not pre-trained on a corpus; name a run of model=pretrain"),
        ("pretrain evaluate RUN", "data.dev"),
        ("pretrain evaluate SPANS", "finds spans; score it with qa-arch evaluate --run"),
        ("ask RUN --question Who? --context Ada.", "was pre-trained on a corpus"),
        ("compare RUN COPY --split calibration", "finds no spans"),
        ("evaluate --run RUN --data demo.json", "score it: qa-arch pretrain evaluate"),
        ("train model=bert debug=fast encoder.name=RUN", "encoder.init=pretrained"),
        ("train model=pretrain/mlm data.on_error=skip", "as models of task masked_lm do not read it"),
        ("train model=pretrain/causal glove=6b_50d", "glove=6b_50d: has no effect"),
        ("train model=pretrain/mlm features.stride=7", "features.stride=7: has no effect"),
        ("train model=pretrain/mlm features.max_question=7", "features.max_question=7: has no effect"),
        ("train model=pretrain/causal trainer.select=exact", "trainer.select=exact: has no effect"),
        ("train model=pretrain/mlm data.split_seed=3", "has no effect, as nothing is held out or drawn"),
        (
            "train model=pretrain/mlm encoder=qa_transformer encoder.tokenizer=x encoder.vocabulary=7",
            "encoder.tokenizer=x has its own",
        ),
        ("train --dry-run model=pretrain/mlm encoder=words", "encoder.family: words has no layers"),
        (
            "train --dry-run model=pretrain/mlm data.calibration=null data.hold_out_articles=4",
            "data.hold_out_articles: a corpus has no articles",
        ),
        (
            "train --dry-run model=pretrain/denoising denoising.noise=deletion denoising.span_length=5",
            "denoising.span_length: 5 has no effect with denoising.noise=deletion",
        ),
        ("train --dry-run model=pretrain/denoising denoising.span_length=1e300", "is out of range"),
        ("train model=pretrain/mlm data.hold_out_share=0.1", "data.calibration=squad:synthetic:calibration"),
    ],
)
def test_commands_refuse_unusable_texts_and_runs(qa_arch, run_of, spans, tmp_path, arguments, message):
    named = {"RUN": run_of("mlm"), "CAUSAL": run_of("causal"), "SPANS": spans, "COPY": tmp_path / "copy"}
    if "COPY" in arguments:
        shutil.copytree(named["RUN"], named["COPY"])
    for name, path in named.items():
        arguments = arguments.replace(name, str(path))
    extra = [f"runs_dir={tmp_path}", "logger=none"] if arguments.startswith("train") else []
    code, _, err = qa_arch(*arguments.split(), *extra)
    assert code in (2, 4, 5), err
    assert message in err
    assert len([line for line in err.splitlines() if line.startswith("qa-arch:")]) == 1


def test_blocks_have_no_overlap_to_check_and_the_last_epoch_needs_no_score(qa_arch):
    short = ["features.max_length=32", "trainer.select=last"]
    encoder = ["encoder=qa_transformer_tiny", "logger=none"]
    code, _, err = qa_arch("train", "--dry-run", "model=pretrain/mlm", *encoder, *short)
    assert code == 0, err


def test_evaluate_adds_another_corpus_to_the_record(qa_arch, run_of, tmp_path):
    (tmp_path / "other.txt").write_text("Quill keeps bees.\n\nIt rains in Lomm.")
    run = run_of("causal")
    code, out, err = qa_arch("pretrain", "evaluate", "--json", run, "--data", tmp_path / "other.txt")
    assert code == 0, err
    point, record = json.loads(out)["tokens"], read_record(run)
    assert point["perplexity"] == record.scores["other.txt"]["tokens"].metric("perplexity")
    assert [command.split()[1] for command in next_steps([(run, record)])] == ["show"]
