"""``multiworld completion``: print what completes the commands in a shell, made from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Sequence

from ..command_parser import CommandParser
from .main import COMMANDS, HELP

__all__ = ["command_parser", "main", "script", "words"]

NAMES = ("multiworld", "m8d")
EPILOG = """\
bash: eval "$(multiworld completion bash)", or write it to ~/.local/share/bash-completion/completions/multiworld
zsh:  eval "$(multiworld completion zsh)" in ~/.zshrc, after compinit
fish: multiworld completion fish > ~/.config/fish/completions/multiworld.fish"""

BASH = """\
_multiworld() {
    local current="${COMP_WORDS[COMP_CWORD]}" path="" words="" i
    for ((i = 1; i < COMP_CWORD && i < 3; i++)); do
        case "${COMP_WORDS[i]}" in -*) break ;; esac
        [[ "$path" == "" && "${COMP_WORDS[i]}" == help ]] && continue
        case "${path:+$path }${COMP_WORDS[i]}" in
            @PATHS@) path="${path:+$path }${COMP_WORDS[i]}" ;;
            *) break ;;
        esac
    done
    case "$path" in
@CASES@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    case "$current" in -*) ;; *) [[ "$path" == "" ]] || COMPREPLY+=($(compgen -f -- "$current")) ;; esac
}
complete -o filenames @NAMES@
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script of one shell: 0, or 2 for a line that makes no sense."""
    print(script(command_parser().parse_args(arguments).shell), end="")
    return 0


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog="multiworld completion",
        description="Print a script with which a shell completes commands and options.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="for which shell")
    return parser


def script(shell: str) -> str:
    """Return the script of a shell."""
    known = words()
    if shell == "fish":
        return "".join(f"{line}\n" for name in NAMES for line in _fish(name, known))
    paths = "|".join(f'"{path}"' for path in known if path)
    cases = "\n".join(f'        "{path}") words="{" ".join(each)}" ;;' for path, each in known.items())
    functions = BASH.replace("@PATHS@", paths).replace("@CASES@", cases)
    functions = functions.replace("@NAMES@", f"-F _multiworld {' '.join(NAMES)}")
    return functions if shell == "bash" else f"autoload -U +X bashcompinit && bashcompinit\n{functions}"


def words() -> dict[str, list[str]]:
    """Return what may come next after each command, such as ``serve scale``; after nothing, the commands."""
    known = {"": [*COMMANDS, HELP, "--help", "--version"]}
    for command in COMMANDS:
        if command == "run":
            from ..elastic.parser import run_parser  # which needs torch

            known[command] = _of_parser(run_parser())
            continue
        module = importlib.import_module(f"{__package__}.{command}")
        known[command] = _of_parser(module.command_parser())
        if command == "serve":
            verbs: dict[str, argparse.ArgumentParser] = module.parsers()
            known[command] = [*verbs, *known[command]]
            known.update({f"{command} {verb}": _of_parser(parser) for verb, parser in verbs.items()})
    return known


def _of_parser(parser: argparse.ArgumentParser) -> list[str]:
    options = [name for action in parser._actions for name in action.option_strings if action.help != argparse.SUPPRESS]
    choices = [str(each) for action in parser._actions if not action.option_strings for each in action.choices or ()]
    return [*choices, *(name for name in options if "_" not in name)]


def _fish(name: str, known: dict[str, list[str]]) -> Iterable[str]:
    first = "__fish_use_subcommand"
    yield f"complete -c {name} -n {first} -f"
    for word in known[""]:
        about = COMMANDS.get(word, "show the help of a command" if word == HELP else "")
        yield f"complete -c {name} -n {first} {_fish_word(word)}" + (f" -d {_quoted(about)}" if about else "")
    for path, each in known.items():
        if path:
            seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in path.split())
            for word in each:
                yield f"complete -c {name} -n {_quoted(seen)} {_fish_word(word)}"
    yield f"complete -c {name} -n '__fish_seen_subcommand_from {HELP}' -f -a {_quoted(' '.join(COMMANDS))}"


def _fish_word(word: str) -> str:
    if word.startswith("--"):
        return f"-l {word[2:]}"
    if word.startswith("-"):
        return f"-s {word[1:]}" if len(word) == 2 else f"-o {word[1:]}"
    return f"-a {word}"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
