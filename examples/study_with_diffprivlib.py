"""A study and a check of linear regressions that diffprivlib fits with pure DP."""

import warnings

import numpy as np
from diffprivlib.models import LinearRegression
from sklearn.datasets import load_digits

import audit
from audit import tuning
from audit.accounting import PureDp

IMAGES, LABELS = load_digits(return_X_y=True)
# Public rules: the mean of some pixels of each row, and a target in [0, 1].
ROWS, TARGETS = IMAGES.reshape(-1, 8, 8)[:, :, 2:6].mean(axis=2) / 16, LABELS % 2 * 1.0
PRIVATE, PUBLIC = (ROWS[:1200], TARGETS[:1200]), (ROWS[1200:], TARGETS[1200:])
EPSILON, DELTA = 2.0, 1e-6  # public: of one run, which is (2, 0)-DP; and of the whole tuning


def fit(features, targets, columns, seed):
    """A regression on the first columns, by noisy coefficients of its polynomial."""
    warnings.simplefilter("ignore")
    random = np.random.RandomState(seed % 2**32)
    bounds = {"bounds_X": (0.0, 1.0), "bounds_y": (0.0, 1.0)}
    model = LinearRegression(epsilon=EPSILON, random_state=random, **bounds)
    model.fit(features[:, :columns], targets)
    return {"coefficients": model.coef_, "intercept": model.intercept_}


def train(trial, records):
    """One run; its score is the negative squared error on public records."""
    columns = trial.candidate["columns"]
    model = fit(*records, columns, trial.seed)
    predicted = PUBLIC[0][:, :columns] @ model["coefficients"] + model["intercept"]
    error = np.mean((predicted.clip(0.0, 1.0) - PUBLIC[1]) ** 2)  # as all targets are in [0, 1]
    return tuning.Outcome(-float(error), model)


def release(records, candidate, seed, watch):
    """The same fit for `audit.check`, with the epsilon that it must keep."""
    watch.claim(EPSILON)
    return fit(records.features, records.labels, candidate, seed)


if __name__ == "__main__":
    few = tuple(part[:20] for part in PUBLIC)
    print(audit.check(release, few, candidates=[2], relation="replace-one", trials=400))
    study = tuning.Study(
        {"columns": [1, 2, 3, 4]}, "geometric:0.2", None, DELTA, base=PureDp(EPSILON)
    )
    best = study.run(train, records=PRIVATE)
    print(f"{best.candidate}, error {-best.score:.3f}. {study.certificate.statement}")
