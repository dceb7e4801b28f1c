"""``multiworld completion``: print what completes the commands in a shell, made from the parsers themselves."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..bench.run import BENCHMARKS
from ..command_parser import CommandParser
from .main import COMMANDS, HELP

NAMES = ("multiworld", "m8d")
EPILOG = """\
bash: eval "$(multiworld completion bash)", or write it to ~/.local/share/bash-completion/completions/multiworld
zsh:  eval "$(multiworld completion zsh)" in ~/.zshrc, or write it to _multiworld in a folder of $fpath
fish: multiworld completion fish > ~/.config/fish/completions/multiworld.fish"""

WITH_FILES = ("run", "train", "train report", "train plan", "train simulate", "exec", "serve", "serve update")
"""Where what is no option names a file."""
POSITIONALS = {"bench": tuple(BENCHMARKS)}

# what both of them do once they know the words before the cursor: ``before`` is the last one
TABLES = """\
    case "$place" in
@KNOWN@
    esac
    case "$place $before" in
@VALUES@
    esac
"""
BASH = """\
_multiworld() {
    local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" place="" known="" files="" i
    if [[ "$current" == "=" ]]; then
        current=""
    elif [[ "$before" == "=" ]]; then
        before="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    for ((i = 1; i < COMP_CWORD && i < 4; i++)); do
        [[ "$place" == "" && "${COMP_WORDS[i]}" == help ]] && continue
        case "${place:+$place }${COMP_WORDS[i]}" in
            @PLACES@) place="${place:+$place }${COMP_WORDS[i]}" ;;
            *) break ;;
        esac
    done
@TABLES@    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "${known// /$IFS}" -- "$current"))
    [[ "$files" == "" || "$current" == -* ]] || COMPREPLY+=($(compgen -f -- "$current"))
}
complete -o filenames -F _multiworld @NAMES@
complete -W "@OOBLECK@" oobleck
"""
ZSH = """\
#compdef @NAMES@ oobleck
_multiworld() {
    emulate -L zsh
    local before="${words[CURRENT-1]}" place="" known="" files="" i
    if [[ "${words[CURRENT]}" == --*=* ]]; then
        before="${words[CURRENT]%%=*}"
        compset -P "*="
    fi
    for ((i = 2; i < CURRENT && i < 5; i++)); do
        [[ "$place" == "" && "${words[i]}" == help ]] && continue
        case "${place:+$place }${words[i]}" in
            @PLACES@) place="${place:+$place }${words[i]}" ;;
            *) break ;;
        esac
    done
@TABLES@    compadd -- ${=known}
    [[ "$files" == "" ]] || _files
}
_oobleck() { compadd -- @OOBLECK@ }
if [[ "${funcstack[1]}" == _multiworld && "$service" == oobleck ]]; then
    _oobleck
elif [[ "${funcstack[1]}" == _multiworld ]]; then
    _multiworld "$@"
else
    (( ${+functions[compdef]} )) || { autoload -Uz compinit && compinit -i }
    compdef _multiworld @NAMES@
    compdef _oobleck oobleck
fi
"""
FISH = """\
function __multiworld_at
    set -l place
    for word in (commandline -opc)[2..-1]
        if test -z "$place" -a "$word" = help
            continue
        else if contains -- "$place$word" @PLACES@
            set place "$place$word "
        else
            break
        end
    end
    test "$place" = "$argv "; or test -z "$place$argv"
end
complete -c multiworld -f
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """What may come next after a command, such as ``serve scale``."""

    words: tuple[str, ...]
    values: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Of the options that take one; None: it may name a file. Empty: nothing is known of it."""
    has_files: bool = False

    @classmethod
    def of(
        cls,
        path: str,
        parser: argparse.ArgumentParser,
        verbs: Iterable[str] = (),
        values: Mapping[str, tuple[str, ...]] | None = None,
    ) -> Place:
        """``values``: of options, which the parser does not know. ``verbs``: what may come in place of all else."""
        shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
        choices = [each for action in shown if not action.option_strings for each in _choices(action)]
        options = {name: action for action in shown for name in action.option_strings if "_" not in name}
        return cls(
            words=(*verbs, *POSITIONALS.get(path, ()), *choices, *options),
            values={
                **{name: _values(action) for name, action in options.items() if action.nargs is None},
                **(values or {}),
            },
            has_files=path in WITH_FILES,
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script of one shell: 0, or 2 for a line that makes no sense."""
    print(script(command_parser().parse_args(arguments).shell), end="")
    return 0


def command_parser() -> CommandParser:
    parser = CommandParser(
        prog="multiworld completion",
        description="Print a script with which a shell completes commands, options and their values.",
        epilog=EPILOG,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="for which shell")
    return parser


def script(shell: str) -> str:
    known = places()
    if shell == "fish":
        return "".join(f"{line}\n" for line in _fish(known))
    text = (BASH if shell == "bash" else ZSH).replace("@TABLES@", TABLES)
    for name, content in (
        ("@PLACES@", "|".join(f'"{path}"' for path in known if path)),
        ("@KNOWN@", "\n".join(_case(path, place.words, place.has_files) for path, place in known.items())),
        ("@VALUES@", "\n".join(_value_cases(known))),
        ("@NAMES@", " ".join(NAMES)),
        ("@OOBLECK@", " ".join(known["oobleck"].words)),
    ):
        text = text.replace(name, content)
    return text


def places() -> dict[str, Place]:
    """Return what may come next after each command, such as ``serve scale``; after nothing, the commands."""
    known = {"": Place(words=(*COMMANDS, HELP, "--help", "--version"))}
    for command in COMMANDS:
        if command == "run":
            from ..elastic.launch.parser import run_parser  # which needs torch
            from ..elastic.rendezvous.registry import names

            known[command] = Place.of(command, run_parser(), values={"--rdzv-backend": (*names(), "standalone")})
            continue
        module = importlib.import_module(f"{__package__}.{command}")
        verbs: dict[str, argparse.ArgumentParser] = module.parsers() if command in ("nodes", "serve", "train") else {}
        known[command] = Place.of(command, module.command_parser(), verbs)
        for verb, parser in verbs.items():
            known[f"{command} {verb}"] = Place.of(f"{command} {verb}", parser)
    return known


def _choices(action: argparse.Action) -> tuple[str, ...]:
    """Return what the action takes, if that is a list; one that is only shown has it in its name."""
    shown = action.metavar if isinstance(action.metavar, str) else ""
    if not action.choices and shown.startswith("{"):
        return tuple(shown.strip("{}").split(","))
    return tuple(map(str, action.choices or ()))


def _values(action: argparse.Action) -> tuple[str, ...] | None:
    return _choices(action) or (() if action.type in (int, float) else None)


def _case(pattern: str, words: Iterable[str], has_files: bool) -> str:
    return f'        "{pattern}") known="{" ".join(words)}" files={"1" if has_files else ""} ;;'


def _value_cases(known: Mapping[str, Place]) -> Iterator[str]:
    for path, place in known.items():
        for option, values in place.values.items():
            yield _case(f"{path} {option}", values or (), values is None)


def _fish(known: Mapping[str, Place]) -> Iterator[str]:
    yield FISH.replace("@PLACES@", " ".join(_quoted(path) for path in known if path)).rstrip("\n")
    for path, place in known.items():
        at = f"complete -c multiworld -n {_quoted(f'__multiworld_at {path}'.rstrip())}"
        if place.has_files:
            yield f"{at} -F"
        for word in place.words:
            about = COMMANDS.get(word, "show the help of a command" if word == HELP else "") if not path else ""
            yield f"{at} {_fish_word(word)}{_fish_value(word, place)}" + (f" -d {_quoted(about)}" if about else "")
    for name in NAMES[1:]:
        yield f"complete -c {name} -w multiworld"
    yield f"complete -c oobleck -f -a {_quoted(' '.join(known['oobleck'].words))}"


def _fish_word(word: str) -> str:
    if word.startswith("--"):
        return f"-l {word[2:]}"
    if word.startswith("-"):
        return f"-s {word[1:]}" if len(word) == 2 else f"-o {word[1:]}"
    return f"-a {word}"


def _fish_value(option: str, place: Place) -> str:
    if option not in place.values:
        return ""
    values = place.values[option]
    return " -r -F" if values is None else f" -x -a {_quoted(' '.join(values))}" if values else " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
