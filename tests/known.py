"""What several test files know the truth of."""

from audit import repetitions


class OwnLaw(repetitions.Repetitions):
    """A user's law of K: what is abstract and no more, taken from any law."""

    def __init__(self, law):
        self.law = law

    spec = property(lambda self: f"my own {self.law.spec}")
    mean = property(lambda self: self.law.mean)
    probability_of_none = property(lambda self: self.law.probability_of_none)

    def log_pmf(self, k):
        return self.law.log_pmf(k)

    def log_phi_at(self, log_x):
        return self.law.log_phi_at(log_x)

    def one_minus_phi_at(self, log_x):
        return self.law.one_minus_phi_at(log_x)

    def log_phi_prime_at(self, log_x):
        return self.law.log_phi_prime_at(log_x)

    def sample(self, rng, size):
        return self.law.sample(rng, size)
