"""The role of each column of a table of runs: used, not about privacy, or refused.

A column is used if its name is one of a few words that mean the same everywhere, or if it is
mapped to one. A column whose name only resembles such a word is never used: it is refused, with the
mapping to type, unless everything that it could mean is known from other columns.

A mapping is the user's statement, so a name that says nothing is accepted. A name that states
another quantity is not, such as epochs mapped to steps: read as the role, its values would give a
wrong cost.
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from audit import checks
from audit.errors import InvalidInput
from audit.numbers_from_text import read_number, why_not_a_number

ROLES = {
    "noise_multiplier": "standard deviation of the noise in clipping norms",
    "sampling_rate": "probability that a record is in a batch",
    "batch_size": "expected number of records in a batch",
    "steps": "number of iterations of the run",
    "epochs": "number of passes over the records",
    "delta": "delta of the target epsilon",
    "target_epsilon": "epsilon from which the noise of the run was computed",
    "gdp_mu": "mu of Gaussian differential privacy",
    "zcdp_rho": "rho of zero-concentrated differential privacy",
}
"""The words that are read wherever they stand, with their meanings."""
IGNORE = "ignore"
"""The role to map a column to that is not about privacy."""
RUN = "run"
"""The role of a column that identifies runs, if a table has several rows for each."""
_SAME_MEANING = {"target_delta": "delta"}
"""Names of options of this package that state the same as a role."""
STATE_COLUMNS = ("state", "status")
"""Names of columns with the state of a run."""
PREFIXES = (
    "params.",
    "params_",
    "params/",
    "config/",
    "config.",
    "user_attrs_",
    "user_attrs.",
    "param_",
    "hparams/",
    "hparams.",
)
"""What trackers write before the name of a hyperparameter."""
PLAIN = {
    "mu": "gdp_mu",
    "rho": "zcdp_rho",
    "epsilon": "target_epsilon",
    "eps": "target_epsilon",
    "sigma": "noise_multiplier",
}
"""Names that are often those of other hyperparameters; they are read only where they are mapped."""
_NOISE, _RATE, _BATCH, _LENGTH, _EPSILON = "noise", "rate", "batch", "length", "epsilon"
_MU, _RHO = "mu", "rho"
_GREEK = {"\u03c3": "sigma", "\u03b5": "epsilon", "\u03f5": "epsilon", "\u03c4": "tau"}
_MISSING = frozenset({"", "nan", "none", "null", "na", "n/a", "<na>", "-"})
_MAX_LISTED = 160
"""Characters of a list of columns in a message."""
LENGTHS = ("steps", "epochs")
"""The roles that state the length of a run."""
IN_CLIPPING_NORMS = (
    "do so for {column} only if it is in units of the clipping norm (a noise multiplier is the "
    "standard deviation divided by the clipping norm)"
)
_LOSSES = ("target_epsilon", "gdp_mu", "zcdp_rho")
_EPSILONS = frozenset({"epsilon", "epsilons", "eps"})
_NOISES = frozenset({"noise", "sigma", "nm"})


LIKELY_ROLE = {
    _NOISE: "noise_multiplier",
    _RATE: "sampling_rate",
    _BATCH: "batch_size",
    _LENGTH: "steps",
    _EPSILON: "target_epsilon",
    _MU: "gdp_mu",
    _RHO: "zcdp_rho",
}
"""The role of a column that may be of some kind."""


_MEANINGS = {
    _NOISE: "a noise",
    _RATE: "a sampling rate",
    _BATCH: "a batch size",
    _LENGTH: "a number of steps",
    _EPSILON: "an epsilon",
    _MU: "a mu",
    _RHO: "a rho",
}


def name_set(text: str) -> frozenset[str]:
    """Names that are separated by spaces, as a set."""
    return frozenset(text.split())


OTHER_NOISES = name_set("label labels input image pixel aug augmentation exploration")


"""Words in names of noises that are not those of gradients."""


def is_missing(value: object) -> bool:
    """Whether a cell is empty, or holds what programs write for a missing value."""
    if isinstance(value, str):
        return value.strip().lower() in _MISSING
    return value is None or bool(value != value) or type(value).__name__ in ("NAType", "NaTType")


def number_in(cell: Any) -> float | None:
    """The number in a cell or its text; None if it is missing or no number."""
    if is_missing(cell):
        return None
    try:
        return read_number(cell) if isinstance(cell, str) else float(cell)
    except (TypeError, ValueError):
        return None


def looks_like_a_number(value: object) -> bool:
    """Whether a cell is a number, or text that some person would read as one."""
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return False
    if not isinstance(value, str):
        return isinstance(value, int | float) or hasattr(value, "__float__")
    try:
        read_number(value)
    except ValueError:
        return why_not_a_number(value) != "it is not a number"
    return True


def without_prefix(column: str) -> str:
    """The name of a column without spaces around it and without a tracker's prefix.

    Example:
        >>> without_prefix("params.noise_multiplier"), without_prefix("learning rate")
        ('noise_multiplier', 'learning rate')
    """
    name = column.strip()
    for prefix in PREFIXES:
        if name.startswith(prefix) and len(name) > len(prefix):
            return name[len(prefix) :]
    return name


def listed(names: Iterable[str]) -> str:
    """Names for a message: in quotes, and shortened to one line."""
    text = ", ".join(checks.one_line(name) for name in names)
    return text if len(text) <= _MAX_LISTED else f"{text[:_MAX_LISTED]}..."


def typed_name(column: str) -> str:
    """A column's name as a user types it in a mapping, at most 60 characters of it."""
    return checks.printable(without_prefix(column))[:60]


def parse_columns(columns: str | Mapping[str, str] | None) -> dict[str, str]:
    """The mapping from names of columns to roles.

    Args:
        columns: a mapping, or text such as `sigma=noise_multiplier,bs=batch_size`.

    Raises:
        InvalidInput: the text is no such list, a role is unknown, or two columns have one role.

    Example:
        >>> parse_columns("sigma=noise_multiplier, bs=batch_size")
        {'sigma': 'noise_multiplier', 'bs': 'batch_size'}
    """
    if columns is None:
        return {}
    if isinstance(columns, str):
        pairs = [assignment.rpartition("=") for assignment in columns.split(",")]
        if not all(equals and name.strip() for name, equals, _ in pairs):
            raise InvalidInput(
                "columns must be NAME=ROLE,NAME=ROLE,... such as sigma=noise_multiplier, got "
                f"{checks.one_line(columns)}"
            )
        columns = {name.strip(): role.strip() for name, _, role in pairs}
    if not isinstance(columns, Mapping):
        raise InvalidInput(
            f"columns must be a mapping from columns to roles, got {checks.one_line(columns)}"
        )
    mapping = {
        str(name): checks.one_of("the role of a column", role, (*ROLES, RUN, IGNORE))
        for name, role in columns.items()
    }
    used = [role for role in mapping.values() if role != IGNORE]
    for role in used:
        if used.count(role) > 1:
            names = [name for name, given_role in mapping.items() if given_role == role]
            raise InvalidInput(f"columns must map one column to {role}, got {listed(names)}")
    return mapping


@dataclass(frozen=True)
class ColumnRoles:
    """The role of each column.

    Attributes:
        used: the role of each column that describes the privacy of a run.
        unused: why a column with a known role is not needed.
        not_about_privacy: columns that do not describe the privacy of a run.
        doubtful: columns that may describe it, with what they may be.
    """

    used: Mapping[str, str]
    not_about_privacy: tuple[str, ...] = ()
    doubtful: Mapping[str, str] = field(default_factory=dict)
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        """The roles as lines of text."""
        texts = []
        if self.used:
            pairs = (
                column if without_prefix(column) == role else f"{column} as {role}"
                for column, role in self.used.items()
            )
            texts.append(f"used: {_cut(', '.join(pairs))}")
        if self.unused:
            pairs = (f"{column} ({reason})" for column, reason in self.unused.items())
            texts.append(f"not needed: {_cut(', '.join(pairs))}")
        if self.not_about_privacy:
            texts.append(
                f"not read as a privacy setting: {_cut(', '.join(self.not_about_privacy))}"
            )
        return texts


def _cut(text: str) -> str:
    plain = checks.printable(text)
    return plain if len(plain) <= 2 * _MAX_LISTED else f"{plain[: 2 * _MAX_LISTED]}..."


def roles_of(
    columns: Mapping[str, Sequence[Any]],
    mapping: Mapping[str, str],
    *,
    bookkeeping: Iterable[str] = (),
    where: str = "the table",
) -> ColumnRoles:
    """The role of each column, from its name, its values and the mapping.

    Args:
        columns: the values of each column, by its name as it is written.
        mapping: roles of columns, by their names with or without the prefix of a tracker.
        bookkeeping: columns that the tracker itself writes.
        where: the table, in words.

    Raises:
        InvalidInput: a mapped column does not exist, or two columns have one role.
    """
    names: dict[str, list[str]] = {}
    for column in columns:
        for name in {column.strip(), without_prefix(column)}:
            names.setdefault(name, []).append(column)
    roles = {}
    for name, mapped_role in mapping.items():
        if name not in names:
            raise InvalidInput(
                f"columns must name columns of {where}, got {checks.one_line(name)}; it has "
                f"{listed(columns)}"
            )
        for column in names[name]:
            roles[column] = mapped_role
    own_columns = set(bookkeeping)
    used: dict[str, str] = {}
    doubtful: dict[str, str] = {}
    not_about_privacy: list[str] = []
    mapped = set(roles.values())
    for column, values in columns.items():
        name = without_prefix(column)
        role = roles.get(column)
        meaning = _SAME_MEANING.get(name, name)
        if (
            role is None
            and meaning in ROLES
            and meaning not in mapped
            and column not in own_columns
        ):
            role = meaning
        has_numbers = any(map(looks_like_a_number, values))
        no_role = role in (IGNORE, RUN) or (
            role is None and (column in own_columns or _is_one(name, values))
        )
        if no_role or all(map(is_missing, values)):
            not_about_privacy.append(column)
        elif role is not None:
            used[column] = role
        elif has_numbers and (kind := _may_be(name)):
            doubtful[column] = kind
        else:
            not_about_privacy.append(column)
    _check_unique(used, columns, where)
    return ColumnRoles(used, tuple(not_about_privacy), doubtful)


def _is_one(name: str, values: Iterable[object]) -> bool:
    """Whether a column says that a step has one batch, without accumulation of gradients."""
    all_one = all(is_missing(value) or str(value).strip() in ("1", "1.0") for value in values)
    return all_one and "accum" in "".join(words_of(name))


def _check_unique(
    used: Mapping[str, str], columns: Mapping[str, Sequence[Any]], where: str
) -> None:
    """Refuses two columns of one role that differ."""
    by_role: dict[str, list[str]] = {}
    for column, role in used.items():
        by_role.setdefault(role, []).append(column)
    for role, alike in by_role.items():
        contents = {tuple(map(str, columns[column])) for column in alike}
        if len(contents) > 1:
            raise InvalidInput(
                f"{where} must have one column {role}, got {listed(alike)} with different values: "
                f"add --columns '{alike[-1]}={IGNORE}' for each that is not {role}"
            )


def words_of(name: str) -> list[str]:
    """The words of a column's name in lower case; Greek letters are spelled out.

    Example:
        >>> words_of("numEpochs"), words_of("dp.noise_multiplier")
        (['num', 'epochs'], ['dp', 'noise', 'multiplier'])
    """
    for letter, word in _GREEK.items():
        name = name.replace(letter, f" {word} ")
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name)
    return [word for word in re.split(r"[^a-z0-9]+", spaced.lower()) if word]


_WORDS_OF_KINDS = {
    _EPSILON: "epsilon eps epsilons privacy budget",
    _NOISE: "noise sigma nm z nmult std stddev",
    _BATCH: "batch batches bs batchsize lot minibatch microbatch b bsz bsize",
    _RATE: "sample sampling samplerate subsample subsampling samp sampled q tau poisson prob rate",
    _LENGTH: "step steps iter iters iteration iterations epoch epochs round rounds updates t "
    "nsteps nepochs niter numsteps numepochs ep",
}


_UNLESS = {
    _NOISE: "seed",
    _BATCH: "norm seed",
    _RATE: "seed sampler id learning lr dropout drop decay error warmup momentum noise label "
    "mutation success pass hit frame bit compression pruning growth norm clip clipping",
    _LENGTH: "lr learning warmup decay scheduler schedule patience size norm",
}


"""Words in names of columns that may be of a kind, and words with which they are not."""


_RESEMBLES = {kind: frozenset(words.split()) for kind, words in _WORDS_OF_KINDS.items()}


_EXCLUDES = {kind: frozenset(_UNLESS.get(kind, "").split()) for kind in _WORDS_OF_KINDS}


def _may_be(name: str) -> str:
    """What an unknown column may be; empty if its name is that of no setting of DP-SGD."""
    if name.strip() in ("mu", "rho"):
        return ""  # hyperparameters of optimisers, unless they are mapped
    words = set(words_of(name))
    joined = "".join(words_of(name))
    if "zcdp" in joined:
        return _RHO
    if "gdp" in joined and "mu" in words:
        return _MU
    if "noisemult" in joined:
        return _NOISE
    if "accum" in joined or "batchsize" in joined:
        return _BATCH
    for kind, resembling in _RESEMBLES.items():
        if words & resembling and not words & _EXCLUDES[kind]:
            counts_batches = kind == _BATCH and words & {"num", "n", "batches"}
            return _LENGTH if counts_batches else kind
    return ""


def refuse_doubtful(
    roles: ColumnRoles,
    known: Iterable[str],
    settings: Iterable[str],
    varying: Mapping[str, bool],
    where: str,
) -> ColumnRoles:
    """The roles, with doubtful columns whose meaning is known otherwise as not needed.

    Args:
        roles: the roles of all columns.
        known: the roles of other columns.
        settings: the roles that are given for all runs; all of them if a base is given.
        varying: whether each column has several values. A setting for all runs says nothing about a
            doubtful column that varies.
        where: the table, in words.

    Raises:
        InvalidInput: a column may be a noise, a rate, a batch size, a number of steps or a target
            epsilon that is not known otherwise.
    """
    by_columns, by_settings = _known_kinds(set(known)), _known_kinds({*known, *settings})
    refused, unused = {}, dict(roles.unused)
    for column, kind in roles.doubtful.items():
        kinds = by_columns if varying[column] else by_settings
        # With several small batches per step, only the rate determines the expected batch.
        needed = _RATE if "accum" in "".join(words_of(column)) else kind
        if needed in kinds:
            unused[column] = f"{_MEANINGS[kind]} is known"
        else:
            refused[column] = kind
    if refused:
        raise InvalidInput(doubt(refused, where))
    return ColumnRoles(roles.used, roles.not_about_privacy, {}, unused)


def _known_kinds(roles: Set[str]) -> set[str]:
    """The kinds of doubtful columns that roles make superfluous."""
    if roles & {"gdp_mu", "zcdp_rho"}:
        return set(_MEANINGS)
    kinds = set()
    if "noise_multiplier" in roles:
        kinds |= {_NOISE, _EPSILON, _MU, _RHO}
    if "target_epsilon" in roles:
        kinds |= {_EPSILON, _MU, _RHO}
    if "sampling_rate" in roles:
        kinds |= {_RATE, _BATCH}
    if "batch_size" in roles:
        kinds |= {_BATCH}
    if roles & {"steps", "epochs"}:
        kinds |= {_LENGTH}
    return kinds


FUNCTIONS = name_set(
    "log log2 log10 ln inv inverse reciprocal squared sq sqrt square percent percentage pct k "
    "thousand thousands neg"
)


"""Words in names of columns whose values are not the quantity itself."""


def _likely_role(name: str, kind: str) -> str:
    """The role to which a doubtful column may be mapped; empty if it needs a calculation first."""
    words = words_of(name)
    if FUNCTIONS & set(words) or "%" in name:
        return ""
    if "per" in words or "accum" in "".join(words):
        return ""  # such as the batch of one of several devices, or steps of one epoch
    if kind == _LENGTH and ("epoch" in "".join(words) or {"ep", "neps"} & set(words)):
        return "epochs"  # read as steps, epochs would give far too small a cost
    return LIKELY_ROLE[kind]


def doubt(refused: Mapping[str, str], where: str) -> str:
    """The message about doubtful columns, with the mapping to type."""
    named = list(refused.items())[:4]
    likely = {name: _likely_role(without_prefix(name), kind) for name, kind in named}
    may_be = ", ".join(
        f"{checks.one_line(name)} may "
        + ("change" if not likely[name] else "be")
        + (" a number of epochs" if likely[name] == "epochs" else f" {_MEANINGS[kind]}")
        for name, kind in named
    )
    pairs = ((without_prefix(name), role) for name, role in likely.items() if role)
    mapping = checks.printable(",".join(f"{name}={role}" for name, role in pairs))
    if len(mapping) > _MAX_LISTED:
        mapping = f"{mapping[:_MAX_LISTED]}..."
    ways = [f"add --columns '{mapping}' (in Python, columns=)"] if mapping else []
    if not all(likely.values()):
        ways.append(
            "give the rate and the steps of whole batches (--sampling-rate, --steps) and "
            f"map columns of parts of a batch or in other units to {IGNORE}"
        )
    ways += [IN_CLIPPING_NORMS.format(column=name) for name in likely if not_in_norms(name)][:1]
    return (
        f"{where} must have only columns whose meaning is known, but {may_be[:300]}: "
        f"{' and '.join(ways)}, or ={IGNORE} for a column that is not about privacy"
    )


def not_in_norms(name: str) -> bool:
    """Whether a noise may be a standard deviation in absolute units, by its name.

    Example:
        >>> not_in_norms("noise_std"), not_in_norms("noise_multiplier")
        (True, False)
    """
    words = set(words_of(without_prefix(name)))
    return (
        bool(words & {"std", "stddev", "scale", "deviation", "sd"}) and "mult" not in name.lower()
    )


_NO_LENGTHS = name_set(
    "warmup eval save log logging val validation print checkpoint patience lr decay accumulation "
    "accum per"
)


_OF_LEARNING = name_set(
    "lr learning momentum dropout decay seed accuracy acc loss score norm clip clipping"
)


_OF_PRIVACY = _EPSILONS | {"noise", "privacy", "dp"}


def check_mapped_names(mapping: Mapping[str, str]) -> None:
    """Refuses a role that a column's name contradicts.

    Raises:
        InvalidInput: a name states another quantity than its role.

    Example:
        >>> check_mapped_names({"sigma": "noise_multiplier", "max_steps": "steps"})
        >>> check_mapped_names({"num_train_epochs": "steps"})
        Traceback (most recent call last):
        ...
        audit.errors.InvalidInput: columns must map 'num_train_epochs', by its name a number of \
epochs, to the role with this meaning, got steps: map it to epochs, or rename the column
    """
    for column, role in mapping.items():
        if role == IGNORE or role not in ROLES:
            continue
        stated, right_role = _quantity_named(without_prefix(column), role)
        if stated:
            raise InvalidInput(
                f"columns must map {checks.one_line(column)}, by its name {stated}, to the role "
                f"with this meaning, got {role}: map it to {right_role or IGNORE}, or rename the "
                "column"
            )


def _quantity_named(name: str, role: str) -> tuple[str, str]:
    """The quantity that a name states if it is not the role's, and the right role; else empty."""
    last_words = words_of(name.replace("/", ".").rpartition(".")[2])
    words, joined = set(last_words), "".join(last_words)
    if (
        words & FUNCTIONS - {"log"}
        or (last_words[:1] == ["log"] and role != "steps")
        or "%" in name
    ):
        return ("a function of another quantity", "")
    if role in LENGTHS:
        if words & _NO_LENGTHS and not {"per", "run"} <= words:
            return ("something else than the length of a run", "")
        if role == "steps" and "epoch" in joined and not {"step", "steps"} & words:
            return ("a number of epochs", "epochs")
        if role == "epochs" and "epoch" not in joined and words & {"step", "steps", "iterations"}:
            return ("a number of steps", "steps")
    if role == "noise_multiplier":
        if words & _EPSILONS and not words & _NOISES:
            return ("an epsilon", "target_epsilon")
        if words & {"var", "variance"}:
            return ("a variance, whose square root is the standard deviation", "")
        if words & OTHER_NOISES:
            return ("the noise of something else than gradients", "")
    if role in _LOSSES and (words & _NOISES) and not words & (_EPSILONS | {"mu", "rho"}):
        return ("a noise", "noise_multiplier")
    if role != "delta" and words & _OF_LEARNING and not words & _OF_PRIVACY:
        return ("a setting or a result of learning", "")
    return ("", "")
