"""``qa-arch export``: a trained span model as a Hugging Face folder, or as a graph for ONNX Runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

from qa_arch import hub
from qa_arch.cli.runs import add_options, require_runs
from qa_arch.config.find import use_config_dir
from qa_arch.config.target import require_packages
from qa_arch.errors import ConfigError
from qa_arch.process import gc_disabled
from qa_arch.terminal import watching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example: qa-arch export runs/squad2/bert-s13 --to hf --out bert-squad2"
    parser.add_argument("run_folder", metavar="RUN", help="a run folder")
    form = "hf: for AutoModelForQuestionAnswering (encoders with a linear head); onnx: any span model"
    parser.add_argument("--to", required=True, choices=("hf", "onnx"), help=form)
    parser.add_argument("--out", required=True, metavar="DIR", help="folder to write; it must not exist")
    precision = "precision of an ONNX graph (default: fp32); its EM and F1 are printed"
    parser.add_argument("--precision", choices=("fp32", "int8"), default="fp32", help=precision)
    add = parser.add_argument_group("the Hugging Face hub", "options for --to hf").add_argument
    add("--push", metavar="REPO", help="upload the folder to this repository (OWNER/NAME)")
    add("--private", action="store_true", help="make a new repository private")
    add("--dry-run", action="store_true", help="write the folder and print what --push would upload")
    add_options(parser, "--trust", "--config-dir")


def run(args: argparse.Namespace) -> int:
    """Write the folder, check a graph against the model, and print the scores and the file sizes."""
    if args.to == "hf" and args.precision != "fp32":
        raise ConfigError(
            f"--precision {args.precision}: a Hugging Face folder holds fp32 weights; leave it out"
        )
    if args.to != "hf" and (args.push or args.private or args.dry_run):
        raise ConfigError("--push, --private and --dry-run are for --to hf")
    if not args.push and (args.private or args.dry_run):
        raise ConfigError("--private and --dry-run are for --push REPO; name the repository")
    if args.to == "onnx":
        require_packages("onnx", "--to onnx")
    require_runs([args.run_folder])
    if args.push:  # before a model is loaded
        hub.require_upload(args.push, dry=args.dry_run)
    use_config_dir(args.config_dir, args.trust)
    with gc_disabled():
        from qa_arch.qa.loading import load

    # In fp32: --precision is that of the graph.
    predictor, out = load(args.run_folder, device="cpu", trust=args.trust), Path(args.out)
    if "onnx" in predictor.library:
        raise ConfigError(f"{args.run_folder}: is a graph, or holds one; export the runs that were trained")
    from qa_arch.export import sizes

    if args.to == "hf":
        from qa_arch.export.huggingface import export_hf

        export_hf(predictor, out, Path(args.run_folder))
    else:
        from qa_arch.export.onnx import export_onnx

        with watching("checking", "windows") as watch:
            check = export_onnx(predictor, out, precision=args.precision, watch=watch)
        torch_scores, onnx_scores = check.torch_scores, check.onnx_scores
        print(
            f"checked on {check.questions} questions of {check.data}: logits within"
            f" {check.largest_difference:.1e}, {check.same_answers} of the answers the same; EM"
            f" {onnx_scores['exact']:.2f} (torch {torch_scores['exact']:.2f}), F1 {onnx_scores['f1']:.2f}"
            f" ({torch_scores['f1']:.2f})"
        )
    part_sizes = sizes(out)
    for name, size in [*part_sizes.most_common(), (str(out), part_sizes.total())]:
        print(f"{size / 1e6:10.2f} MB  {name}")
    if args.push and args.dry_run:
        print(f"dry run: --push would upload these to {args.push}")
    elif args.push:
        print(f"uploaded: {hub.upload(out, args.push, private=args.private)}")
    return 0
