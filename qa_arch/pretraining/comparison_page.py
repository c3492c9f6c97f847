"""A comparison of tokenizers as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from itertools import pairwise

from qa_arch.pretraining.tokenizer_comparison import Comparison, Figures, Piece

_HEADINGS = (
    "tokenizer",
    "pieces in the vocabulary",
    "pieces per word",
    "words not divided",
    "words with an unknown piece",
    "positions, median",
    "95%",
    "longest",
)


def page(comparison: Comparison) -> str:
    """The page: figures, vocabularies in common, and the examples with every piece in a box."""
    css = resources.files(__package__).joinpath("comparison.css").read_text(encoding="utf-8")
    first = comparison.figures[0]
    title = f"Tokenizers compared: {', '.join(comparison.names)}"
    measured = (
        f"Measured on {comparison.text}: {first.documents:,} documents, {first.words:,} words. Positions are"
        " the tokens of a document with the special tokens around it."
    )
    named = zip(comparison.names, comparison.figures, comparison.shared, strict=True)
    figures, shared = [], []
    for name, row, shares in named:
        figures.append((name, *_cells(row)))
        shared.append((name, *(f"{share:.1%}" for share in shares)))
    sections = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(measured)}</p>",
        "<h2>Figures</h2>",
        _table("Figures", _HEADINGS, figures),
        "<h2>Vocabularies in common</h2>",
        "<p>Share of the row's pieces that the column's vocabulary has as well.</p>",
        _table("Vocabularies in common", ("tokenizer", *comparison.names), shared),
        "<h2>The same sentences, cut</h2>",
        "<p>A box is a piece; boxes that touch belong to a word, a dashed one is unknown to the tokenizer, an"
        " empty one is a further byte of a character. Under the pointer a piece is spelled as in the"
        " vocabulary.</p>",
        *(_example(sentence, comparison.names, cuts) for sentence, cuts in comparison.examples),
    ]
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{css}</style>\n</head>\n"
    )
    return head + "<body>\n<main>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"


def _cells(row: Figures) -> tuple[str, ...]:
    places = row.positions
    return (
        f"{row.vocabulary:,}",
        f"{row.pieces_per_word:.2f}",
        f"{row.whole:.1%}",
        f"{row.unknown:.2%}",
        *(f"{count:,}" for count in (places.p50, places.p95, places.max)),
    )


def _table(label: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "\n".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


def _example(sentence: str, names: Sequence[str], cuts: Sequence[Sequence[Piece]]) -> str:
    rows = "\n".join(
        f"<dt>{escape(name)}, {len(pieces)} pieces</dt><dd>{_boxes(pieces)}</dd>"
        for name, pieces in zip(names, cuts, strict=True)
    )
    return f"<h3>{escape(sentence)}</h3>\n<dl>\n{rows}\n</dl>"


def _boxes(pieces: Sequence[Piece]) -> str:
    """A span per word with a span per piece."""
    begins = [nth for nth, piece in enumerate(pieces) if nth == 0 or piece.begins_word]
    words = [pieces[begin:end] for begin, end in pairwise([*begins, len(pieces)])]
    return " ".join(f'<span class="word">{"".join(map(_box, word))}</span>' for word in words)


def _box(piece: Piece) -> str:
    kind, note = (" unknown", "unknown: ") if piece.unknown else ("", "")
    text = escape(piece.text) or "&nbsp;"
    return f'<span class="piece{kind}" title="{escape(note + piece.token)}">{text}</span>'
