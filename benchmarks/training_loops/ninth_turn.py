"""Loops, releases and their correct counterparts, by an author who had not read the test's code.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states what leaks, or why the loop keeps its guarantee. The functions are in
`ninth_torch`, `ninth_arrays` and `ninth_mechanisms`. Scripts of this series are in the folder
`training_scripts/ninth_turn`.
"""

import math
from functools import partial

from benchmarks.training_loops import ninth_arrays, ninth_mechanisms, ninth_torch
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.eighth_torch import sixty_images
from benchmarks.training_loops.seventh_torch import sixty_tokens
from benchmarks.training_loops.sixth_torch import sixty

NINTH_TURN: dict[str, Control] = {
    "instance normalisation with running statistics": Control(
        partial(ninth_torch.instance_normalisation, is_tracked=True), sixty_images
    ),
    "norm of a layer at five positions without their products": Control(
        partial(ninth_torch.ghost_norms, with_products=False), sixty_tokens
    ),
    "sequences in two parts, the step of one recorded": Control(
        partial(ninth_torch.truncated_backpropagation, recorded=1), sixty_tokens
    ),
    "soft prompt starts at the mean word of the records": Control(
        partial(ninth_torch.prompt_tuning, private=True), sixty_tokens
    ),
    "Opacus, thresholds of tensors doubled, noise unchanged": Control(
        ninth_torch.thresholds_doubled, sixty
    ),
    "centres of classes moved by embeddings, Poisson": Control(ninth_torch.centre_loss, sixty),
    "inverse propensity weights after clipping, Poisson": Control(
        ninth_torch.propensity_after_clipping, sixty
    ),
    "sum multiplied by 1 plus noise": Control(ninth_torch.multiplied_by_noise, sixty),
    "noise on the features in place of the gradients": Control(ninth_torch.noise_on_inputs, sixty),
    "mean over the labelled words of the batch, Poisson": Control(
        ninth_torch.mean_over_labelled_words, sixty_tokens
    ),
    "sum times an inverse of the exact input moments": Control(ninth_torch.kronecker_factor, sixty),
    "five records of each class in each step": Control(ninth_torch.records_of_each_class, sixty),
    "two tasks weighted by their exact gradient norms": Control(
        ninth_torch.tasks_of_equal_norm, sixty
    ),
    "clip_grad_norm_ before backward, Poisson": Control(ninth_torch.clipped_before_backward, sixty),
    "numpy, boosted stumps, later residuals not clipped": Control(
        partial(ninth_arrays.boosted_stumps, limit=math.inf), sixty
    ),
    "numpy, largest singular value taken for the norm": Control(
        partial(ninth_arrays.autoregression, order=2), sixty
    ),
    "numpy, factors of users next to private factors of items": Control(
        ninth_arrays.factors_of_users, sixty
    ),
    "numpy, Frank-Wolfe, coordinate by the exact slopes": Control(ninth_arrays.frank_wolfe, sixty),
    "numpy, step size by the exact largest eigenvalue": Control(
        ninth_arrays.rate_by_largest_eigenvalue, sixty
    ),
    "numpy, Q-learning with rates by exact visits": Control(ninth_arrays.rates_by_visits, sixty),
    "numpy, record weights over their mean in the batch": Control(
        ninth_arrays.weights_over_their_mean, sixty
    ),
    "JAX, noise of numpy in a compiled function": Control(ninth_arrays.numpy_noise_in_jit, sixty),
    "jax_privacy, means of the returned losses in the log": Control(
        ninth_arrays.returned_losses_logged, sixty
    ),
    "least squares, ones appended after clipping": Control(
        partial(ninth_mechanisms.regression_with_intercept, clipped_last=False), sixty
    ),
    "count sketch of four rows, noise for one": Control(
        partial(ninth_mechanisms.count_sketch, sensitivity=1.0), sixty
    ),
    "Laplace noise by inversion without the factor 2": Control(
        partial(ninth_mechanisms.laplace_by_inverse, factor=1.0), sixty
    ),
    "best of noisy cuts with its exact accuracy": Control(
        partial(ninth_mechanisms.best_cut, exact=True), sixty
    ),
    "noisy product over exact deviations": Control(
        partial(ninth_mechanisms.correlation, exact_deviations=True), sixty
    ),
    "copula of a noisy correlation and exact margins": Control(ninth_mechanisms.copula, sixty),
    "counts with the absolute value of noise": Control(ninth_mechanisms.absolute_noise, sixty),
    "concordant pairs, noise for one pair": Control(ninth_mechanisms.concordant_pairs, sixty),
    "noise for the centres of exact k-means": Control(ninth_mechanisms.exact_k_means, sixty),
}

NINTH_TURN_CORRECT: dict[str, Control] = {
    "instance normalisation without running statistics": Control(
        partial(ninth_torch.instance_normalisation, is_tracked=False), sixty_images
    ),
    "norm of a layer at five positions with their products": Control(
        partial(ninth_torch.ghost_norms, with_products=True), sixty_tokens
    ),
    "sequences in two parts, both steps recorded": Control(
        partial(ninth_torch.truncated_backpropagation, recorded=2), sixty_tokens
    ),
    "soft prompt starts at the mean of public words": Control(
        partial(ninth_torch.prompt_tuning, private=False), sixty_tokens
    ),
    "gradients cut to an L1 norm, one cycle, Poisson": Control(
        ninth_torch.clipped_by_l1_norm, sixty
    ),
    "gradients of records centralised before clipping, Poisson": Control(
        ninth_torch.centralised, sixty
    ),
    "critic with a gradient penalty for each pair, Poisson": Control(
        ninth_torch.critic_with_penalty, sixty
    ),
    "Opacus, losses of two tasks in one backward pass": Control(
        ninth_torch.two_tasks_in_one_pass, sixty
    ),
    "quantile regression, Lion": Control(ninth_torch.quantile_regression, sixty),
    "early stopping by public records, Poisson": Control(
        ninth_torch.stops_by_public_records, sixty
    ),
    "Opacus, frozen body, physical batches, one cycle": Control(
        ninth_torch.frozen_body_one_cycle, sixty
    ),
    "variational autoencoder, Poisson": Control(ninth_torch.variational_autoencoder, sixty),
    "numpy, boosted stumps, residuals clipped": Control(
        partial(ninth_arrays.boosted_stumps, limit=1.0), sixty
    ),
    "numpy, Frobenius norm of gradients that are matrices": Control(
        partial(ninth_arrays.autoregression, order="fro"), sixty
    ),
    "numpy, mixture by noisy moments": Control(ninth_arrays.mixture_by_noisy_moments, sixty),
    "numpy, Oja's rule": Control(ninth_arrays.oja, sixty),
    "JAX, each record adapts the weights by its own step": Control(
        ninth_arrays.adapted_by_own_step, sixty
    ),
    "optax, schedule-free SGD": Control(ninth_arrays.schedule_free, sixty),
    "least squares, ones appended before clipping": Control(
        partial(ninth_mechanisms.regression_with_intercept, clipped_last=True), sixty
    ),
    "count sketch of four rows, noise for four": Control(
        partial(ninth_mechanisms.count_sketch, sensitivity=4.0), sixty
    ),
    "Laplace noise by inversion": Control(
        partial(ninth_mechanisms.laplace_by_inverse, factor=2.0), sixty
    ),
    "best of noisy cuts with its noisy accuracy": Control(
        partial(ninth_mechanisms.best_cut, exact=False), sixty
    ),
    "correlation by three noisy moments": Control(
        partial(ninth_mechanisms.correlation, exact_deviations=False), sixty
    ),
    "k-means of a noisy histogram": Control(ninth_mechanisms.k_means_of_histogram, sixty),
    "synthetic rows of a noisy table": Control(ninth_mechanisms.rows_of_noisy_table, sixty),
}
