"""Random networks, and neurons that are active for exactly one sample."""

from geometry.networks._neuron_per_point import (
    hull_vertices as hull_vertices,
    neuron_per_point as neuron_per_point,
    point_initializers as point_initializers,
)
from geometry.networks._random_network import (
    RandomNetwork as RandomNetwork,
    random_network as random_network,
)
