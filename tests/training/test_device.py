"""Models, readers and runs on a simulated device, which refuses tensors of two devices: as on the CPU."""

import shutil

import pytest
import torch
from contract import build_subjects
from devices import OnDevice, simulated

from qa_arch import load
from qa_arch.config.compose import compose
from qa_arch.config.schema import validate
from qa_arch.contract import trial_settings, write_vectors
from qa_arch.data.sources import open_passages

TEXT = (
    "Kelldale is a southern town. The town was destroyed in 1752. The town was reached by the river Kemcreek."
)
ASKED = (("Which river was Kelldale reached by?", TEXT), ("Who rebuilt Kelldale?", TEXT))
MODELS = {
    **{name: [f"model={name}"] for name in ("bert", "albert", "distilbert", "roberta", "proposed")},
    **{
        name: [f"model={name}"] for name in ("match_lstm/bi_ans_ptr", "match_lstm/sequence", "qa_transformer")
    },
    "proposed with a boundary head": ["model=proposed", "head=bi_boundary"],
}


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    settings = trial_settings(tmp_path_factory.mktemp("device"))
    return build_subjects(lambda case: validate(compose([*MODELS[case], *settings])))


@pytest.mark.parametrize("case", MODELS)
def test_loss_and_gradients(subjects, case):
    subject = subjects[case]
    model, loss, batch = subject.model.eval(), subject.parts.loss, subject.batch()
    expected = loss(model(batch), batch.labels)
    expected.mean().backward()
    gradients = {name: weights.grad for name, weights in model.named_parameters()}
    model.zero_grad()
    with simulated() as device:
        model, batch = model.to(device), batch.to(device)
        values = loss(model(batch), batch.labels)
        values.mean().backward()
    torch.testing.assert_close(values.held, expected)
    for name, weights in model.named_parameters():
        assert isinstance(weights.data, OnDevice), name
        if gradients[name] is not None:
            torch.testing.assert_close(weights.grad.held, gradients[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["span_run", "sequence_run", "ensemble"])
def test_answers(request, tmp_path, kind):
    run = request.getfixturevalue("span_run" if kind == "ensemble" else kind)
    source = [run, shutil.copytree(run, tmp_path / "twin")] if kind == "ensemble" else run
    expected = load(source, device="cpu")
    with simulated() as device:
        reader = load(source, device=device)
        assert {weights.device for weights in reader.model.parameters()} == {device}
        for question, text in ASKED:
            answer, other = reader(question, text), expected(question, text)
            assert (answer.text, answer.spans[0].text) == (other.text, other.spans[0].text)
            assert answer.null_odds == pytest.approx(other.null_odds, abs=1e-4)
        if reader.has_attention:
            weights, others = (it.attention(*ASKED[0])["weights"] for it in (reader, expected))
            torch.testing.assert_close(torch.tensor(weights), torch.tensor(others))


ALL_PARTS = [
    "model=ablation/together",
    "model.hidden=6",
    "loss=verifier_twins",
    "glove=file",
    "optim.head_lr=2e-3",
]


@pytest.mark.parametrize("overrides", [[], ALL_PARTS], ids=["bert", "all parts, with a teacher"])
def test_run(run_training, configure, before_step, tmp_path, overrides):
    """Its loss, and the scores of the weights that it kept."""
    settings = [*overrides, "model.dropout=0"]
    if overrides:
        texts = [example.context for example in open_passages(configure().data.train).examples]
        write_vectors(tmp_path / "vectors.txt", texts)
        settings += [f"glove.path={tmp_path}/vectors.txt", "data.train_questions=8"]
        teacher = run_training(*settings, "trainer.max_steps=1", name="teacher").folder
        settings += [
            "distillation=soft_targets",
            f"distillation.teacher={teacher}",
            "distillation.layers=none",
        ]
    expected = run_training(*settings, name="cpu").record
    places = set()
    before_step(lambda module, batch, _: places.update({batch.ids.device, module.device}))
    with simulated() as device:
        record = run_training(*settings, name="device").record
    assert places == {device}
    (epoch,), (other,) = record.epochs, expected.epochs
    assert epoch.train_loss == pytest.approx(other.train_loss, abs=1e-4)
    assert epoch.metrics == pytest.approx(other.metrics, abs=1e-3)
    assert record.scores.keys() == expected.scores.keys()
