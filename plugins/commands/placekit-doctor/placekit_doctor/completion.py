"""`placekit completion bash|zsh|fish`: the script that a shell sources, and the candidates that this script asks for.

Each command says what completes its arguments (`Command.completer`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from placekit_core import ConfigError, PlacekitError, Registry, unknown
from placekit_core.cli.completion import Completion
from placekit_core.cli.main import find
from placekit_core.cli.parser import Parser
from placekit_doctor.candidates import Candidates

_BASH = """\
_placekit() {
    local IFS=$'\\n'
    COMPREPLY=($(placekit completion --complete "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null))
}
complete -o nospace -F _placekit placekit
"""

_ZSH = """\
_placekit() {
    local -a found
    found=("${(@f)$(placekit completion --complete "$LBUFFER" 2>/dev/null)}")
    compadd -Q -- ${${(M)found:#* }% }
    compadd -Q -S '' -- ${found:#* }
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _placekit placekit
"""

_FISH = """\
function __placekit_complete
    placekit completion --complete (commandline -cp | string collect) 2>/dev/null | string trim --right
end
complete -c placekit -f -a '(__placekit_complete)'
"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def main(argv: list[str], registry: Registry) -> int:
    """Print a shell's script, or for `--complete TEXT [BREAKS]` the candidates, one a line. Raises ConfigError."""
    if len(argv) in (2, 3) and argv[0] == "--complete":
        for candidate in complete(*argv[1:], registry=registry):
            print(candidate)
        return 0
    parser = Parser("completion", "Print the script with which a shell completes placekit's commands and options.")
    parser.add_argument("shell", metavar="|".join(SCRIPTS), help="the shell; docs/completion.md says where it goes")
    shell = parser.read(argv).shell
    if shell not in SCRIPTS:
        raise unknown("shell", shell, SCRIPTS, ConfigError)
    print(SCRIPTS[shell], end="")
    return 0


def complete(text: str, breaks: str = "", *, registry: Registry) -> list[str]:
    """Candidates for the last word of `text`, the command line up to the cursor.

    A candidate that is a whole word ends with a space; one that goes on (`policy=`, `folder/`) does not. Candidates leave out
    the text up to the last of the characters `breaks`: bash replaces only what comes after it.
    """
    words = re.findall(r"(?:\\.|[^\s\\])+", text)[1:]
    word = words.pop() if words and not text[-1].isspace() else ""
    kept = max((word.rfind(c) + 1 for c in breaks if c in "=:@"), default=0)
    return sorted({c[kept:] for c in _candidates(words, word, Candidates(registry)) if c.startswith(word)})


def _candidates(words: list[str], word: str, completion: Completion) -> Iterable[str]:
    registry = completion.registry
    names = [name.split() for name in registry.commands]
    if not words:
        return completion.whole([*dict.fromkeys(name[0] for name in names), "--version", "--help"])
    second = [name[1] for name in names if len(name) == 2 and name[0] == words[0]]
    if len(words) == 1 and second:
        return completion.whole(second)
    try:
        entry, arguments = find(words, registry)
        completer = entry.command.completer
        found: Iterator[str] = entry.load(completer)(arguments, word, completion) if completer else iter(())
    except PlacekitError:  # a shell has no place to show it
        return ()
    return found


def complete_shells(words: list[str], word: str, completion: Completion) -> Iterator[str]:
    """Candidates for this command itself."""
    yield from completion.whole(SCRIPTS if not words else ())
