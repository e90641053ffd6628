"""Columns by which the runs are not what the used columns say; each is refused by name.

A column of a config is often not needed, such as `max_steps` next to `steps`. If it says that a run
was less private than the mechanism that follows from the other columns, the bound could be too
small, so the table is refused until the user says which column holds. Each kind of such a column is
one function in `_RULES`.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from audit import checks
from audit.accounting import DpSgd, GaussianMechanism, Mechanism
from audit.errors import InvalidInput
from audit.finished.columns import (
    IGNORE,
    OTHER_NOISES,
    is_missing,
    name_set,
    number_in,
    typed_name,
    without_prefix,
    words_of,
)
from audit.finished.material import Material
from audit.finished.runs import ACCOUNTANTS, RunSettings, is_false
from audit.numerics import memoize

_PRIVATE = name_set(
    "dp private isdp isprivate usedp useprivacy enabledp enableprivacy withdp dpsgd "
    "usedpsgd differentialprivacy differentiallyprivate privacy dpenabled privacyenabled "
    "dptraining privatetraining useopacus usedifferentialprivacy noise addnoise usenoise "
    "withnoise enablenoise noiseenabled"
)
_NOT_PRIVATE = name_set(
    "disabledp nodp nonprivate notprivate withoutdp disableprivacy nonprivatebaseline nondp "
    "dpdisabled privacydisabled isnonprivate nonprivatetraining nonoise withoutnoise disablenoise"
)
"""Names of flags, without spaces and in lower case."""

_PRIVATE_WORDS = re.compile(r"dp|differential|private|gauss|laplac|opacus|tfprivacy|jaxprivacy")
"""How the text of a cell begins that states privacy or its noise."""

_TRAININGS = name_set(
    "nruns numruns runs nsplits numsplits nfolds numfolds folds kfolds kfold cvfolds "
    "nseeds numseeds nrepeats numrepeats repeats nrepetitions repetitions nrestarts restarts "
    "numrestarts ensemblesize nmodels nummodels nensemble bestof ntrials numtrials trials "
    "trialsperconfig runsperconfig nbags totaltrials totalruns numcandidates ncandidates "
    "numconfigs nconfigs seedsaveraged runsaveraged foldsaveraged count seeds randomseeds splits "
    "replicates nreplicates numreplicates reps nreps numreps cv ncv cvsplits navg averagedover "
    "averageover avgover meanover averagedoverseeds averagedoverruns averagedoverfolds "
    "avgoverseeds avgoverruns meanoverseeds meanoverruns seedspertrial seedsperconfig"
)
_SEEDS = name_set("seeds randomseeds seedlist listofseeds folds splits")
_SEVERAL_NUMBERS = re.compile(r"[\[(]?\s*\d+(?:[,;\s]+\d+)+\s*[\])]?")
_REPEATED = name_set("fold folds seed seeds")
_SEVERAL_SCORES = re.compile(r"[\[(]\s*-?\d*\.\d+(?:[,;\s]+-?\d*\.\d+)+\s*[\])]")
_SUMMARY_OF_SCORES = re.compile(
    r"\d\s*(?:\u00b1|\+/-|\+-|\\pm\b)\s*\.?\d"
    r"|\b(?:mean|averaged?|avg|median|best|max)\s+(?:of|over|across)\s+(?!1\b)\d+\b"
    r"|\b(?!1\s)\d+\s*(?:random\s+)?(?:runs|seeds|trainings|folds|splits|repeats|repetitions|replicates)"
    r"\b",
    re.IGNORECASE,
)
"""A cell such as `0.8 +/- 0.1` or `mean of 5 runs`."""

_DEVIATIONS = name_set("std stdev sd stderr sem se")
_SCORES = name_set(
    "acc accuracy f1 auc auroc score scores objective metric value precision recall mse rmse mae "
    "perplexity ppl bleu rouge loss error"
)
_NUMBERED = re.compile(
    r"(?<![a-z])(fold|seed|split|repetition|repeat|replicate|rep|trial|run)s?[ _./-]?(\d+)"
)
"""Names of columns with the score of one of several trainings, such as `acc_seed1`."""
_RECORDS = name_set(
    "ntrain numtrain trainsize ntrainsamples numtrainsamples ntrainexamples "
    "numtrainexamples trainsetsize datasetsize nrecords numrecords records nexamples "
    "numexamples maxtrainsamples maxtrainexamples trainsamples trainexamples trainset trainlen "
    "lentrain trainsubset subsetsize nsubset datasize samplesize nsamples numsamples "
    "traindatasize trainingsize trainingsetsize ntraining numtraining maxsamples maxexamples "
    "numtrainrecords ntrainrecords ndata numdata"
)
_PARTS = name_set("fraction frac ratio portion percent percentage pct proportion share split size")
_PARTS_OF_TRAINING = name_set("train training subset data dataset samples records subsample")
_PARTS_HELD_OUT = name_set("val valid validation test holdout heldout dev eval")
_NO_PARTS = name_set("batch sampling noise lr learning label labels warmup clip gen synthetic")
_DEVICES = name_set(
    "ngpus ngpu numgpus numgpu gpus gpucount worldsize numprocesses nprocesses nprocs nproc "
    "nprocpernode numdevices ndevices devices devicecount gpuspernode devicespernode numnodes "
    "nnodes numreplicas nreplicas replicas numreplicasinsync dataparallelsize dpsize dpworldsize "
    "numaccelerators tpucores numtpucores numshards cudavisibledevices localworldsize"
)
_ENDS_OF_DEVICES = ("worldsize", "numprocesses", "numgpus", "numdevices", "ngpus", "nprocs")
_WHOLE_BATCHES = frozenset({"total", "effective", "global", "logical", "virtual", "expected"})
_WORKERS = name_set("numworkers nworkers workers")
"""Numbers of data-parallel trainers in Ray, and of loading processes in torch."""

_ADAPTIVE = name_set("adaptive quantile adaclip adaptiveclipping geometricadaptive")
_ADAPTIVE_PARAMETERS = name_set(
    "sigmab sigmau unclippednumstd unclippedcountstd unclippednumstddev clippedcountstddev "
    "clippedcountstd clippingcountstd countstd countnoise countnoisemultiplier bitnoise "
    "targetunclippedquantile targetquantile unclippedquantile targetunclippedfraction "
    "clippinglearningrate cliplearningrate clipboundlearningrate quantilelr cliplr "
    "minclipbound maxclipbound initialclipbound quantilelearningrate clippingquantile"
)
_GROUPS = name_set(
    "groupsize dpgroupsize recordsperuser samplesperuser recordsperperson "
    "examplesperuser maxrecordsperuser maxexamplesperuser maxcontributions "
    "contributionbound maxcontributionsperuser"
)
_USER_LEVEL = name_set(
    "userlevel userleveldp isuserlevel clientlevel clientleveldp grouplevel "
    "patientlevel groupprivacy userlevelprivacy"
)
_UNITS = name_set("privacyunit unitofprivacy dpunit privacylevel dplevel privacygranularity")
_RECORD_UNITS = name_set(
    "record records example examples sample samples instance item row point "
    "examplelevel recordlevel samplelevel instancelevel datapoint "
    "itemlevel image images"
)
_RELATIONS = name_set(
    "neighbours neighbors neighbouring neighboring adjacency relation dprelation "
    "neighbouringrelation neighboringrelation adjacencyrelation "
    "adjacencytype"
)
_REPLACED = re.compile(r"repl|subst|chang|swap|^bounded")
_BATCHINGS = name_set(
    "batches sampler sampling batchsampling batchsampler batching samplingmethod "
    "samplingscheme samplingstrategy batchmode dataloader loader"
)
_SHUFFLED = ("shuffl", "withoutreplacement", "sequentialsampler", "fixedsize", "fixedbatch")
_RESUMED = name_set(
    "resumedfrom resumefrom resume resumed continuedfrom continuefrom resumecheckpoint "
    "resumefromcheckpoint warmstartfrom warmstart warmstarted parentcheckpoint"
)
_STARTS = name_set("startstep startepoch initialepoch initialstep stepoffset epochoffset")
_MECHANISMS = name_set(
    "mechanism noise algorithm algo method optimizer optimiser dp privacy trainer approach type"
)
_OTHER_MECHANISMS = (
    *("laplac", "ftrl", "tree", "bandmf", "matrixfactor", "correlated", "skellam", "pate"),
    *("nonprivate", "nondp", "nodp", "withoutdp", "withoutprivacy", "labeldp", "localdp"),
)
_CLIPPING_NORMS = name_set(
    "maxgradnorm maxpersamplegradnorm l2normclip clipnorm clippingnorm clipping clippingthreshold "
    "clippingbound clipbound persampleclipping l2clip dpclip"
)
_SCORED_ON = name_set("scoredon validationdata valdata evaldata scoredata selectiondata")
_SCHEDULES = name_set("scheduler schedule scheduling decay anneal annealing")
_CONSTANT = name_set("constant const fixed false no none off 0 0.0 1 1.0")
_OTHER_LENGTHS = name_set("eval save log logging test val validation print checkpoint")
_MARGIN = 1.01


@dataclass(frozen=True)
class _Statement:
    """One cell with a statement about its run.

    Attributes:
        words: the words of the last part of its column's name.
        roles: the roles that columns and settings have.
        settings: what holds for all runs.
        batch_column: the words of the column with the batch size; empty without one.
        batch_size: the batch size of the run; None without one.
    """

    words: Sequence[str]
    cell: object
    roles: frozenset[str]
    settings: RunSettings
    batch_column: Sequence[str] = ()
    batch_size: object = None

    @property
    def name(self) -> str:
        """The name of the column without spaces, in lower case."""
        return "".join(self.words)

    @property
    def text(self) -> str:
        """The cell in lower case, without spaces and punctuation."""
        return re.sub(r"[^a-z0-9.]", "", str(self.cell).lower())

    @property
    def number(self) -> float | None:
        """The number in the cell; None if it has none."""
        return _number(self.cell)

    @property
    def rate_from_batches(self) -> bool:
        """Whether the sampling rate follows from a batch size and the number of records."""
        return "sampling_rate" not in self.roles and "batch_size" in self.roles


def _other_privacy(statement: _Statement) -> str:
    cell, is_number = statement.cell, statement.number is not None
    # A word that is neither yes nor no may mean either.
    is_private = _is_true(cell) or is_number or _PRIVATE_WORDS.match(statement.text)
    if (statement.name in _PRIVATE and (is_false(cell) or not is_private)) or (
        statement.name in _NOT_PRIVATE and not is_false(cell)
    ):
        return (
            "runs with differential privacy only, because no bound holds for the others (true or "
            "false)"
        )
    return ""


def _several_trainings(statement: _Statement) -> str:
    cell = str(statement.cell).strip()
    repeated = statement.number is not None and statement.number > 1.0
    seeds = statement.name in _SEEDS and _SEVERAL_NUMBERS.fullmatch(cell)
    scores = _REPEATED & set(statement.words) and _SEVERAL_SCORES.fullmatch(cell)
    summary = _SUMMARY_OF_SCORES.search(cell)
    trainings = seeds or scores or summary or (statement.name in _TRAININGS and repeated)
    return "one row for each training" if trainings else ""


def _varying_noise(statement: _Statement) -> str:
    words = set(statement.words)
    if not ({"noise", "sigma"} & words and _SCHEDULES & words):
        return ""
    constant = str(statement.cell).strip().lower() in _CONSTANT
    return "" if constant else "runs with constant noise, or the smallest noise of each run"


def _fewer_records(statement: _Statement) -> str:
    number, records = statement.number, statement.settings.records
    if statement.name not in _RECORDS or number is None or records is None:
        return ""
    fewer = 1.0 < number < records
    return f"runs on all {records} records (--records)" if fewer else _part(statement)


def _part_of_the_records(statement: _Statement) -> str:
    words = set(statement.words)
    training, held_out = words & _PARTS_OF_TRAINING, words & _PARTS_HELD_OUT
    if not words & _PARTS or not (training or held_out) or words & _NO_PARTS:
        return ""
    return _part(statement)


def _part(statement: _Statement) -> str:
    """The problem of a share of the records, if the number of records gives the rate."""
    text = str(statement.cell).strip()
    percent = {"percent", "percentage", "pct"} & set(statement.words) or text.endswith("%")
    number = _number(text.removesuffix("%"))
    if number is None or not statement.rate_from_batches:
        return ""
    if not 0.0 < number < (100.0 if percent else 1.0):
        return ""
    return (
        "as --records only the records that its runs trained on (if this holds, map the column to "
        "ignore)"
    )


def _several_devices(statement: _Statement) -> str:
    if not statement.rate_from_batches:
        return ""
    partial = {"per", "local", "device", "micro", "worker"} & set(statement.batch_column)
    counts_devices = statement.name in _DEVICES or statement.name.endswith(_ENDS_OF_DEVICES)
    if counts_devices or (statement.name in _WORKERS and partial):
        listed = re.fullmatch(r"\[?\s*\d+(?:\s*,\s*\d+)+\s*\]?", str(statement.cell).strip())
        count = str(statement.cell).count(",") + 1 if listed else statement.number
        if count is not None and count > 1.0:
            return (
                "as batch_size the records of one step on all devices together (if this holds, map "
                "the column to ignore)"
            )
    return ""


def _dropped_batches(statement: _Statement) -> str:
    dropped = statement.name in ("droplast", "dataloaderdroplast") and _is_true(statement.cell)
    if dropped and statement.rate_from_batches and not statement.settings.drop_last:
        return "its loader as it is stated: pass --drop-last (in Python, drop_last=True)"
    return ""


def _adaptive_clipping(statement: _Statement) -> str:
    name, words = statement.name, set(statement.words)
    clips = any("clip" in word for word in words)
    flagged = clips and (words & _ADAPTIVE or name in _ADAPTIVE)
    in_cell = clips and any(word in statement.text for word in ("adapt", "quantile", "adaclip"))
    # With other names, the value is a flag, a fraction or a name; zero and false switch it off.
    chosen = name in _ADAPTIVE_PARAMETERS or flagged
    off = is_false(statement.cell) or statement.text in ("none", "null")
    if not (in_cell or (chosen and not off)):
        return ""
    return (
        "the noise multiplier that covers the gradients and the noisy count of clipped gradients "
        "together, which adaptive clipping releases in every step"
    )


def _groups_of_records(statement: _Statement) -> str:
    if statement.settings.group_size != 1:
        return ""
    many = statement.number is not None and statement.number > 1.0
    unit = statement.text.replace("level", "").removesuffix("dp")
    other_unit = statement.name in _UNITS and statement.number is None and not (
        unit in _RECORD_UNITS or statement.text in _RECORD_UNITS
    )  # fmt: skip
    if (statement.name in _GROUPS and many) or other_unit or (
        statement.name in _USER_LEVEL and _is_true(statement.cell)
    ):  # fmt: skip
        return (
            "the records of one person protected one by one, or their number as --group-size (in "
            "Python, group_size=)"
        )
    return ""


def _replaced_records(statement: _Statement) -> str:
    if statement.name not in _RELATIONS or not _REPLACED.search(statement.text):
        return ""
    stated = statement.settings.neighbours
    return "" if stated == "replace-one" else "the neighbours that are stated: pass --neighbours"


def _shuffled_batches(statement: _Statement) -> str:
    shuffled = statement.text == "fixed" or any(word in statement.text for word in _SHUFFLED)
    if statement.name not in _BATCHINGS or not shuffled:
        return ""
    drawn = statement.settings.batches
    return "" if drawn == "shuffled" else "batches as they are stated: pass --batches shuffled"


def _other_accountant(statement: _Statement) -> str:
    stated = statement.settings.accountant
    accountant = statement.text if statement.text in ACCOUNTANTS else ""
    if statement.name not in ("accountant", "accountanttype", "dpaccountant") or not accountant:
        return ""
    computed = "target_epsilon" in statement.roles and "noise_multiplier" not in statement.roles
    if stated in (None, accountant) or not computed:
        return ""
    return f"its noise by the accountant that is stated: pass --accountant {accountant}"


def _averaged_clipping(statement: _Statement) -> str:
    """Microbatches of several records, of which only the mean gradient is clipped."""
    number = statement.number
    if number is None or "microbatch" not in statement.name:
        return ""
    averages = number > 1.0
    if "size" not in statement.words:
        size = _number(statement.batch_size)
        averages = size is None or number < size
    if not averages:
        return ""
    return (
        "the gradient of each record clipped, because the mean of a microbatch is more sensitive "
        "(if each is clipped, map the column to ignore)"
    )


def _resumed(statement: _Statement) -> str:
    number, words = statement.number, set(statement.words)
    resumed = statement.name in _RESUMED and not (is_false(statement.cell) or number == -1.0)
    started = statement.name in _STARTS and number is not None and number > 0.0
    in_phases = any(word.startswith(("phase", "stage")) for word in words)
    phase = in_phases and words & {"steps", "epochs"} and bool(number)
    if not (resumed or started or phase):
        return ""
    return (
        "the length of each whole run, with what was trained before it was resumed and in other "
        "phases (if this holds, map the column to ignore)"
    )


def _other_mechanism(statement: _Statement) -> str:
    names_mechanism = set(statement.words) & _MECHANISMS and statement.number is None
    is_other = any(phrase in statement.text for phrase in _OTHER_MECHANISMS)
    local = statement.name in ("labeldp", "localdp", "ldp") and _is_true(statement.cell)
    no_noise = statement.name in ("noisetype", "mechanism", "dpmechanism") and statement.text in (
        "none", "no", "off"
    )  # fmt: skip
    if not ((names_mechanism and is_other) or local or no_noise):
        return ""
    return "runs of DP-SGD with independent Gaussian noise only, or the curve of each other run"


def _no_clipping(statement: _Statement) -> str:
    number = statement.number
    unlimited = number is not None and not 0.0 < number < float("inf")
    off = is_false(statement.cell) or statement.text == "nan"
    if statement.name not in _CLIPPING_NORMS or not (unlimited or off):
        return ""
    return "clipped gradients, because the noise of others has no effect that a bound could use"


def _private_scores(statement: _Statement) -> str:
    if statement.name not in _SCORED_ON or "private" not in statement.text:
        return ""
    return "" if "nonprivate" in statement.text else (
        "scores that depend on public records only, or that are private themselves"
    )  # fmt: skip


def _without_replacement(statement: _Statement) -> str:
    is_flag = statement.name in ("replacement", "withreplacement", "samplingwithreplacement")
    poisson = statement.settings.batches == "poisson"
    return (
        "batches as they are stated: pass --batches shuffled"
        if is_flag and poisson and is_false(statement.cell)
        else ""
    )


def _summary_row(statement: _Statement) -> str:
    summary = statement.text in ("total", "mean", "average", "avg", "sum", "median", "std")
    identifies = statement.name in ("name", "run", "runname", "id", "trial", "")
    if not (summary and identifies):
        return ""
    return "one row for each run and no row with a summary of others"


_RULES: tuple[Callable[[_Statement], str], ...] = (
    _other_privacy,
    _several_trainings,
    _varying_noise,
    _fewer_records,
    _part_of_the_records,
    _several_devices,
    _dropped_batches,
    _adaptive_clipping,
    _groups_of_records,
    _replaced_records,
    _shuffled_batches,
    _other_accountant,
    _averaged_clipping,
    _resumed,
    _other_mechanism,
    _no_clipping,
    _private_scores,
    _without_replacement,
    _summary_row,
)
"""What a table must have and has not, by one cell; empty if the cell says nothing."""


def refuse_other_trainings(
    columns: Mapping[str, Sequence[Any]],
    mapping: Mapping[str, str],
    used: Mapping[str, str],
    settings: RunSettings,
    where: str,
) -> None:
    """Refuses rows that are no single private training with constant noise on all records.

    Args:
        columns: the values of each column.
        mapping: roles of columns; a column that is mapped is not examined.
        used: the role of each column that describes a run.
        settings: what holds for all runs.
        where: the table, in words.

    Raises:
        InvalidInput: a column states this.
    """
    roles = frozenset((*used.values(), *settings.constants))
    batch_columns = [column for column, role in used.items() if role == "batch_size"]
    batch_words = _last_words(batch_columns[0]) if batch_columns else []
    number_of_rows = max(map(len, columns.values()), default=0)
    for_all = settings.constants.get("batch_size")
    sizes = columns[batch_columns[0]] if batch_columns else [for_all] * number_of_rows
    unread = [
        column
        for column in columns
        if column not in mapping and without_prefix(column) not in mapping and column not in used
    ]
    if "params" not in columns:  # the reader of scikit-learn's tables counts their splits
        unread_columns = {column: columns[column] for column in unread}
        _refuse_numbered_trainings(unread_columns, where)
        _refuse_deviations(unread_columns, where)
    for column in unread:
        cells, words = columns[column], _last_words(column)
        # "privacy: none" is a statement, and elsewhere a missing value.
        states_none = "".join(words) in _PRIVATE
        empty_cells = [
            is_missing(cell) and not (states_none and str(cell) in ("none", "null"))
            for cell in cells
        ]
        rows = zip(map(str, cells), sizes, empty_cells, strict=True)
        for cell, size in dict.fromkeys((cell, size) for cell, size, empty in rows if not empty):
            statement = _Statement(words, cell, roles, settings, batch_words, size)
            problem = next(filter(None, (rule(statement) for rule in _RULES)), "")
            if problem:
                raise InvalidInput(
                    f"{where} must have {problem}, got {checks.one_line(cell)} in column "
                    f"{checks.one_line(column)}; {_or_ignore(column)}"
                )


def _refuse_numbered_trainings(columns: Mapping[str, Sequence[Any]], where: str) -> None:
    """Refuses columns such as `acc_seed0` and `acc_seed1`, where a row holds several trainings."""
    first_columns: dict[str, tuple[str, str]] = {}
    for column, cells in columns.items():
        place = _NUMBERED.search(column.lower())
        if place is None or not any(_number(cell) is not None for cell in cells):
            continue
        first_column, number = first_columns.setdefault(place[1], (column, place[2]))
        if number != place[2]:
            raise InvalidInput(
                f"{where} must have one row for each training, got columns "
                f"{checks.one_line(first_column)} and {checks.one_line(column)}; "
                f"{_or_ignore(column)}"
            )


def _refuse_deviations(columns: Mapping[str, Sequence[Any]], where: str) -> None:
    """Refuses a column such as `acc_std`, the deviation of a score between several trainings."""
    for column, cells in columns.items():
        words = set(words_of(without_prefix(column)))
        deviates = any((_number(cell) or 0.0) != 0.0 for cell in cells)
        if words & _DEVIATIONS and words & _SCORES and deviates:
            raise InvalidInput(
                f"{where} must have one row for each training, got the deviation of a score in "
                f"column {checks.one_line(column)}; {_or_ignore(column)}"
            )


def _last_words(column: str) -> list[str]:
    """The words of a column's name without its groups, such as `data/` or `dp.`."""
    return words_of(without_prefix(column).replace("/", ".").rpartition(".")[2])


def refuse_less_private(
    material: Material,
    doubtful: Mapping[str, str],
    runs: Iterable[Mechanism],
    settings: RunSettings,
) -> None:
    """Refuses a column that is not needed, and says that a run was less private than its mechanism.

    Args:
        material: the runs of the source.
        doubtful: the columns that are not used, with what they may be.
        runs: the mechanism of each run.
        settings: what holds for all runs.

    Raises:
        InvalidInput: a column states this.
    """
    shuffled = settings.batches == "shuffled"  # the steps of a mechanism are then epochs
    for recorded, mechanism in zip(material.runs, runs, strict=True):
        if not isinstance(mechanism, DpSgd):
            continue
        for column, kind in doubtful.items():
            cell = recorded.values.get(column)
            if kind == "length" and isinstance(cell, str):
                cell = re.sub(r"(?<=[0-9])[,' _](?=[0-9]{3})", "", cell)  # separators of thousands
            number = _number(cell)
            if number is None or not (
                used := _exceeded(column, kind, number, mechanism, shuffled, settings.records)
            ):
                continue
            raise InvalidInput(
                f"{recorded.where}: {checks.one_line(column)} must not say that the run was less "
                f"private than {used}, which follows from the other columns and options, got "
                f"{number:g}: map the right column to its role; {_or_ignore(column)}"
            )


def _exceeded(
    column: str, kind: str, number: float, run: DpSgd, shuffled: bool, records: int | None
) -> str:
    """The parameter of a run that a number contradicts towards less privacy; else empty."""
    words = set(words_of(without_prefix(column)))
    if kind == "noise" and not words & OTHER_NOISES:
        names_noise = words & {"noise", "sigma", "nm", "nmult"} or "noisemult" in "".join(words)
        smaller = 0.0 <= number * _MARGIN < run.noise_multiplier
        return f"noise multiplier {run.noise_multiplier:g}" if names_noise and smaller else ""
    if kind == "rate" and (words & {"q", "tau"} or ({"rate", "prob"} & words and len(words) > 1)):
        larger = run.sampling_rate * _MARGIN < number <= 1.0
        return f"sampling rate {run.sampling_rate:g}" if larger else ""
    if kind == "epsilon" and number > _MARGIN_OF_EPSILONS * _largest_epsilon(run):
        return f"epsilon {_largest_epsilon(run):.3g} at delta {_SMALL_DELTA:g}"
    if kind in ("mu", "rho") and number > 0.0:
        mu = number if kind == "mu" else math.sqrt(2.0 * number)
        stated = GaussianMechanism(mu).renyi_epsilon(_SMALL_DELTA)
        larger = stated > _MARGIN_OF_EPSILONS * _largest_epsilon(run)
        return f"epsilon {_largest_epsilon(run):.3g} at delta {_SMALL_DELTA:g}" if larger else ""
    if kind == "batch" and words & _WHOLE_BATCHES and records is not None:
        used = run.sampling_rate * records
        # A batch size that does not divide the records is rounded by the loader.
        larger = number > used * _MARGIN + 1.0 and run.sampling_rate < 1.0
        return f"sampling rate {run.sampling_rate:g}" if larger else ""
    if kind == "length" and not words & _OTHER_LENGTHS and "per" not in words:
        # The tracker's own counter of logged rows begins with an underscore.
        if without_prefix(column).startswith("_"):
            return ""
        epochs = any("epoch" in word for word in words)
        if shuffled and not epochs:
            return ""
        steps = number / run.sampling_rate if epochs else number
        return f"{run.steps} steps" if steps > run.steps * _MARGIN + 2.0 else ""
    return ""


_SMALL_DELTA = 1e-7
_MARGIN_OF_EPSILONS = 1.2
"""Accountants that reported a larger epsilon for the run, at any delta in use, are refuted."""


@memoize(64)
def _largest_epsilon(run: DpSgd) -> float:
    """An epsilon that no accountant in use exceeds by much, with Renyi divergences."""
    return run.renyi_epsilon(_SMALL_DELTA)


def _or_ignore(column: str) -> str:
    return (
        f"if it means something else, add --columns '{typed_name(column)}={IGNORE}' (in Python, "
        "columns=)"
    )


def _is_true(value: object) -> bool:
    return str(value).strip().lower() in ("true", "1", "yes", "1.0", "on", "y", "t", "enabled")


def _number(value: object) -> float | None:
    """The number in a cell; a flag has none."""
    return None if isinstance(value, bool) else number_in(value)
