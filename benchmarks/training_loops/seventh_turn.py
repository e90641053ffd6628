"""Loops, releases and their correct counterparts, by an author who had not read the test's code.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states what leaks, or why the loop keeps its guarantee. The functions are in
`seventh_torch`, `seventh_arrays` and `seventh_mechanisms`. Scripts of this series are in the folder
`training_scripts/seventh_turn`.
"""

from functools import partial

from benchmarks.training_loops import seventh_arrays, seventh_mechanisms, seventh_torch
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.sixth_torch import sixty

SYNTHESIZER = "https://github.com/DataResponsibly/DataSynthesizer/issues/"

SEVENTH_TURN: dict[str, Control] = {
    "extra-gradient, mean of the points ahead returned": Control(
        seventh_torch.extra_gradient, sixty
    ),
    "sign of the sum, scaled to C": Control(seventh_torch.sign_of_sum, sixty),
    "gradients of earlier records of the batch not cleared, Poisson": Control(
        seventh_torch.not_cleared, sixty
    ),
    "kernel features of random records": Control(seventh_torch.landmarks_from_records, sixty),
    "features standardised by numbers kept from the first call": Control(
        seventh_torch.cached_scaling, sixty
    ),
    "classes with fewer than 20 records left out": Control(
        seventh_torch.small_classes_dropped, sixty
    ),
    "gradients clipped around the released mean, Poisson": Control(
        seventh_torch.centred_clipping, sixty
    ),
    "learning rate by the size of the drawn batch": Control(
        seventh_torch.rate_by_batch_size, sixty
    ),
    "one vector of noise cut at wrong offsets": Control(seventh_torch.overlapping_noise, sixty),
    "noisy sum scaled to its exact length": Control(seventh_torch.length_restored, sixty),
    "category encoded by its exact odds, Poisson": Control(seventh_torch.target_encoding, sixty),
    "Opacus, standard deviation of the batch as a unit": Control(
        seventh_torch.batch_deviation, sixty
    ),
    "Opacus, gradients of records centred over the batch": Control(
        seventh_torch.centred_over_batch, sixty
    ),
    "Opacus, two Poisson batches by signal_skip_step": Control(
        seventh_torch.two_poisson_batches, sixty
    ),
    "numpy, correlated noise for one of two participations": Control(
        partial(seventh_arrays.two_epochs, sensitivity=seventh_arrays.ONE_PARTICIPATION),
        sixty,
        relation="zero-out",
    ),
    "numpy, inclusion by rotated uniform numbers": Control(seventh_arrays.golden_rotation, sixty),
    "numpy, projection to singular vectors of the exact gradient": Control(
        seventh_arrays.projected_to_gradient, sixty
    ),
    "numpy, four directions, each slope clipped to C": Control(
        partial(seventh_arrays.zeroth_order, directions=4), sixty
    ),
    "numpy, stored gradients, accounted as Poisson samples": Control(
        partial(seventh_arrays.stored_gradients, accounted_rate=seventh_arrays.RATE), sixty
    ),
    "optax, clip_by_global_norm of the stacked gradients": Control(
        seventh_arrays.norm_of_batch, sixty
    ),
    "JAX, nonzero filled up with the first record": Control(
        seventh_arrays.filled_with_first, sixty
    ),
    "JAX, one key for a noisy share and the gradient": Control(
        partial(seventh_arrays.adaptive_threshold, one_key=True), sixty
    ),
    "optax, reduce_on_plateau by the loss of the records": Control(
        seventh_arrays.plateau_of_loss, sixty
    ),
    "noisy counts in the order of the exact counts": Control(
        seventh_mechanisms.by_exact_count, sixty
    ),
    "counts of a joint table, noise for frequencies": Control(
        seventh_mechanisms.conditional_tables, sixty, source=SYNTHESIZER + "34"
    ),
    "median by exact halvings, noise of the last interval": Control(
        seventh_mechanisms.search_without_noise, sixty
    ),
    "squares around a noisy mean, noise for squares below 1": Control(
        seventh_mechanisms.squares_around_noisy_mean, sixty
    ),
    "k-means, empty clusters start again at records": Control(
        seventh_mechanisms.empty_clusters_seeded_again, sixty
    ),
    "noisy counts scaled to the exact total": Control(seventh_mechanisms.scaled_to_total, sixty),
    "moving sums of three days, noise for one": Control(
        partial(seventh_mechanisms.moving_sums, sensitivity=1.0), sixty
    ),
    "counts and sums with generators of one seed": Control(
        seventh_mechanisms.one_generator_each, sixty
    ),
    "output perturbation, intercept without penalty": Control(
        seventh_mechanisms.intercept_without_penalty, sixty
    ),
}

SEVENTH_TURN_CORRECT: dict[str, Control] = {
    "records of norm 1, nothing clipped": Control(seventh_torch.bounded_without_clipping, sixty),
    "Adam without the variance of the noise": Control(seventh_torch.corrected_adam, sixty),
    "released momentum added before clipping, Poisson": Control(
        seventh_torch.momentum_before_clipping, sixty
    ),
    "records with a loss above a public limit get weight 0, Poisson": Control(
        seventh_torch.self_paced, sixty
    ),
    "layers trained in turn": Control(seventh_torch.alternating_blocks, sixty),
    "first layer trained on generated records": Control(seventh_torch.public_pretraining, sixty),
    "Opacus, tied embedding": Control(seventh_torch.tied_words, seventh_torch.sixty_tokens),
    "Opacus, two views in one backward pass": Control(seventh_torch.two_views, sixty),
    "Opacus, batches filled with rows of weight 0": Control(seventh_torch.padded_batches, sixty),
    "numpy, correlated noise for two participations": Control(
        partial(seventh_arrays.two_epochs, sensitivity=seventh_arrays.TWO_PARTICIPATIONS),
        sixty,
        relation="zero-out",
    ),
    "numpy, one direction, slopes clipped": Control(
        partial(seventh_arrays.zeroth_order, directions=1), sixty
    ),
    "numpy, stored gradients, accounted as full batches": Control(
        partial(seventh_arrays.stored_gradients, accounted_rate=1.0), sixty
    ),
    "JAX, threshold by a noisy share, two keys": Control(
        partial(seventh_arrays.adaptive_threshold, one_key=False), sixty
    ),
    "JAX, gradients in bfloat16, noise in float32": Control(seventh_arrays.half_precision, sixty),
    "output perturbation, strongly convex": Control(seventh_mechanisms.output_perturbation, sixty),
    "median by noisy halvings": Control(seventh_mechanisms.search_with_noise, sixty),
    "sum clipped around a noisy mean": Control(seventh_mechanisms.clipped_around_noisy_mean, sixty),
    "columns of unequal ranges, one Gaussian release": Control(
        seventh_mechanisms.columns_of_unequal_ranges, sixty
    ),
    "moving sums of three days, noise for three": Control(
        partial(seventh_mechanisms.moving_sums, sensitivity=3.0), sixty
    ),
}
