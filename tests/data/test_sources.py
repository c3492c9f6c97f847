"""The registry of sources: schemes are found by name, misspelt ones are reported, paths stay paths."""

import json
from importlib import import_module

import pytest

from qa_arch.data import sources
from qa_arch.data.files import Format
from qa_arch.data.sources import (
    available,
    format_of,
    identity,
    local,
    open_passages,
    open_source,
    portable,
    usage,
)
from qa_arch.data.squad import write
from qa_arch.data.synthetic import generate
from qa_arch.errors import DataError
from qa_arch.manifest import from_extras

MRQA = '{"header": {"dataset": "M"}}\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with files for several kinds of source."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a.json", 1), ("b.json", 2), ("a:b.json", 3)):
        (tmp_path / name).write_text(json.dumps(write(generate(1, seed))))
    (tmp_path / "m.jsonl").write_text(MRQA)
    (tmp_path / "n.jsonl").write_text(MRQA + "{}\n")
    return tmp_path


DIFFERENT = [
    "a.json",
    "b.json",
    "a:b.json",
    "?.json",
    ["b.json", "a.json"],
    "hub:some/set:train",
    "hub:some/set:dev",
    "synthetic:train",
    "synthetic:train:L2",
    "mrqa:m.jsonl",
    "mrqa:n.jsonl",
    ["mrqa:m.jsonl", "mrqa:n.jsonl"],
]
READ = {"a.json": ["a.json"], "?.json": ["a.json", "b.json"], "mrqa:m.jsonl": ["m.jsonl"]}


def test_different_sources_have_different_identities(folder):
    identities = [identity(source) for source in DIFFERENT]
    assert len(set(identities)) == len(DIFFERENT)
    assert identities == [identity(source) for source in DIFFERENT]
    assert str(folder) not in str(identities)


def test_identity_depends_on_file_content_and_not_on_location(folder, monkeypatch):
    before = {source: identity(source) for source in READ}
    moved = folder.rename(folder.parent / f"{folder.name}-moved")
    monkeypatch.chdir(moved)
    for source, names in READ.items():
        assert identity(source) == before[source]
        for name in names:
            content = (moved / name).read_bytes()
            (moved / name).write_bytes(content + b"\n")
            assert identity(source) != before[source], name
            (moved / name).write_bytes(content)
    for source in ("none.json", "mrqa:none.jsonl"):
        with pytest.raises(DataError, match=r"no such f(ile|older)|No such file|cannot be read"):
            identity(source)
        assert not available(source)


def test_file_name_with_a_colon_is_a_path(folder):
    assert len(open_passages("a:b.json")) == len(open_passages("./a:b.json"))
    assert len(open_passages("a:?.json")) > 0
    assert format_of("C:data.json").holds == "passages", "a drive is not a scheme"


def test_invalid_sources_are_refused(folder):
    misspelt = {
        "mrq:x.jsonl": r"mrq:x.jsonl: no such file, and no scheme 'mrq:' \(did you mean 'mrqa'\?\)",
        "sythetic:dev": r"did you mean 'synthetic'\?",
    }
    for source, message in [*misspelt.items(), ([], "no data given; name FILE \\(JSON, ")]:
        for function in (open_source, identity, format_of, available):
            with pytest.raises(DataError, match=message):
                function(source)
    for source, named in (
        (["a.json", "hub:x/y:train"], "hub:x/y:train: a hub set"),
        (["synthetic:dev", "synthetic:train"], "synthetic:dev: the embedded set"),
        (["mrqa:m.jsonl", "a.json"], "mrqa:m.jsonl: an MRQA file"),
    ):
        for function in (open_source, identity):
            with pytest.raises(DataError, match=f"^{named}.* cannot be joined with others"):
                function(source)


@pytest.mark.parametrize("prefix", ["", "mrqa:", "hub:"])
@pytest.mark.parametrize("tail", ["x.json", "x:train"])
def test_portable_names_contain_no_machine_path(monkeypatch, tmp_path, prefix, tail):
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    source = f"{prefix}{tmp_path}/data/{tail}"
    assert portable(source) == f"{prefix}$QA_ARCH_DATA/{tail}"
    assert local(portable(source)) == source
    assert portable(f"{prefix}{tmp_path}/{tail}") == f"{prefix}./{tail}"
    assert portable(f"{prefix}{tail}") == f"{prefix}{tail}"
    with pytest.raises(DataError, match=r"^/elsewhere/.* is outside .*set QA_ARCH_DATA"):
        portable(f"{prefix}/elsewhere/{tail}")
    assert portable("synthetic:dev") == "synthetic:dev"
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setenv("QA_ARCH_DATA", str(tmp_path / "link"))
    monkeypatch.chdir("/")
    for folder in ("link", "elsewhere"):
        assert portable(f"{prefix}{tmp_path}/{folder}/{tail}") == f"{prefix}$QA_ARCH_DATA/{tail}"


def test_every_format_documents_itself():
    """Every scheme is ours or of an extra, and is described by its module."""
    known = {scheme: sources._format(scheme) for scheme in sources.schemes()}
    modules = {**sources.OWN, **from_extras("formats")}
    assert set(known) == set(modules)
    for scheme, form in known.items():
        assert isinstance(form, Format)
        assert form.usage.startswith(f"{scheme}:")
        typed = scheme != "memory"  # which the command line cannot give
        assert (form.usage in usage(passages=form.holds == "passages")) == typed
        module, _, several = modules[scheme].partition(":")
        assert (several and scheme not in sources.OWN) or f"``{scheme}:" in import_module(module).__doc__
    assert usage().startswith("FILE (JSON, JSON Lines, CSV or Parquet), FOLDER (of files, or from ")
