"""``qa-arch completion``: bash completion of commands, options, config groups and their choices.

The script calls ``qa-arch completion --line`` at every press of the tab key: nothing slow is imported here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from qa_arch.config.find import config_folders, groups

BASH = r"""# source <(qa-arch completion)
_qa_arch() {
    local IFS=$'\n' line=${COMP_LINE:0:COMP_POINT} word before=
    COMPREPLY=($(qa-arch completion --line "$line" 2>/dev/null))
    word=${line##*[[:space:]]}
    case $COMP_WORDBREAKS in *=*) before=${word%"${word##*[=:]}"} ;; esac
    COMPREPLY=("${COMPREPLY[@]#"$before"}")  # bash replaces only what follows the last = or :
    case ${COMPREPLY[0]-} in *=) compopt -o nospace 2>/dev/null ;; esac
}
complete -o default -F _qa_arch qa-arch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "in this shell: source <(qa-arch completion); in every shell: add that line to ~/.bashrc"
    parser.add_argument("shell", nargs="?", choices=("bash",), default="bash")
    parser.add_argument("--line", metavar="TEXT", help="print the completions of this command line")


def run(args: argparse.Namespace) -> int:
    """Print the bash script, or the completions of ``--line``."""
    print(BASH if args.line is None else "".join(f"{word}\n" for word in complete(args.line)), end="")
    return 0


def complete(line: str) -> list[str]:
    """Completions of the last word of ``line``; none where bash should complete file names."""
    words = line.split()
    current = words.pop() if line[-1:].strip() else ""
    return [word for word in _candidates(words[1:], current) if word.startswith(current)]


def _candidates(words: Sequence[str], current: str) -> Iterator[str]:
    from qa_arch.cli.main import COMMANDS

    command = next((word for word in words if not word.startswith("-")), None)
    if command is None:
        yield from (*COMMANDS, "--help", "--version", "--debug")
    if command not in COMMANDS:
        return
    parser = argparse.ArgumentParser()
    COMMANDS[command].prepare(parser)
    options = {option: action for action in parser._actions for option in action.option_strings}
    if words[-1] in options and options[words[-1]].choices:
        yield from map(str, options[words[-1]].choices or ())
        return
    yield from options
    for action in parser._actions:
        if not action.option_strings:
            yield from map(str, action.choices or ())
        if action.dest == "overrides":
            for group, choices in groups(config_folders()).items():
                inside = current.startswith(f"{group}=")
                yield from (f"{group}={choice}" for choice in choices) if inside else (f"{group}=",)
