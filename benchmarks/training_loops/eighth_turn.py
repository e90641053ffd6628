"""Loops, releases and their correct counterparts, by an author who had not read the test's code.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states what leaks, or why the loop keeps its guarantee. The functions are in
`eighth_torch`, `eighth_arrays` and `eighth_mechanisms`. Scripts of this series are in the folder
`training_scripts/eighth_turn`.
"""

import math
from functools import partial

from benchmarks.training_loops import eighth_arrays, eighth_mechanisms, eighth_torch
from benchmarks.training_loops.arrays import NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.seventh_torch import sixty_tokens
from benchmarks.training_loops.sixth_torch import sixty

EIGHTH_TURN: dict[str, Control] = {
    "Opacus, items seed the global generator by their index": Control(
        partial(eighth_torch.seeded_items, is_global=True), sixty
    ),
    "noise of each tensor by the root of its size": Control(
        eighth_torch.noise_by_size, eighth_torch.sixty_images
    ),
    "noise of a matrix as the product of two vectors, Poisson": Control(
        eighth_torch.product_of_vectors, sixty
    ),
    "noise in units of released moments, clipping in plain units": Control(
        partial(eighth_torch.noise_in_units, clipped_in_units=False), sixty
    ),
    "noise in buffers kept by shape, Poisson": Control(eighth_torch.buffer_by_shape, sixty_tokens),
    "update undone if the loss of the records has grown, Poisson": Control(
        eighth_torch.selective_update, sixty
    ),
    "rate of the next step by the spread of the gradients": Control(
        eighth_torch.rate_by_noise_scale, sixty
    ),
    "a head for each class, the steps of one recorded": Control(
        eighth_torch.head_for_each_class, sixty
    ),
    "mean squared gradients returned for the next task": Control(
        eighth_torch.fisher_information, sixty
    ),
    "negative words by the word counts of the records, Poisson": Control(
        eighth_torch.negatives_by_frequency, sixty_tokens
    ),
    "gradient of each pair of a ranking loss clipped, Poisson": Control(
        eighth_torch.pairs_clipped, sixty
    ),
    "class means of a support half in the loss of each query": Control(
        eighth_torch.prototypes_of_support, sixty
    ),
    "shortest records first, by their rank": Control(eighth_torch.curriculum_by_rank, sixty),
    "shards filled up with the first records, Poisson": Control(
        eighth_torch.shards_filled_up, sixty
    ),
    "JAX, partial likelihood, the term of each record clipped": Control(
        eighth_arrays.cox_terms, sixty
    ),
    "numpy, coordinates in turn over their exact curvature": Control(
        partial(eighth_arrays.coordinate_descent, exact_curvature=True), sixty
    ),
    "optax, add_noise with gamma 0.55": Control(
        partial(eighth_arrays.noise_of_optax, gamma=0.55), sixty
    ),
    "JAX, ensemble in one vmap with one key": Control(
        partial(eighth_arrays.ensemble, one_key=True), sixty
    ),
    "numpy, clipped gradients weighted by their cosine with the mean": Control(
        NumpyLoop(total=eighth_arrays.weighted_by_agreement), sixty
    ),
    "numpy, zCDP claimed with the square of the rate": Control(
        NumpyLoop(account=eighth_arrays.amplified_by_square), sixty
    ),
    "numpy, Langevin dynamics, scale of the sum not counted": Control(
        partial(eighth_arrays.langevin, counted_scale=1.0), sixty
    ),
    "numpy, blocks of four neighbouring records drawn together": Control(
        NumpyLoop(batch=eighth_arrays.blocks), sixty
    ),
    "numpy, bandwidth by the median distance of the records": Control(
        eighth_arrays.median_bandwidth, sixty
    ),
    "cosine coefficients, noise for one of four": Control(
        partial(eighth_mechanisms.cosine_coefficients, sensitivity=1.0), sixty
    ),
    "naive Bayes, sums of three features with noise for one": Control(
        eighth_mechanisms.naive_bayes, sixty
    ),
    "noisy components, their number by the exact variance": Control(
        eighth_mechanisms.components_by_exact_variance, sixty
    ),
    "noisy count of the bin with the largest exact count": Control(
        eighth_mechanisms.largest_bin_by_exact_counts, sixty
    ),
    "functional mechanism without the factor of the cross terms": Control(
        partial(eighth_mechanisms.functional_mechanism, sensitivity=13.0), sixty
    ),
    "trees on bootstrap samples, each record counted once": Control(
        eighth_mechanisms.bagged_trees, sixty
    ),
    "sum of logarithms, noise for the upper limit": Control(
        partial(eighth_mechanisms.mean_of_logarithms, sensitivity=math.log(2.0)), sixty
    ),
    "noise drawn again until the count is not negative": Control(
        eighth_mechanisms.drawn_until_positive, sixty
    ),
    "noisy sum repeated if its exact error is large": Control(
        partial(eighth_mechanisms.repeated_if_inaccurate, by_exact_error=True), sixty
    ),
}

EIGHTH_TURN_CORRECT: dict[str, Control] = {
    "Opacus, items seed a generator of their own by their index": Control(
        partial(eighth_torch.seeded_items, is_global=False), sixty
    ),
    "clipping and noise in units of released moments": Control(
        partial(eighth_torch.noise_in_units, clipped_in_units=True), sixty
    ),
    "thresholds of tensors by the roots of their sizes, Poisson": Control(
        eighth_torch.thresholds_by_size, eighth_torch.sixty_images
    ),
    "adapters with a frozen random half, Poisson": Control(
        eighth_torch.adapter_with_frozen_half, sixty_tokens
    ),
    "mean and spread of released weights, warm restarts": Control(
        eighth_torch.moments_of_weights, sixty
    ),
    "averaged released weights as teacher, Poisson": Control(eighth_torch.mean_teacher, sixty),
    "two models in turn, each with the scores of the other, Poisson": Control(
        eighth_torch.two_models_in_turn, sixty
    ),
    "LAMB of released gradients": Control(eighth_torch.lamb, sixty_tokens),
    "gradients halved until they are short, Poisson": Control(
        eighth_torch.halved_until_short, sixty
    ),
    "Opacus, DPGRU": Control(eighth_torch.recurrent, sixty_tokens),
    "growing rates, divisor by the rate": Control(eighth_torch.growing_rates, sixty),
    "class weights by noisy counts, recorded": Control(eighth_torch.weights_by_noisy_counts, sixty),
    "numpy, coordinates in turn over a constant": Control(
        partial(eighth_arrays.coordinate_descent, exact_curvature=False), sixty
    ),
    "optax, add_noise with gamma 0": Control(
        partial(eighth_arrays.noise_of_optax, gamma=0.0), sixty
    ),
    "JAX, ensemble in one vmap with two keys": Control(
        partial(eighth_arrays.ensemble, one_key=False), sixty
    ),
    "numpy, Langevin dynamics, scale of the sum counted": Control(
        partial(eighth_arrays.langevin, counted_scale=eighth_arrays.SCALE), sixty
    ),
    "numpy, blocks of four, accounted as full batches": Control(
        NumpyLoop(batch=eighth_arrays.blocks, rate=1.0), sixty, relation="zero-out"
    ),
    "numpy, momentum restarted by the released gradient": Control(
        eighth_arrays.restarted_by_angle, sixty
    ),
    "cosine coefficients, noise for four": Control(
        partial(eighth_mechanisms.cosine_coefficients, sensitivity=4.0), sixty
    ),
    "functional mechanism with the factor of the cross terms": Control(
        partial(eighth_mechanisms.functional_mechanism, sensitivity=16.0), sixty
    ),
    "forest on disjoint random parts": Control(eighth_mechanisms.forest_on_disjoint_parts, sixty),
    "sum of logarithms, noise for the lower limit": Control(
        partial(eighth_mechanisms.mean_of_logarithms, sensitivity=-math.log(0.01)), sixty
    ),
    "noisy sum repeated if it is small": Control(
        partial(eighth_mechanisms.repeated_if_inaccurate, by_exact_error=False), sixty
    ),
    "histogram of the largest noisy bin": Control(eighth_mechanisms.zoomed_histogram, sixty),
    "regression in the space of noisy components": Control(
        eighth_mechanisms.regression_in_released_space, sixty
    ),
}
