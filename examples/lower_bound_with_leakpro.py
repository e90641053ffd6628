"""Lower bound on epsilon from the shadow models that LeakPro trained for one record.

Needs LeakPro 0.1.0 from its repository (commit c47752f; the package of that name in the index of
packages is something else). The tests do not run this example.
"""

import numpy as np
from leakpro.attacks.utils.shadow_model_handler import ShadowModelHandler
from scipy.special import logsumexp

import audit


def bound_of_record(handler, record, label, shadow_models=400):
    """The 95 % lower bound from the logits that LeakPro keeps.

    Args:
        handler: `leakpro.handler` after `leakpro.run_audit()`.
        record: The index of the target record in the population, chosen before any score is known.
        label: The label of the record.
        shadow_models: The setting `num_shadow_models`. LeakPro trains them in pairs on
            complementary halves, so only every second model is independent of the others.
    """
    shadows = ShadowModelHandler()
    models = list(range(0, shadow_models, 2))
    trained_with_record = shadows.get_in_indices_mask(models, np.array([record]))[0]
    rows = np.concatenate([handler.train_indices, handler.test_indices])
    [row] = np.flatnonzero(rows == record)
    logits = np.stack([shadows.load_logits(indx=model)[row] for model in models])
    scores = logits[:, label] - logsumexp(np.delete(logits, label, axis=1), axis=1)
    return audit.lower_bound(
        out_scores=scores[~trained_with_record], in_scores=scores[trained_with_record], delta=1e-5
    )
