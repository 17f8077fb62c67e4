"""The command `placekit accuracy`: how far predictions are from published measurements, by kind of row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from placekit_accuracy.chart import chart
from placekit_accuracy.errors import WRONG, Errors, by_kind, reason, unpredicted, write_bands
from placekit_accuracy.predict import Prediction, predict
from placekit_accuracy.rows import Row, left_out, measurements
from placekit_core import ConfigError, Registry, write_atomically
from placekit_core.cli.console import table, wrapped
from placekit_core.cli.parser import Parser

HEAD = ["rows", "median", "90%", "worst", "bias"]


def main(argv: list[str], registry: Registry) -> int:
    """Predict the rows that contain WORD, and print their errors."""
    parser = Parser("accuracy", "Predict published speeds of language models, and print the errors by kind of row.")
    parser.add_argument("words", nargs="*", metavar="WORD", help="only rows with these words, such as decode rtx3090")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="also print the N rows with the worst errors")
    parser.add_argument(
        "--by", choices=("device", "model", "source"), help="also print the errors by device, model or source"
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw predicted against measured speeds")
    parser.add_argument("--write-bands", action="store_true", help="write the error bands that results of runs show")
    given = parser.read(argv)
    if given.worst < 0:
        raise ConfigError(f"--worst {given.worst} is not a number of rows", "give 0 or more")
    rows = [row for row in measurements() if all(_plain(word) in _plain(_text(row)) for word in given.words)]
    if not rows:
        words = " ".join(given.words)
        raise ConfigError(f"no published row has {words!r}", "give a device, a model, a kind or a source")
    predictions = predict(rows, registry)
    if predictions:
        show(predictions)
        if given.by:
            show_by(predictions, given.by)
        show_worst(predictions, given.worst)
    if not (given.worst or given.by) or not predictions:
        show_missing(rows, not given.words)
    if given.svg is not None:
        write_atomically(given.svg, chart(predictions).encode())
    if given.write_bands:
        write_bands(registry)
    return 0


def _text(row: Row) -> str:
    fit = "fit" if row.fits_rates else "held out"
    unlike = "unlike" if row.unlike else ""
    return f"{row.kind} {unlike} {row.what} {row.runtime} {row.source} {row.id} {fit}"


def _plain(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum())


def show(predictions: Sequence[Prediction]) -> None:
    """Print the errors by kind: first the rows that set no figure."""
    for fit, title in ((False, "held out"), (True, "set figures")):
        found = [e for set_figures, e in by_kind(predictions) if set_figures == fit]
        if found:
            table([f"rows that {'were ' * (not fit)}{title}", *HEAD], [[e.kind, *_cells(e)] for e in found], left=1)


def show_by(predictions: Sequence[Prediction], key: str) -> None:
    """Print the errors by device, model or source."""

    def label(row: Row) -> str:
        own = {"device": " + ".join(sorted({*row.devices})) or "CPU", "model": row.model, "source": row.source}[key]
        return f"{own}, {'prompt' if row.prompt else 'decode'}"

    labels = sorted({label(p.row) for p in predictions})
    found = [Errors.of(own, [p for p in predictions if label(p.row) == own]) for own in labels]
    table([key, *HEAD], [[e.kind, *_cells(e)] for e in found], left=1)


def _cells(e: Errors) -> list[str]:
    return [str(e.n), f"{e.median:.1%}", f"{e.p90:.1%}", f"{e.worst:.0%}", f"{e.bias:+.1%}"]


def show_worst(predictions: Sequence[Prediction], number: int) -> None:
    """Print the rows with the largest errors, their sources, and why, if that is known."""
    wrong = sorted((p for p in predictions if abs(p.error) > WRONG), key=lambda p: -abs(p.error))
    print(f"{len(wrong)} of {len(predictions)} rows are wrong by more than {WRONG:.0%}")
    for p in wrong[:number]:
        why = reason(p.row)
        measured, predicted = (f"{v:,.{1 if v < 100 else 0}f}" for v in (p.row.tokens_per_s, p.tokens_per_s))
        speeds = f"{measured} tokens/s measured, {predicted} predicted ({p.error:+.0%})"
        where = f"{p.row.source}, {p.row.runtime}{'. ' * bool(why)}{why}"
        print(wrapped(f"{p.row.id} {p.row.what}: {speeds}; {where}"))


def show_missing(rows: Sequence[Row], all_rows: bool) -> None:
    """Print how many rows are not predicted, and why."""
    missing = unpredicted(rows)
    for title, found in (("not predicted", missing), ("left out of the table", left_out() if all_rows else {})):
        if found:
            reasons = "; ".join(f"{why}, {n}" for why, n in found.items())
            n = sum(found.values())
            print(wrapped(f"{n} row{'s' * (n != 1)} {title}: {reasons}"))
