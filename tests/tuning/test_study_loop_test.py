"""The differential test of a study's training function, and its place in the certificate."""

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from audit import tuning, verify
from audit.certificate import Certificate
from audit.certificate.certificate import hash_of
from audit.errors import PrivacyLeak
from audit.tuning.rehearsal import can_test, fingerprint

# The bounds of a certificate are tested elsewhere.
pytestmark = pytest.mark.usefixtures("region_alone", "little_work")

N, STEPS = 24, 6
RECORDS = (
    np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32),
    np.random.default_rng(1).integers(0, 2, N),
)


def make_train(
    clip: Any = 1.0,
    noise_factor: Any = 1.0,
    watched: Any = True,
    returned: Any = None,
    divide_by_n: Any = False,
) -> Any:
    """A loop of full-batch DP-SGD on a linear model, with one deliberate mistake or none."""

    def train(trial: Any, records: Any) -> Any:
        features, labels = (torch.as_tensor(np.asarray(part)) for part in records)
        generator = torch.Generator().manual_seed(trial.seed % 2**63)
        model = nn.Linear(3, 2)
        with torch.no_grad():
            for p in model.parameters():
                p.normal_(generator=generator)
        optimizer = torch.optim.SGD(model.parameters(), lr=trial.candidate["lr"])
        if watched:
            trial.watch(optimizer, model)
        for _ in range(trial.steps):
            with torch.no_grad():
                # Per-record gradients of a linear model's cross-entropy, in closed form.
                errors = torch.softmax(model(features), 1) - nn.functional.one_hot(labels, 2)
                each = torch.cat([errors[:, :, None] * features[:, None], errors[:, :, None]], 2)
                norms = each.flatten(1).norm(dim=1).clamp(min=1e-12)
                total = (each * (clip / norms).clamp(max=1.0)[:, None, None]).sum(0)
                std = noise_factor * trial.noise_multiplier
                total += torch.randn(total.shape, generator=generator) * std
                total /= len(labels) if divide_by_n else 1.0
            model.weight.grad, model.bias.grad = total[:, :3].clone(), total[:, 3].clone()
            optimizer.step()
        score = (
            float(model.weight.detach().sum()) if returned is None else returned(model, features)
        )
        return tuning.Outcome(score=score, model=model)

    return train


def study(**settings: Any) -> Any:
    return tuning.Study(
        {"lr": [0.1, 0.2]}, "fixed:1", epsilon=20.0, steps=STEPS, folder=None, **settings
    )


def grounds(certificate: Any) -> Any:
    return {one.name: one.ground.value for one in certificate.conditions}


@pytest.mark.slow
def test_conditions_of_a_correct_loop_are_stated_as_tested(tmp_path: Path) -> None:
    one = study(neighbours="add-remove")
    one.run(make_train(), records=RECORDS)
    found = grounds(one.certificate)
    tested = {"clipping", "noise", "released", "relation add-remove", "score"}
    assert {name for name, ground in found.items() if ground == "tested"} == tested
    assert found["test"] == "on trust"
    words = {c.name: c.words for c in one.certificate.conditions}
    assert "(tested on synthetic records of the same shape with dp-tuning" in words["clipping"]
    # The study does not notice such a change.
    assert fingerprint(make_train(returned=max)) == fingerprint(make_train(returned=min))
    assert (
        "since the test, no function of another file that it calls, and no object that it "
        in (words["test"])
    )
    assert f"and the {len(tested)} tested ones hold" in one.certificate.statement
    assert one.premises is not None
    assert not one.premises.broken
    one.certificate.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ({"clip": 2.0}, "one record changes"),
        ({"noise_factor": 0.5}, "noise"),
        (
            {"returned": lambda model, features: float(features.sum())},
            "`score` depends on the record",
        ),
        ({"divide_by_n": True}, "records"),
    ],
    ids=["clipping", "noise", "score", "divisor"],
)
def test_a_broken_loop_is_refused_before_the_study_begins(
    mistake: dict[str, Any], words: str
) -> None:
    one = study(neighbours="add-remove")
    with pytest.raises(PrivacyLeak, match=words) as caught:
        one.run(make_train(**mistake), records=RECORDS)
    assert any("Likely cause" in note for note in caught.value.__notes__)
    assert one.premises.broken


@pytest.mark.slow
def test_a_divisor_of_n_is_allowed_where_n_is_public() -> None:
    one = study(neighbours="zero-out")
    one.rehearse(make_train(divide_by_n=True), RECORDS)
    assert not one.premises.broken


@pytest.mark.thorough
def test_conditions_are_assumed_without_a_test() -> None:
    for train, how in (
        (make_train(watched=False), {"records": RECORDS}),
        (make_train(), {"records": RECORDS, "rehearse": False}),
    ):
        one = study()
        one.run(train, **how)
        assert "tested" not in grounds(one.certificate).values()
    closes_over = study()
    train = make_train()
    closes_over.run(lambda trial: train(trial, RECORDS))
    assert grounds(closes_over.certificate)["clipping"] == "on trust"
    assert closes_over.certificate.study.tested_on == ""


@pytest.mark.slow
def test_the_verdict_on_private_records_is_not_certified() -> None:
    one = study()
    train = make_train()
    one.rehearse(train, RECORDS, private=True)
    assert not one.premises.broken
    one.run(train, records=RECORDS)
    assert "tested" not in grounds(one.certificate).values()


@pytest.mark.slow
def test_the_test_of_another_function_is_not_certified() -> None:
    one = study()
    one.rehearse(make_train(), RECORDS)

    def other(trial: Any, records: Any) -> Any:
        return make_train()(trial, records)

    assert fingerprint(other) != fingerprint(make_train())
    one.run(other, records=RECORDS)
    assert "tested" not in grounds(one.certificate).values()


def test_the_test_of_a_function_with_other_settings_is_not_certified() -> None:
    def scaled(trial: Any, records: Any, scale: float = 1.0) -> Any:
        return scale

    assert fingerprint(make_train()) == fingerprint(make_train())
    assert fingerprint(make_train()) != fingerprint(make_train(noise_factor=0.5))
    assert fingerprint(scaled) != fingerprint(functools.partial(scaled, scale=0.5))
    before = fingerprint(scaled)
    scaled.__defaults__ = (0.5,)
    assert fingerprint(scaled) != before


@pytest.mark.slow
def test_a_resumed_study_keeps_the_result_of_its_test(tmp_path: Path) -> None:
    def begin() -> Any:
        return tuning.Study(
            {"lr": [0.1, 0.2]},
            "fixed:1",
            epsilon=20.0,
            steps=STEPS,
            folder=tmp_path / "s",
            keep=True,
        )

    train, found = make_train(), []
    for _ in range(2):
        one = begin()
        one.run(
            train,
            records=RECORDS,
            save=torch.save,
            load=lambda path: torch.load(path, weights_only=False),
        )
        found.append(grounds(one.certificate))
    assert found[0] == found[1]
    assert found[0]["noise"] == "tested"


@pytest.fixture(scope="module")
def certified() -> Any:
    one, train = study(), make_train()
    one.rehearse(train, RECORDS)
    one.run(train, records=RECORDS)
    return one.certificate.as_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {"tested": ["clipping", "made up"]},
        {"tested": []},
        {"tested_on": "private"},
        {"tested_with": "yesterday's"},
        {"tested_steps": -1},
    ],
)
def test_impossible_statements_about_the_test_are_wrong(
    tmp_path: Path, certified: Any, change: dict[str, Any]
) -> None:
    values = json.loads(json.dumps(certified))
    assert values["study"]["tested_on"] == "given"
    assert values["study"]["tested_steps"] == STEPS
    values["study"] |= change
    path = tmp_path / "c.json"
    path.write_text(json.dumps(values | {"hash": hash_of(values)}))
    assert verify.main([str(path)]) != 0


@pytest.mark.slow
def test_a_test_of_more_steps_than_a_run_has_is_wrong(tmp_path: Path, certified: Any) -> None:
    # The forger also rewrites the sentences that follow from the number of steps.
    for steps, code in ((STEPS, 0), (STEPS + 1, 1)):
        values = json.loads(json.dumps(certified))
        values["study"]["tested_steps"] = steps
        path = tmp_path / "c.json"
        path.write_text(json.dumps(Certificate.from_dict(values).as_dict()))
        assert verify.main([str(path)]) == code


def test_forms_of_records() -> None:
    training = study()._training_alone
    data = torch.utils.data.TensorDataset(torch.zeros(3, 2), torch.zeros(3))
    assert all(can_test(training, one) for one in (RECORDS, list(RECORDS), data, RECORDS[0]))
    assert not can_test(training, {"features": RECORDS[0]})
    assert not can_test(training, (RECORDS[0], RECORDS[1][:-1]))
