"""Loops, releases and their correct counterparts, by an author who had not read the test's code.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states what leaks, or why the loop keeps its guarantee. The functions are in
`tenth_torch`, `tenth_arrays` and `tenth_mechanisms`. Scripts of this series are in the folder
`training_scripts/tenth_turn`.
"""

import math
from functools import partial

from benchmarks.training_loops import tenth_arrays, tenth_mechanisms, tenth_torch
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.eighth_torch import sixty_images
from benchmarks.training_loops.seventh_torch import sixty_tokens
from benchmarks.training_loops.sixth_torch import sixty
from benchmarks.training_loops.tenth_mechanisms import sixty_texts

TENTH_TURN: dict[str, Control] = {
    "norms in the order of buckets, gradients in that of the batch": Control(
        partial(tenth_torch.norms_by_bucket, in_place=False), sixty
    ),
    "ghost clipping, second pass with dropout masks of its own": Control(
        partial(tenth_torch.two_passes, masks=2), sixty
    ),
    "adversarial inputs divided by the norm over the batch": Control(
        partial(tenth_torch.adversarial, of_batch=True), sixty
    ),
    "Opacus, time as first dimension, batch_first=True": Control(
        partial(tenth_torch.time_first, batch_first=True), sixty
    ),
    "Opacus, generator of the noise with a constant seed": Control(
        partial(tenth_torch.seeded_engine, constant=True), sixty
    ),
    "examples of clients drawn and clipped, Poisson": Control(
        partial(tenth_torch.clients, as_a_whole=False), sixty
    ),
    "gradients clipped in a public subspace, residual not, Poisson": Control(
        partial(tenth_torch.public_subspace, both=False), sixty
    ),
    "moments of the records' codes returned with the decoder": Control(
        partial(tenth_torch.codes_to_sample, private=True), sixty
    ),
    "adaptive threshold, noisy count over the exact batch size": Control(
        partial(tenth_torch.adaptive_threshold, exact_size=True), sixty
    ),
    "weights of online bagging after clipping": Control(
        partial(tenth_torch.online_bagging, before=False), sixty
    ),
    "norms estimated by four random projections, Poisson": Control(
        partial(tenth_torch.estimated_norms, projections=4), sixty
    ),
    "clipping factor clamped from below, Poisson": Control(tenth_torch.clamped_from_below, sixty),
    "gradient of the merged weight clipped, mapped to the adapter": Control(
        tenth_torch.gradient_of_merged, sixty
    ),
    "rates of layers multiply the sum before the noise": Control(
        tenth_torch.rates_of_layers, sixty
    ),
    "vectors of words of fewer than five records not changed": Control(
        tenth_torch.rare_words_unchanged, sixty_tokens
    ),
    "a random record for each empty batch, rate 0.01": Control(tenth_torch.never_empty, sixty),
    "styles of images swapped within the batch, Poisson": Control(
        tenth_torch.swapped_styles, sixty_images
    ),
    "masks of secure aggregation in place of noise": Control(tenth_torch.cancelling_masks, sixty),
    "numpy, consensus ADMM, dual variables not clipped": Control(
        partial(tenth_arrays.consensus, duals_clipped=False), sixty
    ),
    "numpy, SCAFFOLD, exact control variate of the server": Control(
        partial(tenth_arrays.control_variates, exact=True), sixty
    ),
    "numpy, zCDP converted by the logarithm to base 10": Control(
        partial(tenth_arrays.converted_claim, logarithm=math.log10), sixty
    ),
    "numpy, Newton steps by the exact Hessian, Poisson": Control(tenth_arrays.newton, sixty),
    "jax_privacy, state of the privatizer not carried": Control(
        partial(tenth_arrays.privatizer_state, carried=False), sixty
    ),
    "JAX, complex normal noise of variance 1": Control(
        partial(tenth_arrays.complex_weights, factor=1.0), sixty
    ),
    "optax, Polyak steps by the loss of the records": Control(
        partial(tenth_arrays.polyak_steps, private=True), sixty
    ),
    "number of distinct words, noise for one word": Control(
        partial(tenth_mechanisms.distinct_words, words=1), sixty_texts
    ),
    "geometric noise with success probability epsilon": Control(
        partial(tenth_mechanisms.two_sided_geometric, success=0.5), sixty
    ),
    "sums clamped in place of the values": Control(
        partial(tenth_mechanisms.sum_of_groups, values=False), sixty
    ),
    "chi-square statistic with noise for 1": Control(
        partial(tenth_mechanisms.chi_square, of_counts=False), sixty
    ),
    "output perturbation of ridge regression, targets not clipped": Control(
        partial(tenth_mechanisms.output_perturbation, targets_clipped=False), sixty
    ),
    "Laplace noise of scale epsilon over sensitivity": Control(
        tenth_mechanisms.inverted_scale, sixty
    ),
    "noisy table of the pair with the largest exact covariance": Control(
        tenth_mechanisms.most_related_pair, sixty
    ),
}

TENTH_TURN_CORRECT: dict[str, Control] = {
    "norms by buckets, stored in the places of their records": Control(
        partial(tenth_torch.norms_by_bucket, in_place=True), sixty
    ),
    "ghost clipping, the same dropout masks in both passes": Control(
        partial(tenth_torch.two_passes, masks=1), sixty
    ),
    "adversarial inputs divided by their norms": Control(
        partial(tenth_torch.adversarial, of_batch=False), sixty
    ),
    "Opacus, time as first dimension, batch_first=False": Control(
        partial(tenth_torch.time_first, batch_first=False), sixty
    ),
    "Opacus, generator of the noise seeded by the run": Control(
        partial(tenth_torch.seeded_engine, constant=False), sixty
    ),
    "clients with two examples drawn and clipped as a whole": Control(
        partial(tenth_torch.clients, as_a_whole=True), sixty
    ),
    "gradients clipped in a public subspace, and the residual, Poisson": Control(
        partial(tenth_torch.public_subspace, both=True), sixty
    ),
    "moments of codes of public rows returned with the decoder": Control(
        partial(tenth_torch.codes_to_sample, private=False), sixty
    ),
    "adaptive threshold, noisy count over the expected batch size": Control(
        partial(tenth_torch.adaptive_threshold, exact_size=False), sixty
    ),
    "weights of online bagging before clipping": Control(
        partial(tenth_torch.online_bagging, before=True), sixty
    ),
    "norms bounded by those of inputs and output gradients, Poisson": Control(
        partial(tenth_torch.estimated_norms, projections=0), sixty
    ),
    "preference optimisation of pairs, Poisson": Control(tenth_torch.preferences, sixty),
    "each record moves the weights for its own gradient (SAM)": Control(
        tenth_torch.sharpness_of_each, sixty
    ),
    "coordinates clamped to C over the root of their number": Control(
        tenth_torch.coordinates_clamped, sixty
    ),
    "gradients at released weights of two steps ago, Poisson": Control(tenth_torch.delayed, sixty),
    "numpy, consensus ADMM, sums with dual variables clipped": Control(
        partial(tenth_arrays.consensus, duals_clipped=True), sixty
    ),
    "numpy, SCAFFOLD, control variate of the server by the noisy change": Control(
        partial(tenth_arrays.control_variates, exact=False), sixty
    ),
    "numpy, zCDP converted by the natural logarithm": Control(
        partial(tenth_arrays.converted_claim, logarithm=math.log), sixty
    ),
    "jax_privacy, state of the privatizer carried": Control(
        partial(tenth_arrays.privatizer_state, carried=True), sixty
    ),
    "JAX, complex normal noise of variance 2": Control(
        partial(tenth_arrays.complex_weights, factor=math.sqrt(2.0)), sixty
    ),
    "optax, Polyak steps by the loss of public records": Control(
        partial(tenth_arrays.polyak_steps, private=False), sixty
    ),
    "number of distinct words, noise for five words": Control(
        partial(tenth_mechanisms.distinct_words, words=5), sixty_texts
    ),
    "geometric noise with success probability 1 - exp(-epsilon)": Control(
        partial(tenth_mechanisms.two_sided_geometric, success=1.0 - math.exp(-0.5)), sixty
    ),
    "values clamped, then their sums": Control(
        partial(tenth_mechanisms.sum_of_groups, values=True), sixty
    ),
    "chi-square statistic of noisy counts": Control(
        partial(tenth_mechanisms.chi_square, of_counts=True), sixty
    ),
    "output perturbation of ridge regression in a ball": Control(
        partial(tenth_mechanisms.output_perturbation, targets_clipped=True), sixty
    ),
    "class means of random Fourier features": Control(tenth_mechanisms.random_features, sixty),
}
