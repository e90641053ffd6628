"""Table 3 from kept trials: they are what was played, and the page shows what they give."""

import importlib.util
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import special, stats

from audit import repetitions
from audit.accounting import GaussianMechanism, calibrate_mu
from audit.dpsgd.models import mlp
from audit.game.binding import binding
from audit.game.play import Trials, all_blocks, play
from audit.game.settings import AuditConfig
from audit.game.setup import set_up
from audit.game.store import RunFolder
from audit.run import main
from studies.papers import REPRODUCTIONS, Result, table3
from studies.papers.kept_trials import KeptGame, keep, load
from studies.table3.canary_norms import norms
from threat_models import datasets

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("reproductions.md", "table3.md")]
DATA = ROOT / "docs" / "table3.csv"


@pytest.fixture(scope="module")
def result() -> Result:
    return REPRODUCTIONS["x-table3-played"].run()


@pytest.mark.slow
def test_kept_trials_give_every_row_of_the_pages(result: Result) -> None:
    on_page, computed = tables(page_in_ascii()), tables("\n".join(result.lines))
    assert len(computed) == 6
    assert sum(len(rows) for rows in computed.values()) > 60
    overview = next(iter(computed))
    computed[overview] = [row for row in computed[overview] if row.split(" | ")[1] == "4"]
    assert len(computed[overview]) > 10
    for heading, rows in computed.items():
        shown = on_page[heading]
        if rows[0].startswith("| NTNV 1 | 0.628"):  # of the tables of AUCs, the page has some rows
            rows = [row for row in rows if row in shown]
            assert len(rows) >= 6
        assert shown == rows


def page_in_ascii() -> str:
    """The pages with the names that the study prints for its typeset symbols."""
    text = "\n".join(page.read_text() for page in PAGES)
    text = re.sub(r"\$\\varepsilon_([A-Z])\$", r"eps_\1", text)
    return re.sub(r"\$\\lambda_([a-z])\$", r"lambda_\1", text)


def tables(text: str) -> dict[str, list[str]]:
    """Rows of each Markdown table of a text, by its heading."""
    found: dict[str, list[str]] = {}
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        heading, _, *rows = block.splitlines()
        found[heading] = rows
    return found


def test_numbers_of_the_text_are_those_of_the_data() -> None:
    text = " ".join(page_in_ascii().split())
    table = pd.read_csv(DATA).to_dict("records")
    found = {(one["row"], one["epsilon_base"], one["statistic"]): one for one in table}
    one_run = special.ndtr(calibrate_mu(4.0, 1e-5) / math.sqrt(2.0))
    rows = [found[f"{name}, ConvNet", 4, "lambda_a"] for name in ("NTNV 4", "NTCV 4")]
    below, also = ((one_run - row["auc"]) / row["auc_error"] for row in rows)
    assert f"lies {below:.1f} and {also:.1f} standard errors below the exact AUC" in text
    for budget, words in (
        (2, "rises from {:.2f} with lambda_a to {:.2f}"),
        (1, "{:.2f} to {:.2f}"),
    ):
        pair = (found["NTNV 1", budget, name] for name in ("lambda_a", "known records"))
        assert words.format(*(row["equivalent_epsilon"] for row in pair)) in text


def test_kept_files_are_small() -> None:
    sizes = [path.stat().st_size for path in (ROOT / "studies" / "table3").glob("*.npz")]
    assert sizes
    assert sum(sizes) < 20e6


@pytest.mark.slow
def test_recommended_bounds_are_below_the_exact_cost(result: Result) -> None:
    # Each is above with probability 5 % at most; most are far below. This many of them above would
    # have a probability below 1e-4.
    table = result.table
    above = (table["epsilon_lower"] > table["tight"]).sum()
    assert above <= stats.binom.isf(1e-4, len(table), 0.05)


def test_kept_trials_equal_the_trials_of_the_audit(tmp_path: Path) -> None:
    config = AuditConfig(
        threat="NTNV+NTCV",
        canary="input+dirac",
        dataset="DIGITS",
        train_size=20,
        validation_size=10,
        model="logistic",
        steps=3,
        trials=12,
        repeats=2,
        epsilon=(4.0, 2.0),
        repetitions="tnb:0,0.3",
        learning_rates=(0.01, 0.02),
        out=str(tmp_path / "small"),
    )
    set_ups = [set_up(config, budget) for budget in range(2)]
    bound_to = binding([], set_ups)
    folder = RunFolder(Path(config.out), config.identity, bound_to, config.view_names)
    folder.open()
    games = {}
    for block in all_blocks(config.workload, "batched"):
        games[block.budget, block.repeat] = play(config, block)
        folder.save(block, games[block.budget, block.repeat])
    for path in keep(folder.path, tmp_path / "kept"):
        found = list(load(path))
        assert [game.epsilon for game in found] == [4.0, 2.0]
        for budget, game in enumerate(found):
            view = config.view_names.index(path.stem.removeprefix("small-"))
            both = Trials.joined(*(games[budget, repeat][view] for repeat in range(2)))
            assert game.planned == len(game.bit) == 24
            assert game.mu == pytest.approx(set_ups[budget].mu, rel=1e-12)
            assert game.config.threat == config.views[view].threat
            for name, values in game.columns.items():
                np.testing.assert_array_equal(values, getattr(both, name))
            for statistic in table3.statistics(game):
                if statistic.name in ("lambda_a", "lambda_b"):
                    np.testing.assert_array_equal(statistic.values, getattr(both, statistic.name))


@pytest.mark.usefixtures("quick_reports")
def test_an_unfinished_audit_keeps_what_comes_before_the_gap(tmp_path: Path) -> None:
    folder = tmp_path / "reduced"
    settings = ["--epsilon", "4", "--trials", "40000", "--repeats", "1", "--repetitions", "fixed:2"]
    assert main([*settings, "--data-root", str(tmp_path), "--out", str(folder)]) == 0
    first, second, _ = sorted((folder / "shards").glob("*.npz"))
    second.unlink()
    (path,) = keep(folder, tmp_path / "kept")
    (game,) = load(path)
    with np.load(first) as shard:
        np.testing.assert_array_equal(game.columns["lambda_a"], shard["lambda_a"])
        np.testing.assert_array_equal(game.bit, shard["bit"])
    assert game.planned == 40000
    with np.load(path) as kept:
        assert str(tmp_path) not in str(kept["described"])


def test_a_folder_without_trials_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "studies" / "table3" / "keep.py"
    specification = importlib.util.spec_from_file_location("keep", path)
    assert specification is not None
    assert specification.loader is not None
    script = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(script)
    (tmp_path / "config.json").write_text('{"bound_to": {}}')
    assert script.main([str(tmp_path), "--out", str(tmp_path)]) == 2
    assert "folder must hold the trials of an audit" in capsys.readouterr().err


def pretended(shift: float, trials: int = 4000, mu: float = 0.8) -> tuple[KeptGame, np.ndarray]:
    """A game of known distribution, and the exact log-likelihood ratio of each winner.

    A run releases x, which is N(mu, 1) with the canary, and its score, which is independent of x
    and N(shift, 1); without the canary both are N(0, 1).
    """
    rng = np.random.default_rng(5)
    law = repetitions.parse_repetitions("tnb:0,0.1")
    bit = rng.random(trials) < 0.5
    runs = law.sample(rng, trials)
    of_run = np.repeat(bit, runs)
    x = rng.normal(size=len(of_run)) + mu * of_run
    score = rng.normal(size=len(of_run)) + shift * of_run
    of_run_ratio = mu * x - mu**2 / 2 + shift * score - shift**2 / 2
    starts = np.concatenate([[0], np.cumsum(runs)[:-1]])
    best = np.array([s + score[s : s + k].argmax() for s, k in zip(starts, runs, strict=True)])
    config = AuditConfig(
        threat="NTNV", canary="dirac", repetitions="tnb:0,0.1", steps=100, trials=trials
    )
    columns = {
        "trial": np.arange(trials),
        "bit": bit,
        "runs": runs,
        "score": score[best],
        "lambda_known": of_run_ratio[best] / mu**2 + 0.5,
        "run_score": score,
    }
    found = KeptGame("", config, 4.0, 10 / mu, None, None, trials, np.zeros(trials), columns)
    of_score = [law.log_phi_prime_at(special.log_ndtr(score[best] - at)) for at in (shift, 0.0)]
    return found, of_run_ratio[best] + of_score[0] - of_score[1]


@pytest.mark.parametrize("shift", [0.0, 0.5, -0.5])
def test_the_likelihood_ratio_of_a_winner_and_its_score_is_the_exact_one(shift: float) -> None:
    game, exact = pretended(shift)
    learned_on = game.columns["trial"] % 2 == 0
    learned = table3._winner_ratio(game, learned_on)
    assert np.sqrt(np.mean((learned - exact)[~learned_on] ** 2)) < 0.1
    # The exact ratio has mean 1 without the canary, and so nearly has the learned one.
    without = np.exp(learned[~learned_on & ~game.bit])
    assert abs(without.mean() - 1) < 4 * without.std() / math.sqrt(len(without)) + 0.05
    if shift:  # without the score's part it is another number
        run_alone = (game.columns["lambda_known"] - 0.5) * game.mu**2
        assert np.sqrt(np.mean((run_alone - exact) ** 2)) > 0.2


def test_separation_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=60), rng.normal(size=50) + 0.7
    auc, error = table3.separation(a, b)
    assert auc == pytest.approx(np.mean(b[:, None] > a[None, :]), abs=1e-12)
    drawn = [
        table3.separation(rng.normal(size=60), rng.normal(size=50) + 0.7)[0] for _ in range(400)
    ]
    assert error == pytest.approx(np.std(drawn), rel=0.25)


def test_equivalent_epsilon_is_that_of_the_gaussian_mechanism() -> None:
    auc = stats.norm.cdf(0.9 / math.sqrt(2))
    assert table3.equivalent_epsilon(auc, 1e-5) == pytest.approx(
        GaussianMechanism(0.9).epsilon(1e-5)
    )
    assert table3.equivalent_epsilon(0.4, 1e-5) == 0.0


def test_norms_of_gradients_before_the_first_step_are_those_of_autograd() -> None:
    records = datasets.load("DIGITS", True, None, 5)
    canary = datasets.load("DIGITS", False, None, 1)
    found = norms(records, canary, 0.001, seed=3, steps=1)
    torch.manual_seed(3)
    model = mlp(tuple(records.features.shape[1:]), 10)
    lengths = []
    for data in (records, canary):
        for x, y in zip(data.features, data.labels, strict=True):
            model.zero_grad()
            logits = model(torch.as_tensor(x).float()[None])
            torch.nn.functional.cross_entropy(logits, torch.tensor([int(y)])).backward()
            squares = sum(float(p.grad.square().sum()) for p in model.parameters())
            lengths.append(math.sqrt(squares))
    assert found.shortest == pytest.approx(lengths[-1], rel=1e-5)
    assert found.below == np.mean(np.array(lengths[:-1]) < 1.0)


def test_weights_move_with_the_learning_rate_alone() -> None:
    few = datasets.load("DIGITS", True, None, 20)
    first, still, moved = (
        norms(few, few, rate, 0, steps).below for rate, steps in ((0.0, 1), (0.0, 20), (0.1, 20))
    )
    assert first == still != moved
