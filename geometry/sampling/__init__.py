"""Monte Carlo estimates with their standard errors."""

from geometry.sampling._monte_carlo import (
    Estimate as Estimate,
    SampleMoments as SampleMoments,
    monte_carlo as monte_carlo,
    monte_carlo_moments as monte_carlo_moments,
)
