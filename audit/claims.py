"""What a number needs to be true, and what it is worth where it is used: decided here alone.

Every bound and every estimator carries a `Claim`: what kind of number it is, of which protocols it
speaks, which conditions it needs, and where it comes from. What is true of a tuning, or of a game
against it, is a set of `Facts`. `Claim.judged` compares the two; nobody relabels a number later.
"""

from dataclasses import dataclass
from enum import Enum

from audit.protocols import Protocol, RandomSearch
from audit.repetitions import Fixed

__all__ = ["Claim", "Condition", "Facts", "Kind", "Verdict", "facts_of_game", "facts_of_tuning"]


class Kind(Enum):
    """What a number is, if all that it needs is true; the values are the labels in reports.

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


class Condition(Enum):
    """What a number may need beside a protocol: its words, and the label where it is not so.

    Example:
        >>> Condition.MONOTONE_SCORE.words
        'score monotone in the likelihood ratio of one run'
    """

    MONOTONE_SCORE = (
        "score monotone in the likelihood ratio of one run",
        "not valid for this score",
    )
    SPLIT_SCORE = ("score a split order of one Gaussian statistic", "not valid for this score")
    GAUSSIAN_STATISTIC = (
        "statistic N(b mu, 1) in one run: a Gaussian base, nothing else trained on",
        "not valid for this statistic",
    )
    GAUSSIAN_BASE = ("Gaussian base", "not valid for this base")
    NOT_TUNED = ("a single run, not the best of several", "not valid for tuned outputs")
    INDEPENDENT_TRIALS = ("independent trials", "not valid for dependent trials")
    FAIR_COINS = ("each trial with its own fair coin", "not valid for fixed numbers of trials")
    RELEASED_SCORE = (
        "the released statistic is the score",
        "not valid for a statistic other than the score",
    )
    DISJOINT_CANARIES = ("canaries that do not interact", "not valid for canaries that interact")

    def __init__(self, words: str, otherwise: str) -> None:
        self.words = words
        self.otherwise = otherwise


_SCORES = (Condition.MONOTONE_SCORE, Condition.SPLIT_SCORE)


@dataclass(frozen=True)
class Facts:
    """What is true of a tuning, or of a game against it.

    Attributes:
        protocol: how the best run is chosen.
        conditions: what else is known to be so.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> Facts(parse_protocol("tnb:0,0.1"), frozenset({Condition.GAUSSIAN_BASE})).protocol.spec
        'tnb:0,0.1'
    """

    protocol: Protocol
    conditions: frozenset[Condition] = frozenset()


@dataclass(frozen=True)
class Verdict:
    """What a number is worth where it is used.

    Attributes:
        valid: whether it is a bound, and all that it needs is true.
        label: one word or two for it.
        missing: in words, what is not known to be true.

    Example:
        >>> from audit.protocols import RandomSearch, parse_protocol
        >>> claim = Claim(Kind.BOUND, "a theorem", (RandomSearch,), (Condition.MONOTONE_SCORE,))
        >>> claim.judged(facts_of_tuning(parse_protocol("tnb:0,0.1"))).label
        'not valid for this score'
    """

    valid: bool
    label: str
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What a number needs to be true.

    Attributes:
        kind: what it is then.
        source: paper and theorem.
        protocols: the protocols that it speaks of; empty for any.
        needs: what else must be true.
        about: what a reader must know besides, such as "any base"; part of the words.
        is_upper: whether the number is about all scores unless `needs` names some.

    Example:
        >>> from audit.protocols import RandomSearch, parse_protocol
        >>> claim = Claim(Kind.BOUND, "a theorem", (RandomSearch,), is_upper=True)
        >>> claim.judged(facts_of_tuning(parse_protocol("tnb:0,0.1"))).valid
        True
        >>> claim.judged(facts_of_tuning(parse_protocol("grid:10"))).valid
        False
    """

    kind: Kind
    source: str
    protocols: tuple[type[Protocol], ...] = ()
    needs: tuple[Condition, ...] = ()
    about: tuple[str, ...] = ()
    is_upper: bool = False

    @property
    def any_score(self) -> bool:
        """Whether it is a bound that holds whatever the score."""
        return self.kind is Kind.BOUND and not set(self.needs) & set(_SCORES)

    @property
    def conditions(self) -> str:
        """What must be true besides the protocol, in one line."""
        score = ("any score",) if self.is_upper and self.any_score else ()
        return "; ".join((*score, *(condition.words for condition in self.needs), *self.about))

    @property
    def words(self) -> str:
        """What must be true, in one line."""
        assumed = (protocol.assumption for protocol in self.protocols)
        return "; ".join(filter(None, (self.conditions, *assumed)))

    def judged(self, facts: Facts) -> Verdict:
        """What the number is worth, given what is true."""
        missing = [condition for condition in self.needs if condition not in facts.conditions]
        wrong = bool(self.protocols) and not isinstance(facts.protocol, self.protocols)
        words = tuple(condition.words for condition in missing)
        if wrong:
            words = (*(protocol.assumption for protocol in self.protocols), *words)
        if self.kind is not Kind.BOUND:
            # What it claims least is its label: an approximation for another score is no more.
            return Verdict(False, self.kind.value, words)
        if wrong:
            return Verdict(False, "not valid for this protocol", words)
        if missing:
            return Verdict(False, missing[0].otherwise, words)
        return Verdict(True, Kind.BOUND.value)


def facts_of_tuning(protocol: Protocol, *conditions: Condition) -> Facts:
    """What is true of a tuning of which nothing is known but how it chooses, and what is added.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> facts_of_tuning(parse_protocol("grid:10")).protocol
        Grid(candidates=10, inclusion=1.0)
    """
    found = set(conditions)
    if protocol == RandomSearch(Fixed(1)):
        found.add(Condition.NOT_TUNED)
    return Facts(protocol, frozenset(found))


def facts_of_game(
    protocol: Protocol,
    score: str,
    canary: str,
    *,
    empty_training_set: bool,
    full_batch: bool,
    one_plain_candidate: bool,
) -> Facts:
    """What is true of a game of this project.

    The statistic sum_i p_i[0] / (C sigma sqrt N) is N(b mu, 1) in one run where every gradient of
    the canary is (C, 0, ..., 0), every step takes it, and nothing else is trained on: gradients of
    other records depend on the weights so far, and so on the canary. The first coordinate of the
    weights grows with it where all candidates weigh the steps alike: another learning rate or C
    changes the order between candidates, and momentum weighs the steps anew. A worst-order score
    takes what the adversary knows of the training set away first, so its order is that of N(b mu,
    1) on any training set; the released lambda_a is then not the statistic that it orders by.

    Args:
        protocol: how the best run is chosen.
        score: its name in settings.
        canary: its name in settings.
        empty_training_set: whether the canary is all that is trained on.
        full_batch: whether the sampling rate is 1.
        one_plain_candidate: whether there is one candidate, without momentum.

    Example:
        >>> from audit.protocols import parse_protocol
        >>> options = {"empty_training_set": True, "full_batch": True, "one_plain_candidate": True}
        >>> protocol = parse_protocol("tnb:0,0.1")
        >>> facts = facts_of_game(protocol, "first-coordinate", "dirac", **options)
        >>> Condition.MONOTONE_SCORE in facts.conditions
        True
    """
    conditions = {Condition.INDEPENDENT_TRIALS, Condition.FAIR_COINS}
    if full_batch:
        conditions.add(Condition.GAUSSIAN_BASE)
    if canary == "dirac" and full_batch and empty_training_set:
        conditions.add(Condition.GAUSSIAN_STATISTIC)
        if score == "first-coordinate" and one_plain_candidate:
            conditions |= {Condition.MONOTONE_SCORE, Condition.RELEASED_SCORE}
        if score == "worst-order":
            conditions.add(Condition.SPLIT_SCORE)
    return facts_of_tuning(protocol, *conditions)
