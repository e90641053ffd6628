"""Certificates: numbers against known truths, three renderings, and what verification finds."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy import special

from audit import accounting, protocols, tuning, verify
from audit.accounting import GaussianMechanism, PureDp
from audit.certificate import Certificate, Evidence, Ground, Numbers, compute
from audit.certificate.numbers import TradeOff
from audit.certificate.statement import hash_of
from audit.tuning import certifying

ONE_RUN = protocols.parse_protocol("fixed:1")


@pytest.fixture(scope="module")
def certificate():
    study = tuning.Study(
        {"lr": tuning.LogUniform(0.01, 1.0), "hidden": [16, "<b>"]},
        "tnb:1,0.5",
        base=accounting.DpSgd(20.0, 100),
        folder=None,
    )
    study.run(lambda trial: tuning.Outcome(trial.candidate["lr"], "model"))
    found = study.certificate
    # One bound alone, which is fast: tests compute it anew many times.
    numbers = compute(found.base, found.protocol, found.delta, ["region"])
    assert numbers.epsilon <= 1.01 * found.numbers.epsilon
    return replace(found, numbers=numbers)


def gaussian_curve(mu, rate):
    return special.ndtr(-special.ndtri(rate) - mu)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.0])
def test_numbers_of_one_gaussian_run_are_the_known_ones(mu):
    numbers = compute(GaussianMechanism(mu), ONE_RUN, 1e-5, ["region"])
    assert numbers.epsilon == pytest.approx(GaussianMechanism(mu).epsilon(1e-5), rel=1e-3)
    # A table of points lies below the curve, never above, and not by much.
    advantage = 2 * special.ndtr(mu / 2) - 1
    assert advantage <= numbers.advantage <= 1.15 * advantage
    for found, rate in zip(numbers.true_positives, (0.01, 0.001), strict=True):
        true = 1 - gaussian_curve(mu, rate)
        assert true <= found <= 1.35 * true
    assert mu <= numbers.mu <= 1.2 * mu
    assert 0.0 <= numbers.mu_regret < 0.03
    for rate, least in numbers.trade_off:
        assert least <= gaussian_curve(mu, rate) + 1e-12


def test_numbers_of_pure_dp_are_the_known_ones():
    epsilon = 1.2
    numbers = compute(PureDp(epsilon), ONE_RUN, 1e-5, ["region"])
    # Randomised response: f(a) = max(1 - e^eps a, e^-eps (1 - a)), advantage tanh(eps / 2).
    assert numbers.advantage == pytest.approx(np.tanh(epsilon / 2), rel=2e-2)
    assert numbers.advantage >= np.tanh(epsilon / 2)
    assert numbers.true_positives[0] == pytest.approx(0.01 * np.exp(epsilon), rel=0.02)
    assert numbers.mu_regret > 0.01  # no Gaussian curve says what randomised response is


def test_mu_is_the_least_whose_curve_lies_below():
    slack = 1e-5
    curve = TradeOff(compute(GaussianMechanism(1.0), ONE_RUN, slack, ["region"]).profile)
    rates = np.concatenate([np.geomspace(1e-12, 0.01, 500), np.linspace(0.01, 1, 2000)])
    reached = curve.false_negatives(rates) + slack
    mu = curve.mu(slack)
    assert (gaussian_curve(mu, rates) <= reached + 1e-12).all()
    assert not (gaussian_curve(0.99 * mu, rates) <= reached).all()
    regret = curve.regret(mu)
    shifted = curve.false_negatives(np.minimum(rates + regret, 1.0)) - regret
    assert (shifted <= gaussian_curve(mu, rates) + 1e-9).all()


def test_ceiling_is_what_a_game_without_errors_shows():
    # No error in n games bounds its rate by 1 - (alpha/2)^(1/n).
    rate = 1 - 0.025 ** (1 / 1000)
    expected = np.log((1 - 1e-5 - rate) / rate)
    assert Evidence(0.0, 0.95, 1000, 1000).ceiling(1e-5) == pytest.approx(expected, rel=1e-6)
    assert Evidence(0.0, 0.95, 1, 1).ceiling(1e-5) == 0.0


def test_evidence_above_the_bound_is_refused(certificate):
    assert certificate.with_evidence(0.1, 0.95, 100, 100).evidence.epsilon_lower == 0.1
    with pytest.raises(ValueError, match="epsilon_lower must be at most what is certified"):
        certificate.with_evidence(99.0, 0.95, 100, 100)


def test_json_comes_back_as_it_was(certificate, tmp_path):
    certificate = certificate.with_evidence(0.1, 0.95, 100, 200)
    certificate.save(tmp_path / "c.json")
    values = json.loads((tmp_path / "c.json").read_text())
    again = Certificate.from_dict(values)
    assert again == certificate
    assert again.as_dict() == values
    assert isinstance(again.numbers, Numbers)


def test_a_right_certificate_is_called_right(certificate, tmp_path, capsys):
    certificate.with_evidence(0.1, 0.95, 100, 200).save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    line = capsys.readouterr().out
    assert re.fullmatch(
        r"right: \([\d.]+, 1e-05\)-DP by (tight|region), if the 11 things .* are so\n", line
    )


def _set(path, value):
    def change(values):
        *way, last = path
        for key in way:
            values = values[key]
        values[last] = value

    return change


CHANGES = [
    (_set(["numbers", "epsilon"], 0.5), "numbers.epsilon is 0.5"),
    (_set(["numbers", "advantage"], 0.01), "numbers.advantage is 0.01"),
    (_set(["numbers", "profile", 3, "epsilon"], 0.1), r"numbers.profile\[3\].epsilon is 0.1"),
    (_set(["numbers", "trade_off", 2, 1], 1.0), r"numbers.trade_off\[2\]\[1\] is 1.0"),
    (_set(["numbers", "mu"], 0.1), "numbers.mu is 0.1"),
    (_set(["numbers", "attained"], None), "numbers.attained is None"),
    (_set(["protocol"], "tnb:1,0.1"), r"numbers\.\w+"),
    (_set(["base", "steps"], 400), r"numbers\.\w+"),
    (_set(["delta"], 1e-6), r"numbers\.\w+"),
    (_set(["statement"], "(0.1, 1e-5)-DP"), "statement is"),
    (_set(["evidence", "ceiling"], 9.0), "evidence.ceiling is 9.0"),
    (_set(["evidence", "epsilon_lower"], 9.0), "a game shows epsilon >= 9"),
]


@pytest.fixture(scope="module")
def plain(certificate):
    return certificate.with_evidence(0.1, 0.95, 100, 200).as_dict()


@pytest.mark.parametrize(("change", "words"), CHANGES[:5] + CHANGES[-3:])
def test_a_number_that_is_wrong_is_named(plain, tmp_path, capsys, change, words):
    values = json.loads(json.dumps(plain))
    change(values)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values))
    assert verify.main([str(path)]) == 1
    assert "the hash is not that" in capsys.readouterr().out
    # Who changes the file changes the hash too; the numbers still tell.
    path.write_text(json.dumps(values | {"hash": hash_of(values)}))
    assert verify.main([str(path)]) == 1
    assert re.search(words, capsys.readouterr().out)


@pytest.mark.parametrize(("change", "words"), CHANGES[5:-3])
def test_a_setting_that_is_not_that_of_the_numbers_is_found(plain, tmp_path, capsys, change, words):
    values = json.loads(json.dumps(plain))
    change(values)
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values | {"hash": hash_of(values)}))
    assert verify.main([str(path)]) == 1
    assert re.search(words, capsys.readouterr().out)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "certificate must be a readable json file"),
        ("[]", "certificate must be of format"),
        ('{"format": "other/1"}', "certificate must be of format .* got 'other/1'"),
        ('{"format": "private-tuning-certificate/1"}', "certificate must have the fields"),
    ],
)
def test_what_is_no_certificate_is_one_line(tmp_path, capsys, text, words):
    (tmp_path / "c.json").write_text(text)
    assert verify.main([str(tmp_path / "c.json")]) == 2
    error = capsys.readouterr().err
    assert re.search(words, error)
    assert error.count("\n") == 1


@pytest.mark.parametrize("depth", [900, 5000, 50_000])
@pytest.mark.parametrize("part", ["base", "made", "conditions"])
def test_what_is_nested_too_deeply_is_no_certificate(plain, tmp_path, capsys, part, depth):
    inside = '{"mechanism": "Composition", "parts": [' * depth + "1" + "]}" * depth
    text = json.dumps({**plain, part: "@"}).replace('"@"', inside)
    (tmp_path / "c.json").write_text(text)
    assert verify.main([str(tmp_path / "c.json")]) in (1, 2)
    assert capsys.readouterr().err.count("\n") <= 1


def test_a_seed_makes_it_void_and_so_it_says(certificate, tmp_path, capsys):
    draws = certifying._by_construction(certificate.protocol, None, seeded=True)
    void = replace(certificate, conditions=tuple(draws))
    assert void.statement.startswith("VOID: a seed was given")
    void.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    assert "right in every number, but void: a seed was given" in capsys.readouterr().out
    void.save(tmp_path / "c.html")
    assert '<body class="void">' in (tmp_path / "c.html").read_text()


def test_there_is_none_before_the_study_is_over():
    study = tuning.Study({"lr": [1, 2]}, "tnb:1,0.5", base=GaussianMechanism(0.5), folder=None)
    with pytest.raises(ValueError, match="certificate needs a study that was run to its end"):
        study.certificate  # noqa: B018


def test_checks_of_runs_stand_in_the_certificate():
    class Recorded:
        history = ((1.0, 0.1, 10),)

    def grounds(check):
        def train(trial):
            if check:
                trial.check(Recorded())
            return tuning.Outcome(1.0)

        base = accounting.DpSgd(1.0, 10, 0.1)
        study = tuning.Study({"lr": [1]}, "fixed:3", base=base, folder=None)
        study.run(train)
        found = certifying._of_runs(
            base, protocols.parse_protocol("fixed:3"), study._played.checked
        )
        return [one.ground for one in found]

    # Steps, noise, rate; Poisson sampling, which needs the loader; clipping; the divisor, which
    # needs the optimizer; constants; that they do not depend on the number of records.
    unseen = [Ground.ON_TRUST] * 3
    assert grounds(True) == [Ground.CHECKED] * 3 + unseen + [Ground.CHECKED, Ground.ON_TRUST]
    assert grounds(False) == [Ground.ON_TRUST] * 8


class Page(HTMLParser):
    """Counts what is open, and collects what would be fetched."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.ids = [], [], []

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        links = [v for k, v in values.items() if k in ("src", "href") and v[:1] != "#"]
        self.fetched += [link for link in links if not link.startswith("data:")]
        self.fetched += [v for k, v in values.items() if k == "xlink:href" and v[:1] != "#"]
        if "id" in values:
            self.ids.append(values["id"])
        assert tag != "img" or values.get("alt")  # for who listens
        if tag not in ("meta", "br", "img"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_html_stands_alone(certificate, tmp_path):
    certificate.save(tmp_path / "c.html")
    text = (tmp_path / "c.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetched == []
    assert "url(http" not in text
    assert "<script" not in text
    assert text.count("<svg") == 2
    assert "&lt;b&gt;" in text  # a candidate's value is no markup
    for word in (certificate.statement, "Membership advantage", "on trust", "It is void if"):
        assert word in text


def test_text_is_a_paragraph(certificate, tmp_path):
    certificate.save(tmp_path / "c.txt")
    text = (tmp_path / "c.txt").read_text()
    assert text.startswith(certificate.statement[:60])
    assert "\n\n" not in text
    assert max(map(len, text.splitlines())) <= 88
    words = " ".join(text.split())
    for one in ("by the score: public records only", "lr log-uniform in [0.01, 1.0]"):
        assert one in words
    assert f"dp-tuning-audit {certificate.made['version']}; seeds: 256 bits" in words
    with pytest.raises(ValueError, match=r"path's ending must be one of .json, .txt, .html"):
        certificate.save(tmp_path / "c.pdf")


@pytest.mark.parametrize(
    "base",
    [
        accounting.DpSgd(1.0, 10, 0.1, "replace-one"),
        accounting.Composition((GaussianMechanism(0.1), PureDp(0.2))),
        accounting.Mixture((GaussianMechanism(0.1), GaussianMechanism(0.3)), (0.25, 0.75)),
        accounting.WorstOf((accounting.LaplaceMechanism(2.0), accounting.ZeroConcentratedDp(0.1))),
        accounting.RandomisedResponse(1.0, 3),
        accounting.ApproximateDp(1.0, 1e-6),
    ],
)
def test_mechanisms_come_back_from_plain_values(base):
    plain = json.loads(json.dumps(accounting.mechanism_to_dict(base)))
    assert accounting.mechanism_from_dict(plain) == base


def test_curves_come_back_from_plain_values():
    curve = accounting.RenyiCurve(np.array([2.0, 4.0]), np.array([0.1, 0.3]))
    again = accounting.mechanism_from_dict(
        json.loads(json.dumps(accounting.mechanism_to_dict(curve)))
    )
    np.testing.assert_array_equal(again.orders, curve.orders)
    with pytest.raises(ValueError, match=r"mechanism must be one of .* got 'Gaussian'"):
        accounting.mechanism_from_dict({"mechanism": "Gaussian"})
    with pytest.raises(ValueError, match="mechanism PureDp must have its parameters"):
        accounting.mechanism_from_dict({"mechanism": "PureDp", "mu": 1.0})


def test_one_of_several_drawn_is_their_mean():
    parts = (GaussianMechanism(0.2), GaussianMechanism(1.0))
    mixed = accounting.Mixture(parts, (0.75, 0.25))
    epsilons = np.linspace(0, 4, 9)
    mean = 0.75 * parts[0].delta(epsilons) + 0.25 * parts[1].delta(epsilons)
    np.testing.assert_allclose(mixed.delta(epsilons), mean, rtol=1e-12)
    # A pair made of a grid of points lies above, never below; and far below the largest.
    through = mixed.pairs[0].profile(epsilons)
    assert (through >= mean * (1 - 1e-9)).all()
    assert (through <= mean * 1.01 + 1e-12).all()
    orders = np.array([2.0, 8.0])
    assert (mixed.renyi(orders) <= parts[1].renyi(orders)).all()
    moment = sum(
        chance * np.exp((orders - 1) * part.renyi(orders))
        for chance, part in zip((0.75, 0.25), parts, strict=True)
    )
    np.testing.assert_allclose(mixed.renyi(orders), np.log(moment) / (orders - 1), rtol=1e-12)
