"""Claims, pages, tables and experiments of papers."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from placekit_papers import pages
from placekit_papers.claims import NAMES, VERDICTS, Item, count, load_paper, together
from placekit_papers.command import item_table
from placekit_papers.paper_tables import by_place, orders, paper_table
from placekit_papers.parts import Placed, parts_of, parts_svg, parts_table, read_parts, write_parts
from placekit_papers.runs import DATA, Run, Runs, read_runs, runs_in, write_runs
from placekit_papers.statistics import change_text, judge, log_ratio, mean_text
from placekit_papers.texts import fill
from placekit_testing.speed import mostly_slow

from placekit_core import ConfigError, RunError, installed
from placekit_core.cli.compose import compose_all, jobs

Command = Callable[..., object]
RESEARCH = Path(__file__).resolve().parents[4] / "docs" / "research"
EXPERIMENTS = DATA.parent / "conf" / "experiment"
TABLES = {"mirhoseini2017": "mirhoseini_table2", "placeto": "placeto_table1", "post": "post_table1"}
DRAWN = {"scotch", "mincut", "metis"}  # with six seeds, by a command of their own
SLOW = dict(enumerate([1.000, 1.004, 0.996, 1.000, 1.004, 0.996]))
FAST = {k: 0.98 * v for k, v in SLOW.items()}
NOISY = dict(enumerate([0.9, 1.1, 1.0, 1.2, 0.8, 1.0]))


def test_counts_of_verdicts() -> None:
    """They change only if runs or rules do: say why in the commit."""
    assert {name: count(name) for name in NAMES} == {
        "mirhoseini2017": {"data sheets": [2, 8, 5, 4, 0], "tf2017": [3, 1, 2, 8, 0], "": [0, 3, 0, 0, 1]},
        "post": {"data sheets": [1, 4, 7, 6, 0], "tf2017": [2, 1, 5, 1, 0]},
        "placeto": {"data sheets": [4, 6, 3, 3, 0], "tf2017": [2, 3, 2, 0, 0], "": [0, 0, 0, 3, 0]},
        "doppler": {"data sheets": [1, 16, 0, 4, 0], "": [0, 1, 0, 0, 1]},
    }
    assert VERDICTS == ("holds", "partly", "contradicted", "open", "not done")


@pytest.mark.parametrize("page", ["README", *NAMES])
def test_pages_have_the_figures_of_the_runs(page: str) -> None:
    """A wrong digit in any generated line is found, in the summary as in the table."""
    text, parts = (RESEARCH / f"{page}.md").read_text(), pages.parts_of(page)
    assert pages.updated(text, parts) == text, "placekit paper --write docs/research"
    for line in (line for lines in parts.values() for line in lines if re.search(r"\d", line)):
        digit = re.search(r"\d", line)
        assert digit is not None
        wrong = text.replace(line, f"{line[: digit.start()]}{(int(digit[0]) + 1) % 10}{line[digit.end() :]}")
        assert wrong != text
        assert pages.updated(wrong, parts) == text


def test_pages_are_short() -> None:
    for page in RESEARCH.glob("*.md"):
        assert sum(bool(re.search(r"\w", word)) for word in page.read_text().split()) <= 1_500, page


def test_summaries_have_no_figures_of_ours_that_are_typed() -> None:
    """Figures are computed, but for budgets, sections, and what is said of the paper in brackets."""
    allowed = {"8", "2,400", "24,000", "10,000", "4,000", "321", "801", "32", "50"}
    for name in NAMES:
        text = re.sub(
            r"\{[^{}]*\}|\(the paper[^()]*\)|`[^`]*`|table \d+|ResNet-50|Inception-V3", "", load_paper(name).summary
        )
        assert set(re.findall(r"\d[\d,.]*\d|\d", text)) <= allowed, name


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ConfigError, match="lacks <!-- claims -->"):
        pages.updated("text", {"claims": []})


def test_a_verdict_follows_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the learned method were eight times as fast, the claim that it is faster would hold in all rows."""
    from placekit_papers import claims

    paper, real = load_paper("doppler"), claims.quantities
    claim = next(c for c in paper.claims if "less time than critical path" in c.paper)
    assert claims._judged(paper, claim).verdicts["data sheets"].verdict == "partly"

    def eight_times(names: list[str], w: str, c: str, method: str, quantity: str = "value") -> dict[int, float]:
        faster = 8 if (method, quantity) == ("doppler", "value") else 1
        return {seed: x / faster for seed, x in real(names, w, c, method, quantity).items()}

    monkeypatch.setattr(claims, "quantities", eight_times)
    assert claims._judged(paper, claim).verdicts["data sheets"].text() == "holds"


def test_texts_are_computed() -> None:
    assert fill("x {seconds|mirhoseini_table2|nmt|k80x2|single_gpu} y") == "x 1.02 s y"
    with pytest.raises(ConfigError, match="no function 'what'"):
        fill("{what|x}")


def test_orders_hold_by_hand() -> None:
    """Six seeds each: a method 2% faster, and one that differs by chance."""
    assert judge("<", FAST, SLOW) == "holds"
    assert judge("<", SLOW, FAST) == "reversed"
    assert judge("<", NOISY, SLOW) == "open"
    assert judge("=", SLOW, {0: 1.0}) == "holds"
    assert judge("=", FAST, {0: 1.0}) == "reversed"
    assert judge("<=", SLOW, SLOW) == judge("<=", FAST, SLOW) == "holds"
    assert (judge("<=", SLOW, FAST), judge("<=", NOISY, SLOW)) == ("reversed", "open")
    assert (judge(">=", SLOW, SLOW), judge(">=", FAST, SLOW), judge(">=", NOISY, SLOW)) == ("holds", "reversed", "open")
    assert (judge("not >", NOISY, SLOW), judge("not >", SLOW, FAST)) == ("holds", "reversed")
    assert (judge("<= 10%", SLOW, FAST), judge("<= 10%", SLOW, {0: 0.8})) == ("holds", "reversed")
    assert judge("<", {0: 1.0}, {0: 2.0}) == "holds", "two methods without random numbers"
    assert (judge("<", FAST, SLOW, 0.02), judge("<", FAST, SLOW, 0.03)) == ("holds", "open"), "an amount"
    with pytest.raises(ValueError, match="no order '>'"):
        judge(">", FAST, SLOW)


def test_seeds_that_find_nothing_do_not_decide() -> None:
    assert judge("<", SLOW, {0: inf}) == "holds", "out of memory is slower than anything"
    assert judge("<", {0: 1.0, 1: inf, 2: inf}, {0: 2.0}) == "reversed"
    assert judge("<", {0: 1.0, 1: inf, 2: 3.0}, {0: 9.0, 1: 9.0, 2: inf}) == "open"
    assert change_text({0: inf}, {0: inf}) == "neither fits"
    assert change_text(FAST, SLOW) == "-2.0±0.5%"
    assert (mean_text({0: inf}), mean_text({0: 1.0, 1: inf})) == ("OOM", "1 (1 of 2)")


def test_an_interval_does_not_reach_below_a_bound() -> None:
    values = dict(enumerate([1.00, 1.01, 1.01, 1.01, 1.01, 1.01]))
    assert (mean_text(values), mean_text(values, bound=1.0)) == ("1.01±0.004", "1.01±0.004")
    assert mean_text(values, bound=1.0045) == "1 to 1.01"
    assert mean_text({0: 1.0, 1: 1.0, 2: 3.0}) == "1 to 3"


def test_seeds_in_two_places_are_shown() -> None:
    """No interval describes them, and an order holds only if it does for all seeds."""
    two = dict(enumerate([1.0, 1.0, 1.0, 3.0, 3.0, 3.0]))
    assert change_text(two, {0: 1.0}) == "by seed 3 × +0%, 3 × +200%"
    assert change_text(two, dict(enumerate([1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))) == "-50 to +200%"
    assert judge("<", {0: 1.0}, two) == "open"
    assert judge("<", {0: 0.1}, two) == "holds"
    there, back = log_ratio(two, SLOW), log_ratio(SLOW, two)
    assert there.spread
    assert there == pytest.approx((-back.high, -back.mean, -back.low, True)), "whichever method comes first"


def test_verdicts_on_several_rows() -> None:
    assert together(["holds", "holds"]) == ("holds", "in 2 of 2 rows")
    assert together(["holds", "reversed", "reversed"]) == ("partly", "in 1 of 3 rows, 2 reversed")
    assert together(["open"]) == ("open", "")
    assert together(["open", "open", "reversed"]) == ("open", "in 0 of 3 rows, 1 reversed")
    assert together(["open", "reversed", "reversed"]) == ("contradicted", "in 0 of 3 rows, 2 reversed")


def test_runs_survive_a_file(tmp_path: Path) -> None:
    rows = [
        Run("mlp", "k80x2", "post", i, v, 0.1, 9, -1, 1.0, {"k80:0": 0.5}, 0.25, late)
        for i, (v, late) in enumerate([(0.5, 0.75), (inf, 3.0)])
    ]
    write_runs(rows, tmp_path / "x.csv")
    assert read_runs(tmp_path / "x.csv") == rows
    assert by_place(rows, "late_s")["mlp", "k80x2"]["post"] == {0: 0.75, 1: 3.0}
    with pytest.raises(RunError, match="has only one seed"):
        Runs([rows[0]])
    with pytest.raises(RunError, match="no runs of 'etf'"):
        Runs(rows).of("mlp", "k80x2", "etf")


def test_orders_of_a_table() -> None:
    methods, paper = paper_table("doppler_table2", "p100x{}")
    assert paper["chainmm", "p100x4"]["doppler"] == 0.1225
    assert len(orders(methods, paper, by_place(read_runs(DATA / "doppler_table2.csv")))) == 40


def test_runs_of_programs_that_the_paper_lacks_are_shown() -> None:
    """`--run DIR workload=chainmm_small` changes the runs; they stand in a table of their own."""
    item = load_paper("doppler").items["table2"]
    small, own = Run("chainmm_small", "p100x4", "etf", 0, 2e-4), Run("chainmm", "p100x4", "etf", 0, 0.125)
    text = "\n".join(item_table(item, {"doppler_table2": [own, small]}))
    assert re.search(r"chainmm +p100x4 .* 0\.125", text)
    assert re.search(r"chainmm_small +p100x4 +0\.0002", text)
    assert "here, seconds" in text


@pytest.mark.parametrize("name", mostly_slow(NAMES, [], [name for name in NAMES if name != "post"]))
def test_items_are_complete(name: str) -> None:
    """Every item can be shown and run, its experiments name what exists, and it takes a known time."""
    used = set()
    for key, item in load_paper(name).items.items():
        assert item.expected_minutes > 0 or item.study, key
        assert bool(item.experiments) != bool(item.study), key
        assert len(item.tables) in (0, len(item.runs)), key
        assert {e.runs for e in item.experiments if e.runs} in (set(), set(item.runs)), key
        for experiment in item.experiments:
            names = [word.partition("=")[2] for word in experiment.options if word.startswith("experiment=")]
            used |= set(names)
            assert compose_all([*experiment.options], installed()), key
        if item.study:
            study = importlib.import_module(item.study)
            assert study.show()
            assert callable(study.run)
    assert all((EXPERIMENTS / f"{n}.yaml").is_file() for n in used)


def test_experiments_name_what_exists() -> None:
    known = {
        key: {c.name for c in installed().choices() if c.group == key} for key in ("workload", "cluster", "policy")
    }
    wrong = []
    for path in sorted(EXPERIMENTS.glob("*.yaml")):
        params = yaml.safe_load(path.read_text())["hydra"]["sweeper"]["params"]
        swept = {option for job in jobs([f"{k}={v}" for k, v in params.items()], installed()) for option in job}
        for option in swept:
            key, _, name = option.partition("=")
            if key in known and name not in known[key]:
                wrong.append(f"{path.stem}: {option}")
    assert wrong == []


@pytest.mark.parametrize("paper", TABLES)
def test_every_figure_of_a_paper_has_a_job(paper: str) -> None:
    """On both machines."""
    names = ("baselines", "learned") if paper == "mirhoseini2017" else ("table1_?gpus", "learned_?gpus")
    found = set()
    for path in (p for name in names for p in EXPERIMENTS.glob(f"{paper}_{name}.yaml")):
        params = yaml.safe_load(path.read_text())["hydra"]["sweeper"]["params"]
        for job in jobs([f"{key}={value}" for key, value in params.items() if key != "seed"], installed()):
            chosen = dict(option.split("=") for option in job)
            policy = chosen["policy"].removeprefix(f"{path.stem.split('_')[0]}_")
            found.add((chosen["workload"], chosen["cluster"], policy))
    table = paper_table(TABLES[paper], "k80x{}")[1]
    wanted = {(*place, method) for place, seconds in table.items() for method in seconds if method not in DRAWN}
    assert len(wanted) > 20
    assert wanted <= found
    assert {(w, f"{c}_tf2017", m) for w, c, m in wanted} <= found


class TestCommand:
    def test_lists_papers_items_and_claims(self, placekit: Command) -> None:
        assert re.search(r"doppler +data sheets +1 +16 +0 +4 +0", placekit("paper").out)
        assert re.search(r"table9 +eight V100 +1 partly +\d+", placekit("paper", "doppler").out)
        out = placekit("paper", "doppler", "table9").out
        assert "ChainMM -12.3±0.5%" in out
        assert "partly, in 2 of 4 rows" in out

    def test_shows_the_papers_figures_beside_ours(self, placekit: Command) -> None:
        out = placekit("paper", "doppler", "table3").out
        assert re.search(r"chainmm +p100x4 +0\.127 \| 0\.2\d+", out)
        assert "the paper's order of two methods holds in" in out
        assert "over a single GPU" in placekit("paper", "placeto", "figure5").out

    @pytest.mark.parametrize(
        ("words", "message"),
        [(["x"], "no paper 'x'"), (["post", "x"], "has no item 'x'"), (["post", "table1", "seed=0"], "OPTION=VALUE changes runs"),
         (["placeto", "orders", "seed=0", "--run", "out"], "takes no options")],
    )  # fmt: skip
    def test_mistakes(self, placekit: Command, words: list[str], message: str) -> None:
        outcome = placekit("paper", *words)
        assert outcome.code == 1
        assert message in outcome.err

    @pytest.mark.slow
    def test_runs_an_item_and_goes_on_where_it_stopped(self, placekit: Command) -> None:
        words = (
            "paper",
            "doppler",
            "table1",
            "--run",
            "out",
            "workload=chainmm_small",
            "seed=0,1",
            "policy=enumerative",
        )
        outcome = placekit(*words)
        assert outcome.code == 0, outcome.err
        assert "about 1 min on two CPU cores" in outcome.err
        assert sorted(p.name for p in Path("out").glob("*.csv")) == ["0.csv", "1.csv"]
        rows = read_runs(Path("out/1.csv"))
        assert [(r.workload, r.method, r.seed) for r in rows] == [("chainmm_small", "enumerative", s) for s in (0, 1)]
        assert runs_in(Path("out/1"), "mine")[0].method == "mine"
        assert placekit(*words).out == outcome.out
        for other in ((*words[:-1], "policy=critical_path"), ("paper", "doppler", "table2", *words[3:])):
            assert "out has runs of another item, or with other options" in placekit(*other).err

    @pytest.mark.slow
    @pytest.mark.long
    def test_a_run_has_the_seconds_of_computation_and_copies_that_are_recorded(self, placekit: Command) -> None:
        words = ("experiment=mirhoseini2017_baselines", "workload=nmt", "cluster=k80x4", "policy=expert", "run_dir=out")
        assert placekit("run", *words).code == 0
        write_runs(runs_in(Path("out")), Path("again.csv"))
        [again] = read_runs(Path("again.csv"))
        runs = read_runs(DATA / "mirhoseini_forward.csv")
        [recorded] = [run for run in runs if (run.workload, run.method) == ("nmt", "expert")]
        assert (again.busy_s, again.forward_s) == (recorded.busy_s, recorded.forward_s)
        assert again.copies_s == recorded.copies_s > 0


@pytest.mark.slow
def test_placeto_imitates_before_it_learns(placekit: Command) -> None:
    """Table 7 of Yao et al. 2026, on a small program: without learning from rewards, imitation makes placements faster."""
    options = (
        "hydra.mode=RUN",
        "hydra.sweeper.params=null",
        "workload=chainmm_small",
        "budget.evaluations=16",
        "baselines=[]",
    )
    first = {}
    for episodes in (0, 400):
        given = (
            f"trainer.imitation_episodes={episodes}",
            "trainer.imitation_learning_rate=0.01",
            f"run_dir=with{episodes}",
        )
        assert placekit("run", "experiment=doppler_table7", *options, *given).code == 0
        first[episodes] = json.loads(Path(f"with{episodes}/result.json").read_text())["value_s"]
    assert first[400] < first[0]


@pytest.mark.slow
@pytest.mark.long
def test_what_no_gpu_can_hold_is_placed_on_four(placekit: Command) -> None:
    """Mirhoseini et al. 2017, section 4.3: the learned placement fits, that of one GPU does not."""
    options = "workload=rnnlm_large", "grouper=manual", "cluster=k80x4", "budget.evaluations=120"
    placekit("run", "-m", *options, "+policy=single_gpu,post", "run_dir=large")
    results = [json.loads(p.read_text()) for p in Path("large").glob("*/result.json")]
    assert {r["policy"]: r["fits"] for r in results} == {"post": True, "single_gpu": False}


@pytest.mark.slow
def test_controllers_share_a_baseline() -> None:
    """On unequal machines a shared baseline changes what is learned; on equal machines own ones differ, too, in their start."""
    pytest.importorskip("placekit_learn")
    from placekit_papers.studies.controllers import learn

    from placekit_core.cli.compose import assembled

    assembly = assembled(["workload=mlp", "cluster=k80x4", "grouper=none"], installed())
    problem = assembly.problem(assembly.programs[0])
    own, shared = (learn("mlp", problem, b, 1.0, 0, installed(), updates=12) for b in ("own", "shared"))
    assert (own.method, shared.method) == ("own, 100%", "shared, 100%")
    assert own.evaluations == shared.evaluations == 120
    assert own.late_s != shared.late_s


class TestParts:
    """Two layers and the rest of a network: one layer is divided between two devices."""

    EVENTS = (
        ("encoder.0.linear", "mm", 0, 3e6), ("encoder.0.linear", "mm", 1, 1e6), ("decoder.0", "mm", 1, 2e6),
        ("", "q[0,1]", 0, 1e6),
    )  # fmt: skip

    def trace(self, path: Path) -> Path:
        tracks = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": f"k80:{i} stream 0"}}
            for i in range(2)
        ]
        events = [
            {"ph": "X", "name": name, "pid": 0, "tid": tid, "ts": 0.0, "dur": us, "args": {"module": module}}
            for module, name, tid, us in self.EVENTS
        ]
        path.write_text(json.dumps({"traceEvents": [*tracks, *events]}))
        return path

    def test_parts_are_named_by_what_the_expression_matches(self, tmp_path: Path) -> None:
        found = parts_of(self.trace(tmp_path / "x.json"), r"encoder|decoder|q")
        assert found == {"encoder": {"k80:0": 3.0, "k80:1": 1.0}, "decoder": {"k80:1": 2.0}, "q": {"k80:0": 1.0}}
        assert parts_of(tmp_path / "x.json", "encoder")["other"] == {"k80:0": 1.0, "k80:1": 2.0}

    def test_a_file_has_the_seconds_again(self, tmp_path: Path) -> None:
        placed = Placed("nmt", "k80x2", "post", 0, parts_of(self.trace(tmp_path / "x.json"), "encoder|decoder"))
        write_parts([placed], tmp_path / "x.csv")
        assert read_parts(tmp_path / "x.csv") == [placed]
        table = parts_table([placed])
        assert "encoder  k80:0 75%, k80:1 25%" in table
        assert table[-1] == "all      k80:0 57%, k80:1 43%"

    def test_a_picture_has_a_bar_for_each_device_of_a_part(self, tmp_path: Path) -> None:
        placed = Placed("nmt", "k80x2", "post", 0, parts_of(self.trace(tmp_path / "x.json"), "encoder|decoder"))
        svg = ElementTree.fromstring(parts_svg([placed]))
        titles = [e.text for e in svg.iter("{http://www.w3.org/2000/svg}title")]
        assert titles == [
            "k80:0",
            "k80:1",
            "k80:1 100%",
            "k80:0 75%",
            "k80:1 25%",
            "k80:0 100%",
            "k80:0 57%",
            "k80:1 43%",
        ]

    def test_an_item_without_parts_has_no_picture(self, placekit: Command) -> None:
        outcome = placekit("paper", "post", "figure3", "--svg", "x.svg")
        assert outcome.code == 0, outcome.err
        assert Path("x.svg").read_text().count("<rect") > 50
        outcome = placekit("paper", "post", "table1", "--svg", "x.svg")
        assert outcome.code == 1
        assert "item table1 shows no placements" in outcome.err


def test_an_item_without_runs_takes_its_minutes() -> None:
    assert Item(title="x", minutes=3).expected_minutes == 3
