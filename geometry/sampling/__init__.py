"""Monte Carlo estimates with their standard errors."""

from geometry.sampling._monte_carlo import Estimate as Estimate
from geometry.sampling._monte_carlo import SampleMoments as SampleMoments
from geometry.sampling._monte_carlo import monte_carlo as monte_carlo
from geometry.sampling._monte_carlo import monte_carlo_moments as monte_carlo_moments
