"""What a table.yaml may ask for, and how each mistake in it is named."""

from __future__ import annotations

import pytest

from qa_arch.errors import ConfigError
from qa_arch.results.spec import SPEC, FigureSpec, SetsSpec, TableSpec, read_sheet


def sheet(folder, text):
    (folder / SPEC).write_text(text)
    return read_sheet(folder)


def test_one_table_several_and_figures(tmp_path):
    one = sheet(tmp_path, "title: Mills")
    assert one.tables == [TableSpec("Mills")]
    assert one.figures == []
    several = sheet(
        tmp_path,
        "tables: [{title: A}, {title: B, sets: [{name: S, file: s.json}]}]\n"
        "figures: [{file: f, title: F, measures: [train_loss]}]",
    )
    assert [type(table) for table in several.tables] == [TableSpec, SetsSpec]
    assert several.figures == [FigureSpec("f", "F", ["train_loss"])]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("title: [", "cannot be read"),
        ("title: A\ncolumns: [modle]", "unknown column 'modle' (did you mean 'model'?)"),
        ("titel: A", "unknown setting 'titel' (did you mean 'title'?)"),
        ("title: A\npublished: [{model: x}]", "note"),
        ("title: A\nwanted: [{model: x}]", "command"),
        ("tables: {title: A}", "are lists"),
        ("tables: []\nfigures: 3", "are lists"),
        ("tables: []\nfigures: [{file: f, title: F, measures: [los]}]", "unknown measure 'los'"),
        ("title: A\nsets: [{name: S}]", "file"),
        ("tables: []\nextra: 1", "unknown setting"),
    ],
)
def test_a_mistake_is_named_with_its_file(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        sheet(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / SPEC}: ")
    assert says in str(caught.value)
