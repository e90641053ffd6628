"""Statements of the author, the hash of a model, the schema, and signatures."""

import json
import subprocess
from dataclasses import asdict, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from certificate_helpers import forged, set_at

from audit import AuditError, accounting, verify
from audit.accounting import GaussianMechanism, Mechanism, Mixture
from audit.accounting.dpsgd import DpSgd
from audit.certificate import (
    FORMAT,
    Certificate,
    Declaration,
    Spending,
    check_signature,
    model_hash,
    presentation,
    schema,
    sign,
)
from audit.certificate.conditions import AS_STATED, StudyFacts
from audit.certificate.numbers import Numbers, compute
from audit.protocols import parse_protocol


@pytest.mark.thorough
def test_a_seed_makes_a_certificate_void(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    void = replace(certificate, study=replace(certificate.study, seeded=True))
    assert void.statement.startswith("VOID: a seed was given")
    void.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 3
    out = capsys.readouterr().out
    assert out.startswith("void: a seed was given")
    assert "numbers: recomputed and correct" in out
    void.save(tmp_path / "c.html")
    assert '<body class="void">' in (tmp_path / "c.html").read_text()
    # Without its seed, the same file is valid only if every sentence is changed, too.
    change = set_at(["study", "seeded"], False)
    assert verify.main(forged(void.as_dict(), change, tmp_path / "c.json")) == 1


def test_declared_statements(certificate: Certificate, tmp_path: Path) -> None:
    found = certificate.declare(
        responsible="A. Person",
        dataset="Digits 1.0",
        records="private",
        records_per_person=4,
        max_grad_norm=1.0,
        normalizer="120, a constant",
        pretraining="none",
        preprocessing="none",
        earlier_spending=[Spending("counts", 0.5, 1e-6), Spending("means", 0.25, 0.0)],
    )
    assert found.not_stated == ()
    assert found.declare(records=7).declaration.dataset == "Digits 1.0"
    assert [size for size, _ in found.groups] == [2, 3, 4, 5, 10]
    values = found.as_dict()
    assert values["total"]["epsilon"] == pytest.approx(found.numbers.epsilon + 0.75)
    exact_sum = Decimal(repr(found.numbers.epsilon)) + Decimal("0.75")
    assert Decimal(repr(values["total"]["epsilon"])) >= exact_sum
    assert values["total"]["delta"] == 1.1e-5
    assert Certificate.from_dict(values) == found
    found.save(tmp_path / "c.json")
    assert verify.main([str(tmp_path / "c.json")]) == 0
    assert certificate.not_stated[0] == "responsible"
    alone = certificate.declare(earlier_spending=()).as_dict()["total"]
    assert alone == {"epsilon": certificate.numbers.epsilon, "delta": 1e-5}


def test_a_clipping_norm_of_the_space_is_stated(certificate: Certificate) -> None:
    def stated(prior: dict[str, str], **declared: float) -> str:
        drawn = replace(certificate, study=replace(certificate.study, prior=prior))
        return dict(presentation.statements(drawn.declare(**declared)))["Clipping norm"]

    assert stated({"learning_rate": "0.1"}) == "not stated"
    assert stated({"learning_rate": "0.1"}, max_grad_norm=0.5) == "0.5"
    space = {"max_grad_norm": "uniform among [0.5, 1.0]", "learning_rate": "0.1"}
    chosen = 'chosen in the search space ("max_grad_norm: uniform among [0.5, 1.0]")'
    assert stated(space) == chosen
    assert stated(space, max_grad_norm=1.0) == f"1, and {chosen}"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ({"dataset": ""}, "dataset must be a text of 1 to 1000 characters, got ''"),
        ({"unit": None}, "unit must be a text"),
        ({"records": "many"}, "records must be a whole number or 'private', got 'many'"),
        ({"records": 0}, "records must be a whole number"),
        ({"max_grad_norm": 0.0}, "max_grad_norm must be in"),
        ({"earlier_spending": 3}, "earlier_spending must be a sequence"),
        ({"data_set": "x"}, "statement must be one of .* did you mean 'dataset'"),
    ],
)
def test_wrong_statements_are_refused(
    certificate: Certificate, statements: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        certificate.declare(**statements)


def test_zero_out_neighbours_have_a_public_number_of_records(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def relations(_: DpSgd) -> frozenset[str]:
        return frozenset({"zero-out"})

    monkeypatch.setattr("audit.certificate.conditions.relations", relations)
    found = certificate.declare(records=100)
    assert found.setting.relation == "zero-out"
    words = {one.name: one.words for one in found.conditions}
    assert words["relation zero-out"] == "the number of records is public"
    assert "relation add-remove" not in words
    with pytest.raises(ValueError, match="records must be public with zero-out neighbours"):
        certificate.declare(records="private")


def test_hash_of_a_model() -> None:
    layer = torch.nn.Linear(3, 2)
    found = model_hash(layer)
    assert found == model_hash(layer.state_dict())
    arrays = {name: one.detach().numpy() for name, one in layer.named_parameters()}
    assert found == model_hash(arrays)
    with torch.no_grad():
        layer.bias[0] += 1e-3
    different = [layer, arrays["weight"], arrays["weight"].T, [1, 2], [[1], 2], ["12"], b"12"]
    hashes = [model_hash(one) for one in [*different, 1, 1.0, True, "1", (), {}]]
    assert found not in hashes
    assert len(set(hashes)) == len(hashes)
    assert None not in hashes
    for unknown in (None, object(), {"a": object()}, np.array([object()])):
        assert model_hash(unknown) is None
    assert model_hash(torch.zeros(2, dtype=torch.bfloat16)) is not None


def test_certificate_has_the_hash_of_the_released_model(certificate: Certificate) -> None:
    assert certificate.model_hash == model_hash("model")


@pytest.mark.usefixtures("region_alone")
def test_certificate_of_an_objective_has_the_hash_of_its_model() -> None:
    optuna = pytest.importorskip("audit.integrations.optuna")
    study = optuna.PrivateStudy("fixed:1", base=GaussianMechanism(0.5), folder=None)

    def objective(trial: Any) -> float:
        trial.set_user_attr("model", {"weight": 2.0})
        return trial.suggest_float("x", 0.0, 1.0)

    best = study.optimize(objective)
    assert study.certificate.model_hash == model_hash(best.model) == model_hash({"weight": 2.0})


def test_schema_describes_certificates(certificate: Certificate, plain: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(schema())
    validator.check_schema(schema())
    full = certificate.declare(
        responsible="A", records="private", earlier_spending=[Spending("x", 1.0, 0.0)]
    )
    for values in (plain, full.as_dict()):
        validator.validate(values)
    assert schema()["properties"]["format"]["const"] == FORMAT
    relations = schema()["properties"]["setting"]["properties"]["relation"]["enum"]
    assert relations == [*accounting.NEIGHBOURS, AS_STATED]
    statements = schema()["properties"]["declaration"]["properties"]
    assert set(statements) == set(asdict(Declaration()))
    for change in (
        set_at(["more"], 1),
        set_at(["delta"], "1e-5"),
        set_at(["conditions", 0, "words"], None),
        set_at(["conditions", 0, "ground"], "proven"),
        set_at(["numbers", "epsilon"], None),
        lambda values: values.pop("void_if"),
    ):
        values = json.loads(json.dumps(plain))
        change(values)
        assert not validator.is_valid(values)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        accounting.RandomAllocation(4.0, 20, 1),
        Mixture((DpSgd(2.0, 10, 0.1), GaussianMechanism(0.3)), (0.5, 0.5)),
        accounting.ZeroConcentratedDp(0.01),
    ],
)
def test_schema_describes_certificates_of_other_mechanisms(
    monkeypatch: pytest.MonkeyPatch, training: Mechanism
) -> None:
    def by_region(*arguments: Any) -> Numbers:  # a quick bound
        return compute(*arguments, ["region"])

    monkeypatch.setattr("audit.certificate.certificate.compute", by_region)
    issued = Certificate.issue(
        training, training, parse_protocol("fixed:2"), 1e-5, None, StudyFacts({}, settings="0" * 64)
    )
    jsonschema.Draft202012Validator(schema()).validate(issued.as_dict())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "certificate must be given"),
        (["c.json", "--sign", "k", "--check-signature", "s"], "--sign must not be given with"),
        (["c.json", "--signature", "s"], "--signature must be given with"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        verify.main(options)
    assert words in capsys.readouterr().err


def test_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert verify.main(["--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema()


def test_signature_of_a_certificate(
    certificate: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str], key: Path
) -> None:
    path, signers = tmp_path / "c.json", tmp_path / "signers"
    certificate.save(path)
    public = key.with_suffix(".pub").read_text()
    signers.write_text(f"alice@example.org {public}")
    assert verify.main([str(path), "--sign", str(key)]) == 0
    assert (tmp_path / "c.json.sig").read_text().startswith("-----BEGIN SSH SIGNATURE-----")
    assert verify.main([str(path), "--check-signature", str(signers)]) == 0
    assert "signature: valid, by 'alice@example.org'" in capsys.readouterr().out
    # A second signature would overwrite the first.
    assert verify.main([str(path), "--sign", str(key)]) == 2
    assert "signature must not exist yet" in capsys.readouterr().err
    # A correct certificate, but another one.
    certificate.declare(dataset="another").save(path)
    assert verify.main([str(path)]) == 0
    capsys.readouterr()
    assert verify.main([str(path), "--check-signature", str(signers)]) == 1
    assert capsys.readouterr().out.startswith("wrong: the signature is not that of an allowed")


def test_signature_with_another_key_is_not_accepted(
    certificate: Certificate, tmp_path: Path, key: Path
) -> None:
    content = json.dumps(certificate.as_dict()).encode()
    signature, signers = tmp_path / "s", tmp_path / "signers"
    signature.write_bytes(sign(content, key))
    other = tmp_path / "other"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)]
    subprocess.run(command, check=True)
    signers.write_text(f"mallory {other.with_suffix('.pub').read_text()}")
    assert check_signature(content, signature, signers) is None
    signers.write_text(f"alice {key.with_suffix('.pub').read_text()}")
    assert check_signature(content, signature, signers) == "alice"
    assert check_signature(content + b" ", signature, signers) is None
    public = key.with_suffix(".pub").read_text().strip()
    for lines, signer in (
        ([f'alice namespaces="git" {public}', f"bob {public}"], "bob"),
        ([f'alice namespaces="git" {public}'], None),
        ([f"!mallory@x,*@x {public}"], "a name that matches *@x and not mallory@x"),
        ([f"alice,bob {public}"], "a name that matches alice or bob"),
        ([f"al?ce {public}"], "a name that matches al?ce"),
        ([f"!alice {public}"], None),
    ):
        signers.write_text("\n".join(lines) + "\n")
        assert check_signature(content, signature, signers) == signer
    # A signature of the same key for another purpose is not accepted.
    command = ["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "file"]
    done = subprocess.run(command, input=content, capture_output=True, check=True)
    signature.write_bytes(done.stdout)
    assert check_signature(content, signature, signers) is None
    with pytest.raises(ValueError, match="signature must be a file"):
        check_signature(content, tmp_path / "none", signers)
    with pytest.raises(ValueError, match="key must be an ssh key that can sign"):
        sign(content, signers)


def test_wrong_certificate_is_not_signed(
    plain: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], key: Path
) -> None:
    path = tmp_path / "c.json"
    command = forged(plain, set_at(["delta"], 1e-4), path)
    assert verify.main([*command, "--sign", str(key)]) == 1
    assert not (tmp_path / "c.json.sig").exists()
    assert "signature: none" in capsys.readouterr().out


def test_page_is_rendered_from_what_was_verified(
    certificate: Certificate,
    plain: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    certificate.save(tmp_path / "c.json")
    certificate.save(tmp_path / "c.txt")
    page = tmp_path / "again.txt"
    assert verify.main([str(tmp_path / "c.json"), "--render", str(page)]) == 0
    assert page.read_text() == (tmp_path / "c.txt").read_text()
    page.unlink()
    command = forged(plain, set_at(["delta"], 1e-4), tmp_path / "c.json")
    assert verify.main([*command, "--render", str(page)]) == 1
    assert not page.exists()


def test_a_certificate_that_cannot_be_saved_is_one_line(
    certificate: Certificate, tmp_path: Path
) -> None:
    for path in (tmp_path / "missing" / "c.json", tmp_path / ("x" * 300 + ".txt"), None, 3, b"c"):
        with pytest.raises(AuditError, match=r"^path must be ") as error:
            certificate.save(path)  # type: ignore[arg-type]
        assert len(str(error.value).splitlines()) == 1
    (tmp_path / "folder.html").mkdir()
    with pytest.raises(ValueError, match=r"path must be a file that can be written, got .*: Is a"):
        certificate.save(tmp_path / "folder.html")
