"""Loops, releases and their correct counterparts, by an author who read the user guide alone.

All of them were written, and the list was committed, before the test was run on any. The docstring
of each function states what leaks, or why the loop keeps its guarantee. The functions are in
`sixth_torch`, `sixth_arrays` and `sixth_mechanisms`. Scripts of this series are in the folder
`training_scripts/sixth_turn`.
"""

from functools import partial

import numpy as np
import optax
import torch

from benchmarks.training_loops import arrays, sixth_arrays, sixth_mechanisms, sixth_torch
from benchmarks.training_loops.arrays import NumpyLoop
from benchmarks.training_loops.correct import Control
from benchmarks.training_loops.fifth_turn import opacus_loop
from benchmarks.training_loops.loops import Loop
from benchmarks.training_loops.sixth_torch import sixty, words

SMARTNOISE = "https://github.com/opendp/smartnoise-sdk/issues/"
SMARTNOISE_CORE = "https://github.com/opendp/smartnoise-core/issues/"
DIFFPRIVLIB = "https://github.com/IBM/differential-privacy-library/issues/"

SIXTH_TURN: dict[str, Control] = {
    "signs of the records' gradients, scaled for the largest tensor": Control(
        Loop(total=sixth_torch.signs_of_records), sixty
    ),
    "two losses, the gradient of each clipped to C, Poisson": Control(
        Loop(
            gradients=partial(sixth_torch.two_losses, share=1.0),
            total=sixth_torch.plain_sum,
            sampling_rate=0.25,
        ),
        sixty,
    ),
    "labels smoothed towards private class frequencies, Poisson": Control(
        Loop(gradients=sixth_torch.smoothed_to_frequencies, sampling_rate=0.25), sixty
    ),
    "adapter starts at the singular vectors of a private gradient": Control(
        Loop(model=sixth_torch.Adapted, start=sixth_torch.start_at_gradient), sixty
    ),
    "outputs of earlier batches as negatives, Poisson": Control(
        Loop(gradients=sixth_torch.negatives_of_earlier_batches, sampling_rate=0.25), sixty
    ),
    "conflicting sums of classes projected before the noise": Control(
        Loop(total=sixth_torch.projected_conflicts), sixty
    ),
    "threshold of each class by its share of long gradients": Control(
        Loop(total=partial(sixth_torch.thresholds_by_class, public=1.5)), sixty
    ),
    "noise seeded by the number of the step plus that of the tensor": Control(
        Loop(noise=sixth_torch.seeded_by_step_plus_tensor), sixty
    ),
    "noise of the mean underflows in float16": Control(
        Loop(
            noise=sixth_torch.noise_in_half_precision,
            clip=1e-4,
            divisor=4096.0,
            optimizer=torch.optim.Adam,
        ),
        sixty,
    ),
    "gradients times the batch size before clipping, Poisson": Control(
        Loop(gradients=sixth_torch.times_batch_size, clip=20.0, divisor=150.0, sampling_rate=0.25),
        sixty,
    ),
    "noise by the first worker, unless its batch is empty": Control(
        Loop(noise=sixth_torch.noise_of_first_worker, sampling_rate=0.1, steps=8), sixty
    ),
    "indices of the batches returned": Control(
        Loop(
            after=sixth_torch.log_indices, result=sixth_torch.model_and_indices, sampling_rate=0.25
        ),
        sixty,
    ),
    "noisy warm-up step not recorded": Control(Loop(start=sixth_torch.warm_up), sixty),
    "Opacus, max_norm of an embedding": Control(
        sixth_torch.max_norm_of_rows,
        words,
    ),
    "Opacus, softmax over the records of the batch": Control(
        sixth_torch.softmax_over_records, sixty
    ),
    "Opacus, threshold falls with each physical batch": Control(
        sixth_torch.threshold_by_physical_batch, sixty
    ),
    "numpy, median of each coordinate times the batch size": Control(
        NumpyLoop(total=sixth_arrays.median_times_size), sixty
    ),
    "numpy, random projection that keeps lengths on average": Control(
        NumpyLoop(total=sixth_arrays.johnson_sketch, update=sixth_arrays.from_johnson), sixty
    ),
    "numpy, Poisson sample of one random quarter": Control(
        NumpyLoop(batch=sixth_arrays.one_shard, rate=0.2), sixty
    ),
    "numpy, Renyi divergence claimed as epsilon": Control(
        NumpyLoop(
            account=sixth_arrays.renyi_as_epsilon,
            batch=arrays.full_batch,
            rate=1.0,
            steps=sixth_arrays.FULL_STEPS,
            sigma=sixth_arrays.SIGMA,
        ),
        sixty,
    ),
    "JAX, adaptive clipping by units of the weights": Control(
        sixth_arrays.adaptive_unit_clipping, sixty
    ),
    "optax, MultiSteps around the private aggregation": Control(
        sixth_arrays.accumulated_before_aggregation, sixty
    ),
    "optax, private aggregation in each group": Control(
        partial(sixth_arrays.aggregated_in_groups, noise_multiplier=2.0), sixty
    ),
    "covariance, clipped copy not used": Control(
        sixth_mechanisms.clipped_copy_unused, sixty, source=SMARTNOISE + "622"
    ),
    "covariance, columns normalised instead of rows": Control(
        sixth_mechanisms.normalised_columns, sixty
    ),
    "mean, noise scaled by the private number of records": Control(
        sixth_mechanisms.scale_by_size, sixty, source=SMARTNOISE_CORE + "356"
    ),
    "sum, classical Gaussian formula at epsilon 20": Control(
        sixth_mechanisms.classical_gaussian, sixty
    ),
    "diffprivlib, edges of a histogram without range (black box)": Control(
        sixth_mechanisms.edges_of_records, sixty, source=DIFFPRIVLIB + "20"
    ),
    "exact counts of at least five (black box)": Control(sixth_mechanisms.counts_of_five, sixty),
    "noisy counts of values that occur, above 1 (black box)": Control(
        partial(sixth_mechanisms.released_keys, threshold=1.0), sixty
    ),
    "principal direction, noise of the covariance": Control(
        sixth_mechanisms.noise_on_direction, sixty
    ),
    "least squares, ridge by the exact smallest eigenvalue": Control(
        sixth_mechanisms.ridge_by_eigenvalue, sixty
    ),
    "median, noise by its local sensitivity": Control(sixth_mechanisms.local_sensitivity, sixty),
    "noisy means clamped to the private range": Control(sixth_mechanisms.clamped_to_range, sixty),
    # Added after the first run, because no run is clamped on the records of the control above.
    "noisy means clamped to the private range, narrow records": Control(
        sixth_mechanisms.clamped_to_range, sixth_mechanisms.narrow
    ),
}

SIXTH_TURN_CORRECT: dict[str, Control] = {
    "views of a record clipped, then averaged, Poisson": Control(
        Loop(
            gradients=sixth_torch.views_clipped_then_averaged,
            total=sixth_torch.plain_sum,
            sampling_rate=0.25,
        ),
        sixty,
    ),
    "two losses, the gradient of each clipped to C / 2, Poisson": Control(
        Loop(
            gradients=partial(sixth_torch.two_losses, share=0.5),
            total=sixth_torch.plain_sum,
            sampling_rate=0.25,
        ),
        sixty,
    ),
    "each record standardised by its own mean and scale, Poisson": Control(
        Loop(prepare=sixth_torch.standardised_by_itself, sampling_rate=0.25), sixty
    ),
    "threshold and noise by the norm of the released weights": Control(
        Loop(before=sixth_torch.threshold_by_weights), sixty
    ),
    # Said to be a mistake until the first run of the test. No reachable record has a gradient
    # below 0.5, so that each threshold is twice 0.5 whatever the records are.
    "threshold of each class, all gradients longer than 0.5": Control(
        Loop(total=sixth_torch.thresholds_by_class), sixty
    ),
    "Opacus, all rows of an embedding kept in a ball": Control(sixth_torch.all_rows_in_ball, words),
    "Opacus, threshold halved after each epoch": Control(sixth_torch.halved_threshold, sixty),
    "Opacus, loss divided by 4, groups of learning rates": Control(sixth_torch.divided_loss, sixty),
    "Opacus, Adamax with three epochs": Control(
        partial(opacus_loop, batch=15, optimizer=torch.optim.Adamax, epochs=3), sixty
    ),
    "numpy, projection with orthonormal rows": Control(
        NumpyLoop(total=sixth_arrays.orthonormal_sketch, update=sixth_arrays.from_orthonormal),
        sixty,
    ),
    "numpy, records rounded to a grid, noise for the longer records": Control(
        NumpyLoop(total=sixth_arrays.rounded_records, noise=sixth_arrays.noise_of_rounded), sixty
    ),
    "numpy, disjoint shards in turn": Control(
        sixth_arrays.shards_in_turn, sixty, relation="zero-out"
    ),
    "numpy, converted Renyi divergence claimed": Control(
        NumpyLoop(
            account=sixth_arrays.renyi_converted,
            batch=arrays.full_batch,
            rate=1.0,
            steps=sixth_arrays.FULL_STEPS,
            sigma=sixth_arrays.SIGMA,
        ),
        sixty,
    ),
    # The aggregation of optax divides by the number of records, so that these four loops are
    # correct under zero-out alone. The first run of the test was under add-remove, the default,
    # and reported the divisor.
    # Lion uses the sign of the momentum of released gradients.
    "optax, Lion after the noise": Control(
        partial(arrays.optax_loop, optimizer=optax.lion(0.02)), sixty, relation="zero-out"
    ),
    # The released gradients of two steps are averaged, which needs no records.
    "optax, MultiSteps after the noise": Control(
        partial(arrays.optax_loop, optimizer=sixth_arrays.averaged_steps),
        sixty,
        relation="zero-out",
    ),
    # The learning rate follows the distance of the released weights from their start.
    "optax, learning rate by the distance of the released weights": Control(
        partial(arrays.optax_loop, optimizer=optax.contrib.dog(0.5)), sixty, relation="zero-out"
    ),
    "optax, private aggregation in each group, noise for both": Control(
        partial(sixth_arrays.aggregated_in_groups, noise_multiplier=float(np.sqrt(8.0))),
        sixty,
        relation="zero-out",
    ),
    "sum of squares around the exact mean": Control(sixth_mechanisms.squares_around_mean, sixty),
    "mode by the exponential mechanism without 1/2 (black box)": Control(
        sixth_mechanisms.mode_by_exponential_mechanism, sixty
    ),
    "largest noisy count and its value (black box)": Control(
        sixth_mechanisms.largest_count_with_value, sixty
    ),
    "noisy counts of values that occur, above 11.8 (black box)": Control(
        partial(sixth_mechanisms.released_keys, threshold=None), sixty
    ),
    "sum of locally noisy values (black box)": Control(
        sixth_mechanisms.local_noise, sixty, relation="replace-one"
    ),
}
