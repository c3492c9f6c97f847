"""The Triton kernels of the recurrence: interpreted on a CPU, compiled on a GPU.

Triton interprets all kernels of a process or none: see ``tests/conftest.py``.
"""

from collections.abc import Iterator

import pytest
import torch

from qa_arch.extras.kernels import autograd, proof
from qa_arch.extras.kernels.autograd import recur_fused
from qa_arch.extras.kernels.proof import difference, example, in_bf16, states_and_gradients, supports
from qa_arch.nn.match_lstm import MatchLSTM, recur, recur_reference

triton = pytest.importorskip("triton", reason="the kernels need Triton")
GPU = torch.device("cuda")
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp")  # 1 / (1 + inf) is intended


@pytest.fixture
def interpreted() -> Iterator[None]:
    """Run kernels in the interpreter; uninitialized memory reads as NaN."""
    if not triton.knobs.runtime.interpret:
        pytest.skip("Triton compiles in this process")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if triton.knobs.runtime.interpret:
        pytest.skip("TRITON_INTERPRET is set: kernels would not run on the GPU")


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("dtype", "tolerance", "sizes"),
    [
        (torch.float64, 1e-10, {"steps": 2, "B": 9, "Q": 18, "width": 20}),  # two groups, slices, blocks
        (torch.float64, 1e-10, {"steps": 2, "B": 1, "Q": 2, "width": 34}),  # three tiles deep
        (torch.float32, 1e-5, {"steps": 3, "B": 2, "Q": 3, "width": 4, "scale": 1e4}),
    ],
)
def test_states_and_gradients_equal_the_plain_loop(dtype, tolerance, sizes):
    """The plain loop is in float64; differences are relative to each tensor's largest entry."""
    assert difference(example(dtype, **sizes), tolerance, tolerance) == ""
    assert not supports(torch.zeros(1)), "a CPU uses the plain loop"


@pytest.mark.usefixtures("interpreted")
def test_bf16_inputs_are_computed_in_fp32():
    arguments = in_bf16(example(torch.float32, steps=2, B=2, width=8))
    assert difference(arguments, 1e-5, 2**-8) == ""
    states, *gradients = states_and_gradients(recur_fused, arguments).values()
    assert states.dtype == torch.float32
    assert [x.dtype for x in gradients] == [x.dtype for x in arguments if x.requires_grad]


@pytest.mark.usefixtures("interpreted")
def test_module_gives_the_same_result_by_either_path(monkeypatch):
    torch.manual_seed(0)
    model = MatchLSTM(6, 5).double()
    context, question = torch.randn(3, 4, 6).double(), torch.randn(3, 3, 6).double()
    context_mask = torch.arange(4) < torch.tensor([4, 2, 1])[:, None]
    question_mask = torch.arange(3) < torch.tensor([0, 3, 2])[:, None]
    # Values at padding must not matter at all.
    context = context.masked_fill(~context_mask[..., None], 1e3)
    question = question.masked_fill(~question_mask[..., None], 1e3)
    arguments = (context, question, context_mask, question_mask)
    expected = model(*arguments)
    calls = []
    fused = lambda *tensors: calls.append(1) or recur_fused(*tensors)  # noqa: E731
    monkeypatch.setattr(proof, "recurrence", lambda *_, **__: fused)
    torch.testing.assert_close(model(*arguments), expected, rtol=0, atol=1e-10)
    assert calls


class Recorder:
    """A kernel that only records its launches: grid, steps, first group, part, cooperative or not."""

    def __init__(self) -> None:
        self.launches = []

    def __getitem__(self, grid):
        def launch(*arguments, PART, launch_cooperative_grid, **options):
            first, last, group0 = arguments[-3:]
            self.launches.append((grid, (first, last), group0, PART, launch_cooperative_grid))

        return launch


@pytest.mark.parametrize(
    ("resident", "launches"),
    [
        # 40 units make 3 slices and 40 windows 5 groups; synchronizing programs must run at the same time.
        (132, [((3, 5), (0, 2), 0, 0, True)]),
        (6, [((3, 2), (0, 2), 0, 0, True), ((3, 2), (0, 2), 2, 0, True), ((3, 1), (0, 2), 4, 0, True)]),
        (2, [((3, 5), (t, t + 1), 0, part, False) for t in (0, 1) for part in (1, 2)]),
    ],
)
def test_synchronizing_programs_are_launched_together(resident, launches, monkeypatch):
    monkeypatch.setattr(autograd, "resident_programs", lambda _: resident)
    kernel = Recorder()
    autograd.launch(kernel, [torch.zeros(1)], autograd.Sizes(C=2, B=40, Q=3, H=40), range(2))
    assert kernel.launches == launches


SIZES = [
    {"steps": 40, "B": 32, "Q": 33, "width": 150},
    {"steps": 40, "B": 32, "Q": 33, "width": 384},
    {"steps": 7, "B": 90, "Q": 65, "width": 384},  # more groups than run at once
    {"steps": 1, "B": 1, "Q": 1, "width": 10},
]


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_states_and_gradients_equal_the_plain_loop_on_a_gpu(sizes):
    assert difference(example(torch.float32, device=GPU, **sizes), 1e-5, 1e-5) == ""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_deterministic_on_a_gpu():
    arguments = example(torch.float32, device=GPU, **SIZES[0])
    first = states_and_gradients(recur_fused, arguments)
    for _ in range(3):
        again = states_and_gradients(recur_fused, arguments)
        assert all(torch.equal(again[name], first[name]) for name in first)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_float64_on_a_gpu_uses_the_plain_loop():
    arguments = example(torch.float64, device=GPU)
    assert not supports(arguments[0])
    assert supports(arguments[0].float())
    torch.testing.assert_close(recur(*arguments), recur_reference(*arguments), rtol=0, atol=1e-10)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_bf16_autocast_on_a_gpu():
    torch.manual_seed(0)
    model = MatchLSTM(24, 20).to(GPU)
    context, question = torch.randn(3, 9, 24, device=GPU), torch.randn(3, 5, 24, device=GPU)
    masks = [torch.ones(3, size, dtype=torch.bool, device=GPU) for size in (9, 5)]
    exact = model(context, question, *masks)
    with torch.autocast("cuda", torch.bfloat16):
        states = model(context, question, *masks)
        states.sum().backward()
    assert states.dtype == torch.float32
    torch.testing.assert_close(states, exact, rtol=0, atol=0.1)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
