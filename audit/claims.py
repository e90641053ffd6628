"""The assumptions behind each bound, and whether they hold for a given tuning or audit.

Every bound and every estimator carries a `Claim`: the kind of number, the protocols it covers, its
assumptions and its source. `Facts` states what is known about a tuning or about the trials of an
audit. `Claim.validity` compares the two. No other module decides whether a number is valid.
"""

from dataclasses import dataclass
from enum import Enum

from audit.protocols.base import Protocol
from audit.protocols.random_search import RandomSearch
from audit.repetitions import Fixed

__all__ = ["Assumption", "Claim", "Facts", "Kind", "Validity", "facts_of_game", "facts_of_tuning"]


class Kind(Enum):
    """Kind of number, provided that its assumptions hold. The values are the labels in reports.

    Example:
        >>> Kind.BOUND.value, Kind.ATTAINED.value
        ('valid', 'attained')
    """

    BOUND = "valid"
    ONE_RUN = "one run"
    ATTAINED = "attained"
    APPROXIMATION = "approximation"
    UNCORRECTED = "uncorrected"
    ASYMPTOTIC = "asymptotic"
    ODOMETER = "odometer reading"


class Assumption(Enum):
    """An assumption of a bound, other than the protocol.

    Attributes:
        words: the assumption, as reports print it.
        label_if_false: label of a number for which the assumption does not hold.

    Example:
        >>> Assumption.MONOTONE_SCORE.words
        'score monotone in the likelihood ratio of one run'
    """

    MONOTONE_SCORE = (
        "score monotone in the likelihood ratio of one run",
        "not valid for this score",
    )
    SPLIT_SCORE = ("score is a split order of one Gaussian statistic", "not valid for this score")
    GAUSSIAN_STATISTIC = (
        "statistic of one run N(b mu, 1), b = 1 with the canary: Gaussian base, no other training "
        "records",
        "not valid for this statistic",
    )
    GAUSSIAN_BASE = ("Gaussian base", "not valid for this base")
    NOT_TUNED = ("a single run, not the best of several", "not valid for tuned outputs")
    INDEPENDENT_TRIALS = ("independent trials", "not valid for dependent trials")
    FAIR_COINS = (
        "canary included by a fair coin in each trial",
        "not valid for fixed numbers of trials",
    )
    RELEASED_SCORE = (
        "the released statistic is the score",
        "not valid for a statistic other than the score",
    )
    DISJOINT_CANARIES = ("canaries that do not interact", "not valid for canaries that interact")
    EQUAL_CANARIES = (
        "canaries whose scores have the same distributions",
        "not proved for unequal canaries",
    )

    def __init__(self, words: str, label_if_false: str) -> None:
        self.words = words
        self.label_if_false = label_if_false


_SCORES = (Assumption.MONOTONE_SCORE, Assumption.SPLIT_SCORE)


@dataclass(frozen=True)
class Facts:
    """What is known about a tuning, or about the trials of an audit.

    Attributes:
        protocol: how the best run is chosen.
        assumptions: the assumptions that are known to hold.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> Facts(parse_protocol("tnb:0,0.1"), frozenset({Assumption.GAUSSIAN_BASE})).protocol.spec
        'tnb:0,0.1'
    """

    protocol: Protocol
    assumptions: frozenset[Assumption] = frozenset()


@dataclass(frozen=True)
class Validity:
    """Whether a number is a valid bound for a given tuning or audit.

    Attributes:
        valid: whether it is a bound and all its assumptions are known to hold.
        label: the verdict in a few words.
        missing: the assumptions that are not known to hold, as text.

    Example:
        >>> from audit.protocols import RandomSearch, parse_protocol
        >>> claim = Claim(Kind.BOUND, "a theorem", (RandomSearch,), (Assumption.MONOTONE_SCORE,))
        >>> claim.validity(facts_of_tuning(parse_protocol("tnb:0,0.1"))).label
        'not valid for this score'
    """

    valid: bool
    label: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """The kind of a number, its assumptions and its source.

    Attributes:
        kind: kind of the number if the assumptions hold.
        source: paper and theorem.
        protocols: the protocols that it covers; empty means every protocol.
        assumptions: further assumptions.
        about: remarks for the reader, such as "any base"; printed with the assumptions.
        is_upper: whether it is an upper bound; it then covers every score unless `assumptions`
            restrict the score.

    Example:
        >>> from audit.protocols import RandomSearch, parse_protocol
        >>> claim = Claim(Kind.BOUND, "a theorem", (RandomSearch,), is_upper=True)
        >>> claim.validity(facts_of_tuning(parse_protocol("tnb:0,0.1"))).valid
        True
        >>> claim.validity(facts_of_tuning(parse_protocol("grid:10"))).valid
        False
    """

    kind: Kind
    source: str
    protocols: tuple[type[Protocol], ...] = ()
    assumptions: tuple[Assumption, ...] = ()
    about: tuple[str, ...] = ()
    is_upper: bool = False

    @property
    def any_score(self) -> bool:
        """Whether it is a bound that holds for every score."""
        return self.kind is Kind.BOUND and not set(self.assumptions) & set(_SCORES)

    @property
    def words_without_protocol(self) -> str:
        """The assumptions other than the protocol, in one line."""
        score = ("any score",) if self.is_upper and self.any_score else ()
        return "; ".join(
            (*score, *(assumption.words for assumption in self.assumptions), *self.about)
        )

    @property
    def words(self) -> str:
        """All assumptions, in one line."""
        of_protocols = (protocol.assumption for protocol in self.protocols)
        return "; ".join(filter(None, (self.words_without_protocol, *of_protocols)))

    def validity(self, facts: Facts) -> Validity:
        """Whether the number is valid, given the facts."""
        missing = [
            assumption for assumption in self.assumptions if assumption not in facts.assumptions
        ]
        words = tuple(assumption.words for assumption in missing)
        other_protocol = bool(self.protocols) and not isinstance(facts.protocol, self.protocols)
        if other_protocol:
            words = (*(protocol.assumption for protocol in self.protocols), *words)
        if self.kind is not Kind.BOUND:
            # An approximation stays an approximation, whichever assumptions fail.
            return Validity(False, self.kind.value, words)
        if other_protocol:
            return Validity(False, "not valid for this protocol", words)
        if missing:
            return Validity(False, missing[0].label_if_false, words)
        return Validity(True, Kind.BOUND.value)


def facts_of_tuning(protocol: Protocol, *assumptions: Assumption) -> Facts:
    """Facts about a tuning, given its protocol and the assumptions that are known to hold.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> facts_of_tuning(parse_protocol("grid:10")).protocol
        Grid(candidates=10, inclusion=1.0)
    """
    fulfilled = set(assumptions)
    if protocol == RandomSearch(Fixed(1)):
        fulfilled.add(Assumption.NOT_TUNED)
    return Facts(protocol, frozenset(fulfilled))


def facts_of_game(
    protocol: Protocol,
    score: str,
    canary: str,
    *,
    empty_training_set: bool,
    full_batch: bool,
    one_plain_candidate: bool,
) -> Facts:
    """Facts about the trials of an audit.

    The statistic sum_i p_i[0] / (C sigma sqrt N) has the distribution N(b mu, 1) in one run if
    every gradient of the canary is (C, 0, ..., 0), every step includes the canary, and the training
    set is otherwise empty. (Gradients of other records depend on the earlier weights, and so on
    the canary.) The first coordinate of the weights increases with this statistic if all candidates
    weigh the steps equally: another learning rate or C changes the order between candidates, and
    momentum changes the weights of the steps. A worst-order score first subtracts what the
    adversary knows about the training set, so it orders by N(b mu, 1) on every training set; the
    released lambda_a is then not the statistic that the score orders by.

    Args:
        protocol: how the best run is chosen.
        score: name of the score in the settings.
        canary: name of the canary in the settings.
        empty_training_set: whether the canary is the only record.
        full_batch: whether the sampling rate is 1.
        one_plain_candidate: whether there is one candidate, without momentum.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> options = {"empty_training_set": True, "full_batch": True, "one_plain_candidate": True}
        >>> protocol = parse_protocol("tnb:0,0.1")
        >>> facts = facts_of_game(protocol, "first-coordinate", "dirac", **options)
        >>> Assumption.MONOTONE_SCORE in facts.assumptions
        True
    """
    assumptions = {Assumption.INDEPENDENT_TRIALS, Assumption.FAIR_COINS}
    if full_batch:
        assumptions.add(Assumption.GAUSSIAN_BASE)
    if canary == "dirac" and full_batch and empty_training_set:
        assumptions.add(Assumption.GAUSSIAN_STATISTIC)
        if score == "first-coordinate" and one_plain_candidate:
            assumptions |= {Assumption.MONOTONE_SCORE, Assumption.RELEASED_SCORE}
        if score == "worst-order":
            assumptions.add(Assumption.SPLIT_SCORE)
    return facts_of_tuning(protocol, *assumptions)
