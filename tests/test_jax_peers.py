"""The clipped sums of the benchmark's forms of DP-SGD in JAX against the engine's."""

import numpy as np
import pytest
import torch

from audit.dpsgd import models
from audit.dpsgd.gradients import ClippedSums, stacked
from benchmarks import jax_peers

pytest.importorskip("jax_privacy", reason="JAX or jax_privacy is not installed")

# jax_privacy uses a function of optax that is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:optax.global_norm is deprecated")

RECORDS = 6


@pytest.mark.parametrize("peer", jax_peers.PEERS)
@pytest.mark.parametrize("name", ["mlp", "convnet"])
@pytest.mark.parametrize("batch", [RECORDS, 2])
def test_clipped_sums_match_the_engine(peer: str, name: str, batch: int) -> None:
    import jax.numpy as jnp

    shape = (2, 12, 12)
    model = models.make_model(name, 0, shape, 5, torch.float32)
    generator = torch.Generator().manual_seed(0)
    # Some gradients are clipped to norm 1, others are not.
    x = (
        torch.randn(RECORDS, *shape, generator=generator)
        * torch.logspace(-3, 0.5, RECORDS)[:, None, None, None]
    )
    y = torch.randint(5, (RECORDS,), generator=generator)
    theta = [p.detach()[None].double() for p in model.parameters()]
    network = jax_peers.network(model)
    exact = ClippedSums(stacked(model.double(), shape), x.double(), y)
    want = exact(theta, torch.tensor([jax_peers.CLIP]).double(), None, 10**7)
    data = jnp.array(x.numpy().transpose(0, 2, 3, 1)), jnp.array(y.numpy())
    sums = jax_peers.clipped_sum(peer, network.layers, batch)(network.parameters, *data)
    got = [np.asarray(g) for pair in sums for g in pair]
    assert len(got) == len(want)
    for computed, expected in zip(got, want, strict=True):
        array = expected[0].numpy()
        array = array.transpose(2, 3, 1, 0) if array.ndim == 4 else array
        np.testing.assert_allclose(computed, array, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("peer", jax_peers.PEERS)
def test_a_step_adds_noise_of_the_clipping_norm(peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The gradient of weights is 0 for a record of zeros: their update is -lr times the noise.
    import jax
    import jax.numpy as jnp

    model = models.make_model("logistic", 0, (2500,), 2, torch.float32)
    network = jax_peers.network(model)
    outcomes = []
    wait = jax.block_until_ready
    monkeypatch.setattr(jax, "block_until_ready", lambda x: outcomes.append(wait(x)))
    x, y = jnp.zeros((1, 2500)), jnp.zeros(1, int)
    for runs in (1, 2):
        jax_peers.trainer(peer, network, x, y, 3, jax_peers.Variant(1, runs))()
    weights = [np.asarray(trained[0][0]) for trained in outcomes]
    start = np.asarray(network.parameters[0][0])
    assert weights[0].shape == (2, 2500)
    assert weights[1].shape == (2, 2, 2500)
    for moved in (weights[0], *weights[1]):
        noise = (start - moved) / jax_peers.RATE / np.sqrt(3)
        assert abs(noise.std() - 1) < 0.05  # five standard errors
        assert abs(noise.mean()) < 0.07


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert jax_peers.why_missing("jax_ghost", "cpu") is None
    assert jax_peers.why_missing("jax_ghost", "cuda") == "JAX is measured on a CPU only"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for peer in jax_peers.PEERS:
        assert "benchmarks" in jax_peers.why_missing(peer, "cpu")
