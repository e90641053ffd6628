"""Every kind of finding: its test, premise, rank, observation, likely cause and fix.

A new kind of finding is one entry of `KINDS`, and a test that returns a `TestResult` of its name,
or that calls `audit.loop.premises.verdicts.explain`.
"""

from dataclasses import dataclass

FIRST, USUAL, CONSEQUENCE, LAST = 0, 1, 2, 3
"""Ranks of findings in a report."""

OTHERS_CHANGE = "The record changes what other records contribute"
ALL_STEPS = (
    "Something that is computed from more records than the batch enters each step without noise: "
    "a statistic, a label, a weight, a norm, the seed of the noise, or gradients of an earlier "
    "batch (momentum, a stale sum, a replay). Otherwise, the record is drawn too often."
)
CARRIED = (
    "A record stays after its batch: a queue, a memory bank, a replay buffer, or momentum of "
    "gradients without noise carries it into the steps that follow."
)
_DRAWN_TOO_OFTEN = (
    "The accounted rate is too small, or whether a record is drawn depends on the records (weights "
    "by class, a last batch that is filled up, empty batches that are drawn again, a hash of the "
    "record)"
)
_INDEPENDENT = "; the accountant assumes independent noise."
_POISSON = (
    "Draw every record independently with the accounted rate (Poisson sampling, "
    "UniformWithReplacementSampler or make_private(poisson_sampling=True)), or account for "
    "full batches."
)
_NEW_NOISE = "Draw new noise in every step."
_OTHER_TERM = (
    " Or p.grad holds another random term, computed without the records: declare it by "
    "watch.release."
)
_NOT_GAUSSIAN = (
    "It is drawn from another distribution (uniform, Laplace), rounded, truncated, or its scale "
    f"varies.{_OTHER_TERM}",
    "Draw Gaussian noise, or use an accountant for the distribution that is drawn.",
)


# Kinds that another distribution or scale of the noise causes, and kinds of dependent noise.
_SHAPE = ("scale by batch", "scale of runs", "distribution", "distance", "tails")
_RESIDUALS = (
    "rank",
    "steps",
    "coordinates",
    "repeated",
    "tensors",
    "shared noise",
    "grain",
    "flat",
    "length",
)


@dataclass(frozen=True)
class FindingKind:
    """One kind of finding.

    Attributes:
        name: its name.
        premise: the broken premise, one of `audit.loop.findings.PREMISES`.
        observation: the message, formatted with the finding's numbers.
        cause: likely causes.
        fix: a way to correct it.
        test: the function that makes the test, in `audit.loop.premises`.
        rank: place in a report.
        explains: names of other kinds, which are left out if this one is found.
    """

    name: str
    premise: str
    observation: str
    cause: str
    fix: str
    test: str
    rank: int = USUAL
    explains: tuple[str, ...] = ()


_ALL = (
    FindingKind(
        "size",
        "noise",
        "The noise is too small for the contribution of one record.",
        "",
        "",
        test="size_of_noise.compare_size",
    ),
    FindingKind(
        "not finite",
        "contribution",
        "{records} of {of} records that were exchanged{smallest} make a released gradient infinite "
        "or not a number, and the others do not. This reveals that such a record is in the data.",
        "The gradient of a record overflows: clipping multiplies an infinite gradient by 0, which "
        "is not a number.",
        "Set gradients that are not finite to zero, record by record, before the sum "
        "(torch.nan_to_num), or limit the features to a public range first.",
        test="canary_runs.run_canaries",
    ),
    FindingKind(
        "influence",
        "contribution",
        "One record changes {hits} of {tries} steps ({share in %:.3g} %), by different amounts "
        "for different seeds; the accountant assumes that it is in {rate in %:.3g} % of the "
        "batches and changes no other step.",
        f"{_DRAWN_TOO_OFTEN}, or something that is computed from more records than the batch "
        "enters steps without noise: a statistic, a label, a weight, a norm, or gradients of an "
        "earlier batch (momentum, a stale sum, a replay).",
        "Compute every step from its own batch and from released numbers only, and draw every "
        "record independently with the accounted rate.",
        test="canary_runs.compare_steps_without_the_record",
        rank=FIRST,
        explains=(
            "size of the batch",
            "mean of batches",
            "fixed batches",
            "limited batches",
            "gaps in batches",
            "batches without the seed",
            "uneven batches",
            "repeated batches",
            "no empty batch",
            "inclusion rate",
            "used records",
            "inclusion without the seed",
            "inclusions of a run",
            "even inclusions",
            "inclusions by lag",
            "batch",
            "coordinates",
            "repeated",
            "tensors",
            "shared noise",
            "rank",
            "flat",
        ),
    ),
    # --- noise ---
    FindingKind(
        "no noise",
        "noise",
        "No step releases noise that depends on the seed: {runs} runs with other seeds release "
        "the same gradients.",
        "No noise is added, it is overwritten (by a closure or a backward pass after it), or it is "
        "drawn from a generator with a constant seed.",
        "Draw new noise in every step from a generator that the seed of the run controls.",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "tensors without noise",
        "noise",
        "{names} no noise.",
        "A loop over parameters skips them, or their noise has a constant seed.",
        "Add noise to every tensor that the optimizer updates.",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "coordinates without noise",
        "noise",
        "{coordinates} of {of} coordinates receive no noise (in {names}), although they depend on "
        "the records.",
        "The noise holds fewer numbers than the gradient and is padded, or a mask removes it.",
        "Draw noise of the shape of the tensor (torch.randn_like).",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "noise lost",
        "noise",
        "Step {step}: the released gradient has no noise if one record is in the data, and has "
        "noise if another record takes its place.",
        "A step is skipped, or its noise left out, by a criterion on the records: an overflow of "
        "scaled gradients, an empty batch, a gradient that is not finite.",
        "Release noise in every step, and decide by released numbers only.",
        test="canary_runs.run_canaries",
    ),
    FindingKind(
        "noise by coordinate",
        "noise",
        "Which of {coordinates} coordinates of {names} receive noise depends on the records.",
        "Noise is added only where the gradient is not zero, as in sparse updates of an embedding.",
        "Add noise to every coordinate, also where no record of the batch has a gradient.",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "steps without noise",
        "noise",
        "{steps} of {of} steps release gradients without noise (steps {shown}).",
        "Noise is added every few steps only, or a schedule sets it to zero.",
        "Add noise before every step of the optimizer.",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "direction",
        "noise",
        "Along the update, or along what one record adds to it, the noise has {ratio:.3g} times "
        "the standard deviation that it has elsewhere.",
        "The noise is made orthogonal to the gradients, or it is multiplied by a matrix that is "
        "computed from them.",
        "Add independent noise of the same scale to every coordinate.",
        test="noise.noise_along",
        explains=(
            "size",
            "scale",
            "rank",
            "flat",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "rank",
        "noise",
        "The coordinates of the noise are dependent: the noise of other runs is {ratio:.3g} times "
        "as large along the noise of some runs as independent noise is.",
        "Fewer numbers are drawn than there are coordinates (a random projection, a symmetric "
        f"matrix), or coordinates have noise of different scales.{_OTHER_TERM}",
        "Draw an independent number for every coordinate.",
        test="noise.rank_of_noise",
        explains=(
            "flat",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "flat",
        "noise",
        "A combination of coordinates has {ratio:.3g} times the noise that each coordinate has.",
        "The noise is made to sum to zero, its mean is subtracted, or it is projected.",
        "Add independent noise of the same scale to every coordinate, and do not change "
        "it afterwards.",
        test="noise.flat_noise",
    ),
    FindingKind(
        "length",
        "noise",
        "The noise has nearly the same length in every run: its length varies with {ratio:.3g} "
        "times the variance that Gaussian noise has.",
        "The noise is scaled to a constant length.",
        "Add independent Gaussian noise to every coordinate, and do not normalize it.",
        test="noise.length_of_noise",
    ),
    FindingKind(
        "runs",
        "noise",
        "Two runs with different seeds have nearly the same noise: they differ by {share:.3g} "
        "times as much as runs with independent noise.",
        "The generator has one of few seeds (a seed modulo a small number), or the noise comes "
        "from a short list.",
        "Seed the generator of the noise with many random bits.",
        test="noise.noise_again",
        explains=(
            "size",
            "scale",
            *_RESIDUALS,
        ),
    ),
    FindingKind(
        "steps",
        "noise",
        "The noise of a step and that of {lag} step(s) later have correlation {correlation:.3g}"
        + _INDEPENDENT,
        "The generator is seeded again in every step, noise is drawn once and reused, or earlier "
        "noise is subtracted or added again (momentum of noisy gradients is private, but belongs "
        f"into the optimizer, not into p.grad).{_OTHER_TERM}",
        _NEW_NOISE,
        test="noise.independence",
        explains=(
            "rank",
            "flat",
            "coordinates",
            "repeated",
            "tensors",
            "shared noise",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "batch",
        "noise",
        "A coordinate of the noise and whether a record is in the batch have correlation "
        "{correlation:.3g}: the noise reveals the batch.",
        "The batch and the noise are drawn with the same key or seed, or the state of the "
        "generator is restored after the noise (fork_rng), so that the next batch is drawn from "
        "its numbers.",
        "Split the key, or draw both one after the other from one generator.",
        test="noise.batches_in_noise",
    ),
    FindingKind(
        "seed of another generator",
        "noise",
        "The generator of the {drawn} has the seed of another one, and both were drawn from, so "
        "that they draw the same numbers; the accountant assumes that noise and batches are "
        "independent of everything else.",
        "The same seed is given to torch.manual_seed, from which the initial weights are drawn, "
        "and to the generator of the noise or of the batches.",
        "Seed the generator by torch.Generator().manual_seed(int(torch.randint(2**62, ()))), or "
        "draw everything from one generator.",
        test="accountant.compare_seeds",
        explains=("batch",),
    ),
    FindingKind(
        "numbers of the weights",
        "noise",
        "The noise of step {step} and the initial weights that a run draws, {lag} places apart, "
        "have correlation {correlation:.3g}" + _INDEPENDENT,
        "The key or the seed of the initial weights serves for the noise as well.",
        "Split the key, or draw both one after the other from one generator.",
        test="noise.noise_from_weights",
    ),
    FindingKind(
        "same noise",
        "noise",
        "The noise of `{first}` and that of `{second}` have correlation {correlation:.3g}: a "
        "multiple of the second one subtracts all noise from the first, and one record changes "
        "the difference.",
        "One key, or two generators with one seed, draw both.",
        "Split the key for each released number, or draw all noise from one generator.",
        test="shared_noise.shared_noise",
        explains=("tensors",),
    ),
    FindingKind(
        "shared noise",
        "noise",
        "The {of} of the noise of a step and that of another step of the same run have correlation "
        "{correlation:.3g}" + _INDEPENDENT,
        "The steps share a draw: the same numbers in another order, slices of a small pool, or a "
        "common scale.",
        _NEW_NOISE,
        test="noise.independence",
        explains=(*_SHAPE,),
    ),
    FindingKind(
        "repeated",
        "noise",
        "In `{tensor}`, the noise of a number and that of the number {lag} places later have "
        "correlation {correlation:.3g}" + _INDEPENDENT,
        "The same draw fills several places, or every row.",
        "Draw new noise for every number.",
        test="noise.independence",
        explains=(
            "rank",
            "flat",
            "tensors",
            "shared noise",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "tensors",
        "noise",
        "The noise of `{first}` and that of `{second}`{when} have correlation {correlation:.3g}"
        + _INDEPENDENT,
        "The generator is seeded again for every tensor, seeds of steps and tensors overlap, or "
        "one draw serves several tensors.",
        "Draw new noise for every tensor and step, from one generator.",
        test="noise.independence",
        explains=(
            "rank",
            "flat",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "coordinates",
        "noise",
        "Neighbouring coordinates of `{tensor}` (axis {axis}) have noise of correlation "
        "{correlation:.3g}" + _INDEPENDENT,
        f"One number, or one row, is drawn and broadcast over the tensor.{_OTHER_TERM}",
        "Draw noise of the shape of the tensor (torch.randn_like).",
        test="noise.independence",
        explains=(
            "rank",
            "flat",
            "repeated",
            "tensors",
            "shared noise",
            *_SHAPE,
        ),
    ),
    FindingKind(
        "scale of runs",
        "noise",
        "Step {step}: the standard deviation of the noise differs between runs, from {least:.3g} "
        "to {most:.3g}.",
        "The noise is scaled by something random: the size of the batch, or a norm.",
        "Scale the noise by constants alone.",
        test="noise.shape_of_noise",
        explains=(
            "distribution",
            "distance",
            "tails",
        ),
    ),
    FindingKind(
        "scale by batch",
        "noise",
        "The size of the noise and that of the batch have correlation {correlation:.3g}; the "
        "accountant assumes noise of one scale.",
        "The noise is scaled by the size of the batch, or by its root.",
        "Scale the noise by constants alone.",
        test="noise.scale_by_batch",
        explains=(
            "scale of runs",
            "distribution",
            "distance",
            "tails",
        ),
    ),
    FindingKind(
        "tails",
        "noise",
        "The noise is not Gaussian: {seen} of {numbers:,} values are more than {limit:g} standard "
        "deviations from the mean, where {expected:.3g} are expected.",
        *_NOT_GAUSSIAN,
        test="noise.shape_of_noise",
    ),
    FindingKind(
        "distance",
        "noise",
        "The noise is not Gaussian: its distribution function is up to {distance:.3g} from the "
        "Gaussian's.",
        *_NOT_GAUSSIAN,
        test="noise.shape_of_noise",
        explains=("tails",),
    ),
    FindingKind(
        "grain",
        "noise",
        "Noise of different runs is equal to the last digit in {seen} of {pairs:,} pairs: some of "
        "its values recur, so that the sum of the gradients remains visible.",
        "It is drawn in half precision (float16, bfloat16), rounded, or cut off at a largest size "
        "(clamp), and added to a sum of higher precision.",
        "Draw the noise in the precision of the gradients and do not cut it off, or round the sum "
        "in the same way before the noise is added.",
        test="noise.grain_of_noise",
        explains=(
            "distribution",
            "distance",
            "tails",
        ),
    ),
    FindingKind(
        "distribution",
        "noise",
        "The noise is not Gaussian: its excess kurtosis is {kurtosis:.3g} (0 for Gaussian noise).",
        *_NOT_GAUSSIAN,
        test="noise.shape_of_noise",
        explains=(
            "distance",
            "tails",
        ),
    ),
    FindingKind(
        "scale",
        "noise",
        "The noise in {where} has standard deviation {in thresholds:.3g} C (of the sum of "
        "gradients); the accountant assumes {accounted noise multiplier:.3g} C.",
        "add_noise scales it differently, or the accountant uses another noise multiplier.",
        "Let the optimizer's noise_multiplier and the accountant's be the same number.",
        test="size_of_noise.compare_size",
    ),
    # --- batches ---
    FindingKind(
        "divided by the batch",
        "contribution",
        "The contribution of one record differs by a factor of {factor:.3g} between runs of the "
        "same step with equal earlier outputs; the accountant assumes that only noise and the "
        "choice of the batch are random.",
        "The noisy sum, or each gradient before it is clipped (loss_reduction), is divided by the "
        "size of the batch that was drawn; the mean gradient of the batch is used without clipping "
        "(with ghost clipping: the loss is not the criterion that make_private returns); or a "
        "record is in a batch several times.",
        "Divide by a constant, the expected batch size, clip the gradient of every record, and "
        "draw every record at most once.",
        test="equal_records.run_equal_records",
    ),
    FindingKind(
        "others",
        "contribution",
        "One record changes what other records contribute to a step, with equal random numbers; "
        "the noise is for the gradient of one record.",
        "A number that is computed from the batch enters the gradients of its records, or their "
        "threshold: a mean, a weight of a class, a loss, a norm, the length of the longest text. "
        "(Opacus' gradients of nn.Embedding ignore padding_idx, so that padding contributes.)",
        "Compute the loss of each record from this record and released numbers alone, multiply "
        "embeddings by the mask of the padding, and keep the clipping threshold constant.",
        test="check_premises.check_premises",
    ),
    FindingKind(
        "use of others",
        "contribution",
        "Whether a record is used depends on another record: an exchange of its label changes a "
        "step in {used} of {runs} runs, and after another record was exchanged in {less}. So one "
        "record changes what two records contribute.",
        "Records are left out by a rule on all of them: a distance from the mean, a quantile, or a "
        "search for duplicates.",
        "Leave records out by a rule on each of them alone, with public limits, or from a "
        "data set that is public.",
        test="numbers_of_steps.compare_use_of_others",
    ),
    FindingKind(
        "size of the batch",
        "contribution",
        "The contribution of one record depends on how many records are in its batch (rank "
        "correlation {correlation:.3g}); the accountant assumes that it does not.",
        "The gradient of each record is divided or multiplied by the size of the batch before "
        "it is clipped: the loss and the wrapper disagree about loss_reduction (a mean loss, and "
        'loss_reduction="sum", or the other way round).',
        "Use the same reduction in the loss and in Opacus, and divide the noisy sum by a constant.",
        test="batches.dependence_on_size",
        explains=("another batch size",),
    ),
    FindingKind(
        "another batch size",
        "contribution",
        "The contribution of one record depends on how many records are in its batch: it is the "
        "same in all batches of one size, and its length goes from {least:.4g} to {most:.4g} "
        "between sizes; the accountant assumes that it does not.",
        "The gradient of each record is divided by the size of the batch before it is clipped (the "
        "loss is a mean over the batch), so that one record more changes what the others add.",
        "Clip the gradient of each record's own loss, not of a mean over the batch.",
        test="batches.dependence_on_size",
    ),
    FindingKind(
        "one more record",
        "contribution",
        "One more record in a batch changes a step by {ratio:.3g} times what the noise allows for, "
        "although an exchange of records does not.",
        "An amount that is the same for every record is added to the sum without noise, after the "
        "gradients are clipped (weight decay, the gradient of a penalty).",
        "Add such terms to the noisy gradient, scaled by a constant, or to each record's gradient "
        "before it is clipped.",
        test="noise.one_more_record",
    ),
    FindingKind(
        "mean of batches",
        "batches",
        "A step holds contributions of {mean:.4g} records on average; the accountant's sampling "
        "rate {rate:.3g} with n = {n} implies {expected:.4g}.",
        "The rate was computed from another number of records or another batch size, batches are "
        "accumulated, or empty batches are drawn again.",
        _POISSON,
        test="batches.poisson_tests",
        explains=("used records",),
    ),
    FindingKind(
        "fixed batches",
        "batches",
        "The number of records that contribute to a step ({least:.4g} to {most:.4g} in {batches} "
        "steps) varies less than Poisson sampling at the accounted rate {rate:.3g} makes it vary.",
        "Batches of a fixed or a largest size (shuffled, in order, or cut) are accounted for as "
        "Poisson sampled, or a layer takes a limited number of records (an expert's capacity).",
        _POISSON,
        test="batches.poisson_tests",
        explains=(
            "gaps in batches",
            "no empty batch",
            "inclusions of a run",
            "even inclusions",
            "inclusions by lag",
            "mean of batches",
            "used records",
            "limited batches",
        ),
    ),
    FindingKind(
        "limited batches",
        "batches",
        "At most {most:.4g} records contribute to each of {batches} steps; Poisson sampling of "
        "n = {n} records at rate {rate:.3g} draws more.",
        "Batches are cut at a largest size, they hold a fixed number of records, or a layer takes "
        "a limited number of them (the capacity of an expert).",
        _POISSON,
        test="batches.poisson_tests",
    ),
    FindingKind(
        "gaps in batches",
        "batches",
        "{seen} of {batches} batches hold {size} records, but {less} hold {smaller} and {more} "
        "hold {larger}: the sizes of Poisson samples have a single peak.",
        "Batches are cut to whole microbatches, or filled up to them, so that one record decides "
        "whether others are used.",
        "Keep incomplete microbatches, and fill them up with records that contribute nothing.",
        test="batches.poisson_tests",
        explains=(
            "limited batches",
            "no empty batch",
        ),
    ),
    FindingKind(
        "batches without the seed",
        "batches",
        "The batch sizes of a step are the same for every seed ({batches} in all).",
        "Batches have fixed sizes (shuffled records are split, and the last batch is smaller), or "
        "the sampler has a constant seed, so that an observer knows the batches.",
        _POISSON,
        test="batches.poisson_tests",
        explains=(
            "gaps in batches",
            "limited batches",
            "no empty batch",
        ),
    ),
    FindingKind(
        "uneven batches",
        "batches",
        "The batch sizes vary {dispersion:.3g} times more than those of Poisson sampling at the "
        "accounted rate {rate:.3g} would.",
        "Records are drawn in blocks, not independently.",
        _POISSON,
        test="batches.poisson_tests",
        explains=(
            "batch",
            "mean of batches",
            "no empty batch",
            "gaps in batches",
        ),
    ),
    FindingKind(
        "repeated batches",
        "batches",
        "The batch sizes of neighbouring steps have correlation {correlation:.3g}; the accountant "
        "assumes independent batches.",
        "The sampler is seeded again in every step, or records of a batch are used in several "
        "steps.",
        _POISSON,
        test="batches.poisson_tests",
        explains=("inclusions by lag",),
    ),
    FindingKind(
        "no empty batch",
        "batches",
        "None of {batches} batches of n = {n} records is empty; Poisson sampling at rate "
        "{rate:.3g} leaves many of them empty.",
        "Empty batches are drawn again, skipped or filled up.",
        "Keep empty batches: release noise alone at such steps.",
        test="batches.poisson_tests",
        explains=(
            "mean of batches",
            "inclusion rate",
            "used records",
        ),
    ),
    FindingKind(
        "inclusion rate",
        "batches",
        "One record changes {hits} of {tries} steps ({share in %:.3g} %); the accountant assumes "
        "that it is in {rate in %:.3g} % of the batches.",
        f"{_DRAWN_TOO_OFTEN}.",
        _POISSON,
        test="batches.poisson_tests",
        explains=("batch",),
    ),
    FindingKind(
        "used records",
        "batches",
        "Records that are drawn at all are in {share in %:.3g} % of the batches ({hits} of "
        "{tries}); the accountant assumes {rate in %:.3g} %.",
        "The rate is too small. Batches are drawn from a part of the records (the training part of "
        "a split), and the rate was computed from all of them, or from a larger number.",
        "Compute the sampling rate from the number of records that batches are drawn from.",
        test="inclusions.judge_used_records",
        explains=("inclusion rate",),
    ),
    FindingKind(
        "inclusion without the seed",
        "batches",
        "The record changes the same steps for every seed; the accountant assumes that no one "
        "knows its batches.",
        "Batches are taken in order, the record is in every batch, or the sampler has a constant "
        "seed.",
        _POISSON,
        test="batches.poisson_tests",
        explains=(
            "inclusion rate",
            "used records",
            "even inclusions",
            "inclusions by lag",
        ),
    ),
    FindingKind(
        "inclusions of a run",
        "batches",
        "The record was in exactly {per run} of {steps} batches in each of {runs} runs.",
        "Batches are a shuffled partition of the records, accounted for as Poisson sampled.",
        _POISSON,
        test="batches.poisson_tests",
        explains=("even inclusions", "inclusions by lag"),
    ),
    FindingKind(
        "even inclusions",
        "batches",
        "The record changes {least} to {most} of the {steps} steps of a run: this number varies "
        "{ratio:.3g} times as much as for Poisson sampling.",
        "Batches are taken from shuffled records, so that a record is not drawn twice within a "
        "short time.",
        _POISSON,
        test="batches.even_inclusions",
        explains=("inclusions by lag",),
    ),
    FindingKind(
        "inclusions by lag",
        "batches",
        "The batches of two steps, {lag} apart, share a record {ratio:.3g} times as often as those "
        "of other steps ({hits} times); the accountant assumes that all batches are drawn "
        "independently.",
        "Batches come in a cycle, groups of records take turns, or records that were drawn are "
        "left out for some steps.",
        _POISSON,
        test="batches.inclusions_by_lag",
        explains=("used records",),
    ),
    # --- accountant, released numbers, number of records ---
    FindingKind(
        "too few steps",
        "accountant",
        "The accountant recorded {recorded} steps; the optimizer took {steps}.",
        "The accountant is stepped per epoch or per virtual batch, is not attached to this "
        "optimizer, or steps were added after it was set.",
        "Attach it: optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(rate)), or call "
        "accountant.step at every step of the optimizer.",
        test="accountant.compare_accountant",
    ),
    FindingKind(
        "noise multiplier",
        "accountant",
        "Step {step}: the accountant recorded noise multiplier {recorded:.4g}; the optimizer's is "
        "{optimizer:.4g}.",
        "The optimizer's noise was changed, or the accountant recorded another number.",
        "Record the noise multiplier that the optimizer uses.",
        test="accountant.compare_accountant",
    ),
    FindingKind(
        "claim",
        "accountant",
        "The function claims epsilon {claim:.4g} at delta {delta:g}; its noise, contributions and "
        "steps imply at least {implied:.4g}.",
        "The claim was computed for other parameters: noise, steps, rate or threshold.",
        "Compute the claim from the noise multiplier, the sampling rate and the steps of this run.",
        test="size_of_noise.compare_size",
        rank=CONSEQUENCE,
    ),
    FindingKind(
        "claim below the accountant",
        "accountant",
        "The claim is epsilon {claim:.4g} at delta {delta:g}; the {steps} steps that the "
        "accountant recorded cost {cost:.4g}.",
        "The noise was calibrated for fewer steps, another sampling rate or another delta than "
        "this training has.",
        "Calibrate the noise for the steps and the rate of this training, or claim what its "
        "accountant reports at this delta.",
        test="accountant.compare_claim_with_accountant",
    ),
    FindingKind(
        "weights",
        "released numbers",
        "The weights before step {step} depend on the record although every released gradient was "
        "the same. Contributions to later steps are not compared.",
        "",
        "Change the weights, the optimizer's state and its settings by released numbers only.",
        test="canary_runs.compare_weights",
    ),
    FindingKind(
        "first weights",
        "released numbers",
        "The weights before the first step depend on the record, although nothing has been "
        "released yet.",
        "A forward pass on records sets weights or buffers (ActNorm or another initialisation that "
        "depends on the data, a normalisation of the weights).",
        "Initialize on public records, or account for values computed from the private ones.",
        test="canary_runs.compare_weights",
    ),
    FindingKind(
        "initial weights",
        "released numbers",
        "The initial weights, or the initial state of the optimizer, depend on the record.",
        "They were computed from the records (label frequencies, a mean, an earlier training "
        "without noise).",
        "Initialize without the private records, or account for values computed from them.",
        test="canary_runs.compare_weights",
    ),
    FindingKind(
        "step setting",
        "released numbers",
        "The {name} of step {step} depends on the record: {one:.4g} with one record, {other:.4g} "
        "with another, although every released gradient was the same.",
        "It follows a loss, a norm of gradients or another statistic of the records that has no "
        "noise. The scale of the noise then reveals it.",
        "Compute it from released numbers only, or add noise, account for it, and declare it by "
        "watch.release.",
        test="canary_runs.compare_thresholds",
    ),
    FindingKind(
        "number of steps",
        "released numbers",
        "The number of steps depends on the record: {one} with one record in this place, {other} "
        "with another, although every released gradient was the same.",
        "Training stops, or a step is skipped, by a criterion on the records: the training loss, "
        "an empty batch, or an overflow of scaled gradients.",
        "Fix the number of steps beforehand, or decide by released numbers only.",
        test="numbers_of_steps.compare_numbers_of_steps",
    ),
    FindingKind(
        "random number of steps",
        "released numbers",
        "The random number of steps has another distribution for {less} records than for {n} "
        "(means {mean of few:.3g} and {mean:.3g}), although every released gradient was the same.",
        "Empty batches, or batches below a size, are skipped, so that the number of steps reveals "
        "their number.",
        "Release noise in every step, also for an empty batch.",
        test="numbers_of_steps.compare_random_numbers_of_steps",
    ),
    FindingKind(
        "released",
        "released numbers",
        "{names} on the record, but {it} not part of the accounted output.",
        "It is computed from the records without noise: a loss or an accuracy on the training "
        "records, a statistic, an early stop, or weights that something else changed.",
        "Do not release it, compute it on public records, or add noise and account for it.",
        test="check_premises.check_premises",
    ),
    FindingKind(
        "order of keys",
        "released numbers",
        "The keys of declared value {value} are {order} for all of {seeds} seeds, and {other} "
        "after one record is exchanged: their order has no noise.",
        "The keys are in the order of exact counts (as in `Counter.most_common`), of exact sums, "
        "or of the records.",
        "Add the keys in a public order, or sort them by the noisy values.",
        test="orders_of_keys.compare_orders",
    ),
    FindingKind(
        "saved",
        "released numbers",
        "{file} holds the weights and {names}, which {depend} on the record although every "
        "released gradient was the same.",
        "Numbers that are computed from the records without noise are saved with the weights (a "
        "mean, a loss on the training records, `grad_sample` of a pickled module), or the saved "
        "weights are those of an epoch, or of one of several runs, that was chosen by private "
        "records.",
        "Save them in another file that is not released, choose by public records, or add noise "
        "and account for it. (What the choice among runs costs: `dp-tuning-audit bounds`.)",
        test="forced_releases.compare_saved",
    ),
    FindingKind(
        "saved model",
        "released numbers",
        "{file} holds a model that is made from the released one, and {names} in it {depend} on "
        "the record although every released gradient was the same.",
        "The private records are used again without noise after the private training: a student "
        "learns the outputs of the private model on them, or a layer, a calibration or a pruning "
        "is fitted to them.",
        "Fit such a model to public or generated inputs, or train it with noise that is accounted "
        "for.",
        test="forced_releases.compare_saved",
    ),
    FindingKind(
        "saved files",
        "released numbers",
        "Whether {file} is written depends on the record, although every released gradient was the "
        "same.",
        "The weights are saved whenever a loss or an accuracy on private records improves.",
        "Save the weights at steps that are fixed beforehand, or decide by public records.",
        test="forced_releases.compare_saved",
    ),
    FindingKind(
        "generator state",
        "released numbers",
        "{names} the state of the random generator that the steps draw from.",
        "A checkpoint stores the generator, to continue the training. Its earlier numbers can be "
        "computed from its state, so that the noise can be subtracted.",
        "Keep the states of generators out of everything that is released.",
        test="check_premises.check_premises",
    ),
    FindingKind(
        "random released number",
        "released numbers",
        "`{name}` has another distribution for {less} records than for {n}, although every "
        "released gradient was the same.",
        "It is computed from the records without noise: the sizes of the batches, a count, or a "
        "statistic of a random part.",
        "Do not release it, or add noise and account for it.",
        test="check_premises.check_premises",
    ),
    FindingKind(
        "constant",
        "released numbers",
        "{names} the same for {seeds} seeds, and different if one record is exchanged: no noise "
        "protects the record.",
        "It is computed from the records without noise, or its noise has a constant seed.",
        "Do not release it, or add noise that the seed controls and account for it.",
        test="black_box.compare_released_numbers",
    ),
    FindingKind(
        "inferred classes",
        "released numbers",
        "The shape of {names} depends on one record, which may be the only one of its class.",
        "The classes, categories, tokens or bounds are inferred from the private records.",
        "Pass them as public constants.",
        test="check_premises.check_premises",
    ),
    FindingKind(
        "scaled by n",
        "number of records",
        "For every seed, {names} changes by a power of {n}/{less} when a record of zeros is "
        "removed. Under add-remove neighbours the scale of its noise reveals the number of "
        "records.",
        "The released number, noise included, is divided by the number of records.",
        'State the zero-out relation, under which n is public (relation="zero-out"), divide by a '
        "public constant, or spend part of the budget on a noisy count.",
        test="black_box.compare_released_numbers",
        rank=LAST,
    ),
    FindingKind(
        "depends on n",
        "number of records",
        "{what}. Under add-remove neighbours the release reveals the number of records.",
        "The normaliser, the sampling rate or the number of steps is computed from the number of "
        "records (make_private uses 1 / len(loader) and int(n * rate)).",
        'State the zero-out relation, under which n is public (relation="zero-out"), or set the '
        "normaliser, the rate and the steps from outside: optimizer.expected_batch_size and "
        "sample_rate as public constants.",
        test="number_of_records.compare_numbers_of_records",
        rank=LAST,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}

EXPLAINED_BY_RANDOM_GRADIENTS = _RESIDUALS
"""Kinds that random gradients cause, which are then taken for noise, if they are too large."""
