"""Functions for floating point, shardings and checks that the three packages share; not for users.

The names in this namespace may change in any release.
"""

from jaxnorm.internal import checkpoints as checkpoints
from jaxnorm.internal._checks import (
    as_path as as_path,
    check_array as check_array,
    check_axes as check_axes,
    check_batches as check_batches,
    check_call as check_call,
    check_dtype as check_dtype,
    check_eps as check_eps,
    check_finite as check_finite,
    check_fits as check_fits,
    check_flags as check_flags,
    check_floating as check_floating,
    check_function as check_function,
    check_key as check_key,
    check_number as check_number,
    check_numeric as check_numeric,
    check_positive as check_positive,
    check_range as check_range,
    check_whole as check_whole,
    choose_eps as choose_eps,
    show as show,
)
from jaxnorm.internal._host import (
    check_on_host as check_on_host,
    host_only as host_only,
    is_traced as is_traced,
)
from jaxnorm.internal._lazy import lazy_modules as lazy_modules
from jaxnorm.internal._numerics import (
    Axes as Axes,
    CentralMoments as CentralMoments,
    axis_tuple as axis_tuple,
    center as center,
    chi_defect as chi_defect,
    chi_mean as chi_mean,
    floating as floating,
    inverse_root as inverse_root,
    matmul as matmul,
    merge_central_moments as merge_central_moments,
    merge_means as merge_means,
    norm as norm,
    promote_to as promote_to,
    promote_to_float32 as promote_to_float32,
    safe_sqrt as safe_sqrt,
    unit_of as unit_of,
)
from jaxnorm.internal._sharding import (
    auto_sharded as auto_sharded,
    first_along as first_along,
    flat_rows as flat_rows,
    join_batch as join_batch,
    replicate as replicate,
    row_at as row_at,
    split_batch as split_batch,
    spread_slice as spread_slice,
    varying_like as varying_like,
)
