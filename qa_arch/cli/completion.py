"""``qa-arch completion``: scripts by which a shell completes commands, options, settings and choices.

The scripts call ``qa-arch completion --line`` at every press of the tab key: nothing slow is imported here.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from qa_arch.errors import ConfigError

BASH = r"""# source <(qa-arch completion bash)
_qa_arch() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word before=
    COMPREPLY=($(qa-arch completion --line "$line" 2>/dev/null))
    word=${line##*[[:space:]]}
    case $COMP_WORDBREAKS in *=*) before=${word%"${word##*[=:]}"} ;; esac
    COMPREPLY=("${COMPREPLY[@]#"$before"}")  # bash replaces only what follows the last = or :
    case ${COMPREPLY[0]-} in *[=.]) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _qa_arch qa-arch
"""
ZSH = r"""#compdef qa-arch
# source <(qa-arch completion zsh)
_qa_arch() {
    local -a open closed
    local word
    for word in ${(f)"$(qa-arch completion --line "${(j: :)words[1,CURRENT]}" 2>/dev/null)"}; do
        if [[ $word == *[=.] ]]; then open+=$word; else closed+=$word; fi
    done
    (( $#open )) && compadd -S '' -- $open
    (( $#closed )) && compadd -- $closed
    (( $#open + $#closed )) || _files
}
compdef _qa_arch qa-arch
"""
FISH = r"""# qa-arch completion fish | source
function __qa_arch
    qa-arch completion --line (commandline -cp | string collect) 2>/dev/null
end
complete -c qa-arch -a '(__qa_arch)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
SETTINGS = "KEY=VALUE"
"""What the arguments are called that take settings."""
INTERNAL = ("special",)
"""Groups that are chosen by other groups."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "for this shell: source <(qa-arch completion bash), or qa-arch completion fish | source; for every"
        " one: write that into ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish"
    )
    parser.add_argument("shell", nargs="?", choices=tuple(SHELLS))
    parser.add_argument("--line", metavar="TEXT", help="print what may stand at the end of this command line")


def run(args: argparse.Namespace) -> int:
    """Print a shell's script, or the words for a line."""
    if (args.shell is None) == (args.line is None):
        raise ConfigError(f"completion: name a shell ({', '.join(SHELLS)})")
    if args.shell is not None:
        print(SHELLS[args.shell], end="")
    else:
        print("".join(f"{word}\n" for word in complete(args.line)), end="")
    return 0


def complete(line: str) -> list[str]:
    """Words that may stand where ``line`` ends, which begin with its last; none where files may stand."""
    from qa_arch.cli.main import COMMANDS

    *words, current = _split(line)
    command = next((word for word in words[1:] if not word.startswith("-")), None)
    if command is None:
        return _matching(current, [*COMMANDS, "--help", "--version", "--debug"])
    if command not in COMMANDS:
        return []
    rest = words[words.index(command, 1) + 1 :]
    return list(dict.fromkeys(_matching(current, _candidates(command, rest, current))))


def _split(line: str) -> list[str]:
    """The words of ``line``; the last is empty where it ends in a space."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    return [*words, ""] if not line or line[-1].isspace() else words


def _matching(current: str, candidates: Iterable[str]) -> list[str]:
    return [word for word in candidates if word.startswith(current)]


def _candidates(command: str, rest: Sequence[str], current: str) -> Iterator[str]:
    parser = _parser(command, rest)
    options = {option: action for action in parser._actions for option in action.option_strings}
    before = options.get(rest[-1]) if rest else None
    if before is not None and before.nargs != 0:
        yield from map(str, before.choices or ())
        if before.nargs is None:  # its value is due
            return
    if current.startswith("-"):
        yield from options
        return
    for action in parser._actions:
        if not action.option_strings:
            yield from map(str, action.choices or ())
            if SETTINGS in str(action.metavar):
                yield from _settings(rest, current)
    if command == "list" and not rest:
        from qa_arch.cli.list import KINDS
        from qa_arch.cli.list import SETTINGS as ALL_SETTINGS
        from qa_arch.config.find import config_folders, groups

        yield from (
            *KINDS,
            ALL_SETTINGS,
            *(name for name in groups(config_folders()) if name not in INTERNAL),
        )


def _parser(command: str, rest: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command, or of its subcommand where one is named."""
    from qa_arch.cli.main import COMMANDS

    parser = argparse.ArgumentParser(prog=command)
    COMMANDS[command].prepare(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return next((action.choices[word] for word in rest if word in action.choices), parser)
    return parser


def _settings(rest: Sequence[str], current: str) -> Iterator[str]:
    """Groups and settings, by section until a section is named; behind ``=`` the values."""
    from qa_arch.config.catalogue import keys, settings
    from qa_arch.config.find import groups
    from qa_arch.config.schema import Config

    folders = _folders(rest)
    known = {name: choices for name, choices in groups(folders).items() if name not in INTERNAL}
    chosen = dict(word.split("=", 1) for word in rest if "=" in word)
    values = {item.name: item.words for item in settings(Config)}
    values |= {f"model.{key}": () for key in keys("model", chosen.get("model", "bert"), folders)}
    name, equals, value = current.partition("=")
    if equals:
        earlier = value.rpartition(",")[0]  # of a sweep
        start = f"{name}={earlier}," if earlier else f"{name}="
        words = known.get(name) or values.get(name, ())
        yield from (f"{start}{word}" for word in words if not word.startswith("_"))
        return
    yield from (f"{group}=" for group in known)
    for setting in values:
        section, dot, _ = setting.partition(".")
        if setting not in known:
            yield f"{setting}=" if not dot or "." in current else f"{section}."


def _folders(rest: Sequence[str]) -> tuple[Path, ...]:
    from qa_arch.config.find import config_folders

    own = rest[rest.index("--config-dir") + 1 :] if "--config-dir" in rest else []
    try:
        return config_folders(own[0] if own else None)
    except ConfigError:
        return config_folders()
