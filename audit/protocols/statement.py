"""The sentences about a protocol in certificates, reports and tables."""

from collections.abc import Mapping
from dataclasses import dataclass, field

THROUGH = "through the base mechanism alone"
"""How a run may read private records."""


@dataclass(frozen=True)
class Statement:
    """The sentences of a certificate about a protocol; the defaults are those of random search.

    Attributes:
        summary: the protocol in sentences.
        claimed: the output that the guarantee covers.
        released: everything that is released.
        secret: the random number that must stay secret, in addition to losing runs.
        candidates: how candidates are chosen.
        runs: how the number of runs is determined.
        acceptance: the condition on accepting a run; empty if no run is accepted or rejected.
        score_noise: who adds the noise of a private score.
        void_if: further events that make the certificate void.
        records: the records that a run reads, by the name of the run.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> print(parse_protocol("fixed:5").statement.summary)
        The tuning trains exactly 5 runs, each with an independent candidate, and releases the best.
    """

    summary: str
    claimed: str = "the best run of this tuning"
    released: str = (
        "the output of the best run, its candidate and its score, or that there was none"
    )
    secret: str = "the number of runs"
    candidates: str = "each candidate is drawn from the prior, independently of earlier runs"
    runs: str = "the number of runs is drawn before the first run, and no run is left out"
    acceptance: str = ""
    score_noise: str = "the study adds the noise of the score"
    void_if: tuple[str, ...] = ()
    records: Mapping[str, str] = field(
        default_factory=lambda: {"one run": f"the private training records, {THROUGH}"}
    )
