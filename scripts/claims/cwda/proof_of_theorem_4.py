"""Theorem 4 of the pruning paper (Section 3.2), and its proof in Appendix E."""

from functools import partial

import numpy as np
from jaxtyping import Array, Key

from claims.cwda.points import barycentric, distance_matrix
from claims.draws import generator
from geometry.claims import Cases, Claim

claim = partial(Claim, "CWDA")


THEOREM_4 = claim(
    "Theorem 4, Equation 7",
    r"$\sum\|P - v_i\|^2 = \sum\|G - v_i\|^2 + (k + 1)\|P - G\|^2$ under conditions on rank",
    corrected="The identity of Equation 7 holds for any points $v_i$ and any $P$",
    why=r"The identity follows from $\|P - v_i\|^2 = \|P - G\|^2 + 2(P - G) \cdot (G - v_i) + \|G "
    r"- v_i\|^2$ and $\sum(G - v_i) = 0$. Theorem 4 holds for all points $v_i$ and $P$, without "
    r"the conditions (1) to (3). In condition (3), the covariance is $c \cdot I$ in the appendix "
    r"and $c^2 \cdot I$ in the main text.",
)


@THEOREM_4.equal("flat, equal, single and heavy-tailed points too", tolerance=1e-13)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    clouds = (
        rng.normal(size=(9, 4)),
        rng.normal(size=(3, 7)),
        rng.normal(size=(9, 2)) @ np.ones((2, 6)),
        np.outer(np.arange(5.0), [1.0, 2.0, -1.0]),
        np.ones((6, 3)),
        np.ones((1, 3)),
        rng.standard_cauchy((20, 5)),
    )
    for v in clouds:
        centroid = v.mean(0)
        for p in (centroid, v[0], rng.normal(size=v.shape[1])):
            left = np.square(v - p).sum()
            right = np.square(v - centroid).sum() + len(v) * np.square(p - centroid).sum()
            yield (left - right) / max(left, right, 1e-300)


EQUATIONS_57_TO_66 = claim(
    "Proof of Theorem 4, Equations 57 to 66",
    r"For $k \ge n$, the first case, the identity follows by generalized barycentric coordinates",
    why=r"Each line of the proof follows from Lemma 5 with the coordinates $\gamma$ of $P$, "
    r"$\alpha_i = 1$ and unit vectors, if Lemma 4 is read with $k \ge n$.",
)


@EQUATIONS_57_TO_66.equal("each line", tolerance=1e-10)
def _(key: Key[Array, ""]) -> Cases:
    rng = generator(key)
    v, p = rng.normal(size=(9, 5)), rng.normal(size=5)
    d, gamma, ones, unit = distance_matrix(v), barycentric(p, v)[0], np.ones(9), np.eye(9)
    centroid = v.mean(0)
    to_p, to_g = np.square(p - v).sum(1), np.square(centroid - v).sum(1)
    whole = np.square(p - centroid).sum()
    own, mean = gamma @ d @ gamma, ones @ d @ ones / 81
    yield np.einsum("ij,jk,ik->i", gamma - unit, d, gamma - unit) - to_p  # Eq. 57
    yield own - 2 * gamma @ d - to_p  # Eqs. 58, 59
    yield np.einsum("ij,jk,ik->i", ones / 9 - unit, d, ones / 9 - unit) - to_g  # Eq. 60
    yield mean - 2 / 9 * ones @ d - to_g  # Eqs. 61, 62
    yield (gamma - ones / 9) @ d @ (gamma - ones / 9) - whole  # Eq. 63
    yield own + mean - 2 / 9 * gamma @ d @ ones - whole  # Eq. 64
    combined = 9 * own - 2 * gamma @ d @ ones + 9 * mean
    yield [combined - (to_p - to_g).sum(), combined - 9 * whole]  # Eqs. 65, 66


def _second_case(key: Array) -> tuple[np.ndarray, ...]:
    """A point P, four points v with centroid G, and points p with (p − G)·(P − G) = 0."""
    rng = generator(key)
    v, p = rng.normal(size=(4, 7)), rng.normal(size=7)
    centroid = v.mean(0)
    axis = (p - centroid) / np.linalg.norm(p - centroid)
    added = rng.normal(size=(4, 7))
    return p, centroid, v, added - np.outer((added - centroid) @ axis, axis)


EQUATIONS_67_TO_81 = claim(
    "Proof of Theorem 4, Equations 67 to 81",
    "For $k < n$, the second case, the proof adds points and their mirror images at $G$",
    why="The proof adds points $p$ of the hyperplane through $G$ that is orthogonal to $P - G$, "
    "and their mirror images $2G - p$. The added points do not move the centroid, and satisfy "
    "Equation 69. The first case of the proof applies to all points together, and the terms of "
    r"the added points cancel. The proof of Theorem 4 needs $P \ne G$. For $P = G$, Theorem 4 is "
    "trivial.",
)


@EQUATIONS_67_TO_81.equal("each line, k = 3 and n = 7", tolerance=1e-10)
def _(key: Key[Array, ""]) -> Cases:
    p, centroid, v, added = _second_case(key)
    whole = np.square(p - centroid).sum()
    mirrored = 2 * centroid - added
    points = np.concatenate([v, added, mirrored])
    gaps = np.square(p - points).sum(1) - np.square(centroid - points).sum(1)
    yield (np.concatenate([added, mirrored]) - centroid) @ (p - centroid)  # Eqs. 67, 68
    yield gaps[4:] - whole  # Eq. 69
    yield (v[1:] - v[0]).sum(0) - 4 * (centroid - v[0])  # Eqs. 70 to 72
    differences = np.concatenate([v[1:], added, mirrored]) - v[0]
    yield int(np.linalg.matrix_rank(differences)) - 7
    yield points.mean(0) - centroid  # Eqs. 73 to 78
    # Eqs. 79 to 81
    yield [len(points) * whole - gaps.sum(), gaps[:4].sum() + 8 * whole - gaps.sum()]
