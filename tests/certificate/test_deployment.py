"""Drafts for the Differential Privacy Deployments Registry from certificates."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import audit
from audit import errors, tuning, verify
from audit.certificate import Numbers, Spending, compute
from audit.certificate.certificate import Certificate

# The bounds of a certificate are tested elsewhere.
pytestmark = pytest.mark.usefixtures("region_alone")

PAGE = Path(__file__).parents[2] / "docs" / "certificate.md"

# The fields of deployments-schema.yaml at commit 3e9c812 of opendp/deployments-registry-data,
# and the type of each. A tuple lists the values that the schema allows.
FIELDS = {
    "url_slug": str,
    "status": ("Converted", "Draft", "Pending", "Changes Required", "Approved"),
    "tier": (1, 2, 3),
    "deployment.basic.name": str,
    "deployment.basic.data_curators": list,
    "deployment.basic.intended_use": str,
    "deployment.basic.data_product_type": (
        "Summary statistics", "Machine learning model", "Dataset", "Synthetic data",
        "Interactive API", "SQL queries",
    ),
    "deployment.basic.data_product_region": str,
    "deployment.basic.description": str,
    "deployment.basic.publication_date": (),
    "deployment.basic.data_product_sector": (),
    "deployment.dp_variant.variant_name": (
        "Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom",
    ),
    "deployment.dp_variant.data_domain": str,
    "deployment.dp_variant.unprotected_quantities": str,
    "deployment.privacy_loss.privacy_unit": str,
    "deployment.privacy_loss.privacy_unit_details": str,
    "deployment.privacy_loss.privacy_parameters.epsilon": float,
    "deployment.privacy_loss.privacy_parameters.delta": float,
    "deployment.privacy_loss.privacy_parameters_details": str,
    "deployment.deployment_model.model_name": ("Local", "Central", "Shuffle", "Federated"),
    "deployment.deployment_model.model_name_details": str,
    "deployment.deployment_model.actors": str,
    "deployment.deployment_model.release_type": ("One release", "Many releases"),
    "deployment.deployment_model.release_type_details": str,
    "deployment.deployment_model.data_source_type": (),
    "deployment.deployment_model.data_source_type_details": str,
    "deployment.deployment_model.access_type": ("Interactive", "Non-interactive"),
    "deployment.deployment_model.access_type_details": str,
    "deployment.accounting.post_processing": str,
    "deployment.accounting.composition": str,
    "deployment.implementation.preprocessing_and_hyperparameter_tuning": str,
    "deployment.implementation.mechanisms": str,
    "deployment.implementation.justification": str,
    "deployment.administrative.sources": str,
    "deployment.administrative.notes": str,
    "deployment.administrative.registry_authors": list,
}  # fmt: skip

ALWAYS_BLANK = {
    "url_slug", "name", "data_curators", "intended_use", "data_product_region", "publication_date",
    "data_product_sector", "data_source_type", "data_source_type_details", "access_type_details",
    "post_processing", "sources",
}  # fmt: skip


def region(*given: Any) -> Numbers:
    return compute(*given, ["region"])


def study_of_page(**options: Any) -> Certificate:
    study = audit.Study(
        {"learning_rate": tuning.LogUniform(1e-3, 1.0)},
        "tnb:0,0.02",
        folder=None,
        **(
            {"base": audit.DpSgd(0.9, steps=300, sampling_rate=0.01, neighbours="zero-out")}
            | options
        ),
    )
    study.run(lambda trial: tuning.Outcome(1.0, [1.0]))
    return study.certificate


@pytest.fixture(scope="module")
def certificate() -> Iterator[Certificate]:
    # Fixtures of a module are made before those of a test.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("audit.certificate.certificate.compute", region)
        yield study_of_page()


@pytest.fixture(scope="module")
def declared(certificate: Certificate) -> Certificate:
    return certificate.declare(
        responsible='A. "Person"\n# not: a comment',
        dataset="Admissions 2025: version 3",
        unit="one admission",
        records_per_person=4,
        max_grad_norm=1.0,
        pretraining="none",
        preprocessing="features were scaled with published constants",
        earlier_spending=[Spending("table of counts, 2024", 0.5, 0.0)],
    )


def read(certificate: Certificate, folder: Path) -> tuple[str, dict[str, Any]]:
    certificate.save(folder / "deployment.yaml")
    text = (folder / "deployment.yaml").read_text()
    return text, dict(flat(yaml.safe_load(text)))


def flat(values: dict[str, Any], way: str = "") -> Iterator[Any]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{way}{name}.")
        else:
            yield way + name, value


def blank_names(fields: dict[str, Any]) -> set[str]:
    return {name.rpartition(".")[2] for name, value in fields.items() if value in ("", [""])}


@pytest.mark.slow
def test_every_field_of_the_registry_is_present_with_its_type(
    certificate: Certificate, declared: Certificate, tmp_path: Path
) -> None:
    for one in (certificate, declared):
        text, fields = read(one, tmp_path)
        assert list(fields) == list(FIELDS)
        for name, value in fields.items():
            allowed = FIELDS[name]
            if value not in ("", [""]):
                assert value in allowed if isinstance(allowed, tuple) else type(value) is allowed
        # Exactly the blank fields have a comment for the publisher.
        marked = set(re.findall(r"^ *(\w+): (?:''|\[''\])  # publisher: \S", text, re.M))
        assert marked == blank_names(fields)


@pytest.mark.thorough
def test_the_authors_statements_fill_their_fields(
    certificate: Certificate, declared: Certificate, tmp_path: Path
) -> None:
    _, fields = read(certificate, tmp_path)
    needs = {"description", "data_domain", "release_type_details", "registry_authors"}
    assert blank_names(fields) == ALWAYS_BLANK | needs
    _, fields = read(declared, tmp_path)
    assert blank_names(fields) == ALWAYS_BLANK
    (author,) = fields["deployment.administrative.registry_authors"]
    assert author == declared.declaration.responsible  # quotes and line breaks do not end a field
    tuned = fields["deployment.implementation.preprocessing_and_hyperparameter_tuning"]
    assert "published constants" in tuned
    assert "log-uniform in [0.001, 1.0]" in tuned


def test_the_numbers_are_those_of_the_certificate(declared: Certificate, tmp_path: Path) -> None:
    _, fields = read(declared, tmp_path)
    epsilon = fields["deployment.privacy_loss.privacy_parameters.epsilon"]
    exact = declared.numbers.epsilon
    assert exact <= epsilon <= exact * 1.001  # rounded up
    assert fields["deployment.privacy_loss.privacy_parameters.delta"] == declared.delta
    assert declared.as_dict()["hash"] in fields["deployment.administrative.notes"]
    justification = fields["deployment.implementation.justification"]
    assert all(one.words in justification for one in declared.on_trust)
    shown = declared.with_evidence(0.5, 0.95, 1000, 1000)
    _, fields = read(shown, tmp_path)
    assert (
        "Lower bound on epsilon, from an audit: at least 0.5"
        in fields["deployment.implementation.justification"]
    )


@pytest.mark.slow
def test_the_number_of_records_is_public_only_where_neighbours_say_so(
    certificate: Certificate, tmp_path: Path
) -> None:
    name = "deployment.dp_variant.unprotected_quantities"
    assert read(certificate, tmp_path)[1][name] == "The number of records."
    private = audit.DpSgd(0.9, steps=9, sampling_rate=0.01, neighbours="add-remove")
    assert "private" in read(study_of_page(base=private), tmp_path)[1][name]
    gaussian = study_of_page(base=audit.GaussianMechanism(1.0))
    fields = read(gaussian, tmp_path)[1]
    assert fields[name] == ""
    assert fields["deployment.basic.data_product_type"] == ""  # the release may be anything


@pytest.mark.slow
def test_a_void_certificate_is_not_registered(tmp_path: Path) -> None:
    void = study_of_page(seed=1)
    with pytest.raises(errors.InvalidInput, match=r"must not be void .* a seed was given"):
        void.save(tmp_path / "deployment.yaml")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_verify_writes_the_record_of_a_correct_certificate(
    declared: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declared.save(tmp_path / "certificate.json")
    record = tmp_path / "record.yaml"
    assert verify.main([str(tmp_path / "certificate.json"), "--render", str(record)]) == 0
    assert record.read_text() == read(declared, tmp_path)[0]


def test_the_record_on_the_page_is_current(certificate: Certificate, tmp_path: Path) -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    text, _ = read(certificate.declare(dataset="Admissions 2025, version 3"), tmp_path)
    lines = shown.replace("...", "").splitlines()
    assert len(lines) > 20
    for line in filter(str.strip, lines):
        assert line in text.splitlines()
