"""Claims of the pruning paper on Gaussian filters, true or false, that no function computes."""

import jax
import numpy as np
import pytest
import scipy.stats

import pruning
from claims.cwda.accuracies import FINE_TUNED, PRUNED, TRAINED


def spearman_and_ratio_variance(x, y):
    correlation = np.corrcoef(scipy.stats.rankdata(x), scipy.stats.rankdata(y))[0, 1]
    return float(correlation), float(np.var(x / x.mean() / (y / y.mean())))


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        (TRAINED, (1423.72, 1423.72, 1423.95)),
        (PRUNED, (910.84, 923.41, 898.19)),
        (FINE_TUNED, (1412.94, 1411.33, 1411.96)),
    ],
)
def test_table_4_is_as_printed(table, sums):
    """The paper prints sums of the table's columns, which a wrong digit would change."""
    np.testing.assert_allclose(np.reshape(table, (18, 3)).sum(0), sums, atol=1e-6)


def test_unrelated_scores_have_small_ratio_variances():
    """Independent norms also have a small Var(X/Y), the sign of similar rankings in Section 3.2."""
    dims, count = 576, 20_000
    x, y = np.sqrt(np.random.default_rng(0).chisquare(dims, (2, count)))
    correlation, variance = spearman_and_ratio_variance(x, y)
    assert abs(correlation) < 4 / count**0.5
    np.testing.assert_allclose(dims * variance, 1, rtol=4 * (2 / count) ** 0.5 + 2 / dims)


def test_a_smaller_ratio_variance_may_come_with_a_smaller_correlation(key):
    """For Gaussian filters, l1/l2 varies less than Fermat/GM, but Fermat and GM rank more alike."""
    layers = jax.random.normal(key, (40, 64, 576))
    scores = {
        name: np.asarray(jax.jit(jax.vmap(score))(layers))
        for name, score in pruning.CRITERIA.items()
    }

    def mean_over_layers(a, b):
        pairs = zip(scores[a], scores[b], strict=True)
        return np.mean([spearman_and_ratio_variance(*pair) for pair in pairs], axis=0)

    norms, medians = mean_over_layers("l1", "l2"), mean_over_layers("fermat", "gm")
    assert norms[0] < 0.94 < 0.9995 < medians[0]
    assert 576 * norms[1] < 0.08 < 0.12 < 576 * medians[1]


def test_variance_of_the_log_ratio_over_that_of_the_logs_bounds_the_correlation():
    generator = np.random.default_rng(1)
    for share in (0.01, 0.1, 0.5):
        log_y, noise = generator.standard_normal((2, 1000))
        # These lines make the noise uncorrelated with log y. The bound is sharp for `tilted` below,
        # because there log x − log y is uncorrelated with log x.
        noise -= noise.mean() + (log_y - log_y.mean()) * (noise @ log_y) / (log_y @ log_y)
        noise *= np.std(log_y) / np.std(noise)
        for log_x in (log_y + share * noise, (1 - share**2) * log_y + share * noise, -log_y):
            eta2 = np.var(log_x - log_y) / np.var(log_y)
            if eta2 <= 1:
                correlation = np.corrcoef(log_x, log_y)[0, 1]
                assert correlation >= np.sqrt(1 - eta2) - 1e-3
        tilted = (1 - share**2) * log_y + share * np.sqrt(1 - share**2) * noise
        eta2 = np.var(tilted - log_y) / np.var(log_y)
        np.testing.assert_allclose(np.corrcoef(tilted, log_y)[0, 1], np.sqrt(1 - eta2), atol=2e-3)


class TestLemma3:
    """A = (|X|² − |Y|²)² and B = 2 |X| |Y| for X and Y from N(0, c² I) in k dimensions.

    Each test refutes a printed number, which is marked by a comment with its equation.
    """

    @staticmethod
    def draw(c, k, count=400_000):
        u, v = c**2 * np.random.default_rng(2).chisquare(k, (2, count))
        return (u - v) ** 2, 2 * np.sqrt(u * v)

    @staticmethod
    def z_score_of_variance(sample, expected):
        square = np.square(sample - sample.mean())
        return (square.mean() - expected) / (square.std() / len(square) ** 0.5)

    @staticmethod
    def z_score(sample, expected):
        return (sample.mean() - expected) / (sample.std() / len(sample) ** 0.5)

    def test_moments_of_the_numerator(self):
        c, k = 0.7, 5
        a, _ = self.draw(c, k)
        assert abs(self.z_score(a, 4 * c**4 * k)) < 4
        assert abs(self.z_score_of_variance(a, 16 * c**8 * (2 * k**2 + 6 * k))) < 4
        # Equation 32 prints this variance.
        assert self.z_score_of_variance(a, 16 * c**8 * (2 * k**2 + 3 * k)) > 8

    @pytest.mark.parametrize("c", [0.05, 1.0])
    def test_moments_of_the_denominator(self, c):
        k = 20
        _, b = self.draw(c, k)
        mean = float(pruning.gaussian.chi_moment(c, float(k), 1))
        variance = float(pruning.gaussian.chi_variance(c, float(k)))
        assert abs(self.z_score(b, 2 * mean**2)) < 4
        expected = 4 * ((mean**2 + variance) ** 2 - mean**4)
        assert abs(self.z_score_of_variance(b, expected)) < 4
        # Equation 31 prints this variance.
        assert abs(self.z_score_of_variance(b, c**2 + 4 * c**4 * k)) > 10

    @pytest.mark.parametrize("c", [0.05, 1.0])
    def test_moments_of_the_ratio(self, c):
        k = 20
        a, b = self.draw(c, k)
        mean = 2 * float(pruning.gaussian.chi_moment(c, float(k), 1)) ** 2 / (k - 1)
        np.testing.assert_allclose(mean / c**2, 2 + 1 / k + 5 / (4 * k**2), rtol=1e-3)
        assert abs(self.z_score(a / b, mean)) < 4
        second = 12 * c**4 * k / (k - 2)
        assert abs(self.z_score(np.square(a / b), second)) < 4
        # Equation 29 prints this mean.
        assert self.z_score(a / b, 2 * c**2 + (4 * c**2 * k + 1) / (2 * k**2)) < -9

    def test_the_printed_bound_of_the_variance_is_exceeded(self):
        c, k = 1.0, 20
        a, b = self.draw(c, k)
        printed = 8 * c**4 + (16 * c**4 * k + c**2) / k**2  # Equation 30 prints this variance
        assert self.z_score_of_variance(a / b, printed) > 5

    def test_no_ratio_depends_on_the_unit(self):
        """For k = 30, the mean of Lemma 3's A/B is slightly above 2 c² for small and large c."""
        small, large = (np.divide(*self.draw(c, 30)) / c**2 for c in (0.01, 10.0))
        np.testing.assert_allclose(small, large, rtol=1e-9)
        assert 2 < small.mean() < 2.1


@pytest.mark.parametrize(
    "points",
    [
        np.random.default_rng(3).standard_normal((9, 4)),
        np.random.default_rng(4).standard_normal((3, 7)),
        np.random.default_rng(5).standard_normal((9, 2)) @ np.ones((2, 6)),
        np.outer(np.arange(5.0), [1.0, 2.0, -1.0]),
        np.ones((6, 3)),
        np.ones((1, 3)),
        np.random.default_rng(6).standard_cauchy((20, 5)),
    ],
    ids=["more", "fewer", "rank 1", "collinear", "equal", "one", "heavy tails"],
)
def test_theorem_4_needs_neither_rank_nor_distribution(points):
    centroid = points.mean(0)
    for p in (centroid, points[0], np.arange(points.shape[1], dtype=float)):
        around = np.square(points - centroid).sum()
        expected = around + len(points) * np.square(p - centroid).sum()
        np.testing.assert_allclose(np.square(points - p).sum(), expected, rtol=1e-13, atol=1e-28)


def test_ranking_by_squared_distances_is_that_by_distance_to_the_centroid(key):
    filters = np.asarray(jax.random.normal(key, (64, 100)), dtype=np.float64)
    squared = np.square(filters[:, None] - filters).sum((1, 2))
    centroid = np.linalg.norm(filters - filters.mean(0), axis=1)
    assert np.array_equal(np.argsort(squared), np.argsort(centroid))


def test_table_4_criteria_agree_once_fine_tuned_and_not_before():
    pruned, tuned = (np.reshape(table, (18, 3)) for table in (PRUNED, FINE_TUNED))
    largest, mean = np.ptp(tuned, axis=1).max(), np.ptp(tuned, axis=1).mean()
    np.testing.assert_allclose([largest, mean], [0.35, 0.20], atol=5e-3)
    largest, mean = np.ptp(pruned, axis=1).max(), np.ptp(pruned, axis=1).mean()
    np.testing.assert_allclose([largest, mean], [8.32, 1.79], atol=5e-3)
    np.testing.assert_allclose(pruned.mean(0), [50.60, 51.30, 49.90], atol=5e-3)
    before, after = (scipy.stats.friedmanchisquare(*t.T) for t in (pruned, tuned))
    np.testing.assert_allclose([*before, *after], [7.111, 0.0286, 4.141, 0.1261], rtol=2e-3)
