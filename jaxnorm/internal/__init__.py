"""Functions for floating point, shardings and checks that the three packages share; not for users.

The names in this namespace may change in any release.
"""

from jaxnorm.internal import checkpoints as checkpoints
from jaxnorm.internal._checks import (
    as_path as as_path,
)
from jaxnorm.internal._checks import (
    check_array as check_array,
)
from jaxnorm.internal._checks import (
    check_axes as check_axes,
)
from jaxnorm.internal._checks import (
    check_dtype as check_dtype,
)
from jaxnorm.internal._checks import (
    check_eps as check_eps,
)
from jaxnorm.internal._checks import (
    check_finite as check_finite,
)
from jaxnorm.internal._checks import (
    check_fits as check_fits,
)
from jaxnorm.internal._checks import (
    check_flags as check_flags,
)
from jaxnorm.internal._checks import (
    check_floating as check_floating,
)
from jaxnorm.internal._checks import (
    check_function as check_function,
)
from jaxnorm.internal._checks import (
    check_key as check_key,
)
from jaxnorm.internal._checks import (
    check_number as check_number,
)
from jaxnorm.internal._checks import (
    check_numeric as check_numeric,
)
from jaxnorm.internal._checks import (
    check_positive as check_positive,
)
from jaxnorm.internal._checks import (
    check_range as check_range,
)
from jaxnorm.internal._checks import (
    check_whole as check_whole,
)
from jaxnorm.internal._checks import (
    show as show,
)
from jaxnorm.internal._host import (
    check_on_host as check_on_host,
)
from jaxnorm.internal._host import (
    host_only as host_only,
)
from jaxnorm.internal._host import (
    is_traced as is_traced,
)
from jaxnorm.internal._lazy import lazy_modules as lazy_modules
from jaxnorm.internal._numerics import (
    Axes as Axes,
)
from jaxnorm.internal._numerics import (
    CentralMoments as CentralMoments,
)
from jaxnorm.internal._numerics import (
    axis_tuple as axis_tuple,
)
from jaxnorm.internal._numerics import (
    center as center,
)
from jaxnorm.internal._numerics import (
    chi_defect as chi_defect,
)
from jaxnorm.internal._numerics import (
    chi_mean as chi_mean,
)
from jaxnorm.internal._numerics import (
    floating as floating,
)
from jaxnorm.internal._numerics import (
    inverse_root as inverse_root,
)
from jaxnorm.internal._numerics import (
    matmul as matmul,
)
from jaxnorm.internal._numerics import (
    merge_central_moments as merge_central_moments,
)
from jaxnorm.internal._numerics import (
    merge_means as merge_means,
)
from jaxnorm.internal._numerics import (
    norm as norm,
)
from jaxnorm.internal._numerics import (
    promote_to_float32 as promote_to_float32,
)
from jaxnorm.internal._numerics import (
    safe_sqrt as safe_sqrt,
)
from jaxnorm.internal._numerics import (
    unit_of as unit_of,
)
from jaxnorm.internal._sharding import (
    auto_sharded as auto_sharded,
)
from jaxnorm.internal._sharding import (
    first_along as first_along,
)
from jaxnorm.internal._sharding import (
    flat_rows as flat_rows,
)
from jaxnorm.internal._sharding import (
    join_batch as join_batch,
)
from jaxnorm.internal._sharding import (
    replicate as replicate,
)
from jaxnorm.internal._sharding import (
    row_at as row_at,
)
from jaxnorm.internal._sharding import (
    split_batch as split_batch,
)
from jaxnorm.internal._sharding import (
    spread_slice as spread_slice,
)
