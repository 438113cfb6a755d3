"""A substitute for the part of PyTorch that the benchmarks use, in NumPy.

Layers compute only shapes.
"""

from types import SimpleNamespace

import numpy as np


class Tensor(np.ndarray):
    """An array with the method `abs`."""

    def abs(self):
        return np.abs(self)


def norm(x, dim=None):
    return np.sqrt(np.square(x).sum(dim))


def cdist(x, y):
    return norm(x[:, None] - y[None], -1)


def tensor(x):
    return np.asarray(x).view(Tensor)


NUMPY = SimpleNamespace(from_numpy=tensor, cdist=cdist, linalg=SimpleNamespace(norm=norm))


class Shape(tuple):
    """The shape of a batch, with channels on the second axis. Only equal shapes can be added."""

    def __add__(self, other):
        assert self == other, f"{self} + {other}"
        return self


class Module:
    """A layer as a function of shapes, with its number of parameters."""

    def __init__(self):
        self.parameters = 0

    def __call__(self, x):
        return Shape(self.forward(x))

    def forward(self, x):
        return x

    def count(self):
        inside = [part for part in vars(self).values() if isinstance(part, Module)]
        return self.parameters + sum(part.count() for part in inside)


class Conv2d(Module):
    def __init__(self, channels, width, size, stride, padding):
        self.channels, self.width = channels, width
        self.size, self.stride, self.padding = size, stride, padding
        self.parameters = width * (channels * size**2 + 1)

    def forward(self, x):
        n, channels, *sides = x
        assert channels == self.channels
        sides = [(side + 2 * self.padding - self.size) // self.stride + 1 for side in sides]
        return n, self.width, *sides


class BatchNorm2d(Module):
    def __init__(self, channels):
        self.channels, self.parameters = channels, 2 * channels

    def forward(self, x):
        assert x[1] == self.channels
        return x


class Linear(Module):
    def __init__(self, features, outputs):
        self.features, self.outputs = features, outputs
        self.parameters = (features + 1) * outputs

    def forward(self, x):
        assert x[1:] == (self.features,)
        return x[0], self.outputs


class Pool(Module):
    def __init__(self, side):
        self.side, self.parameters = side, 0

    def forward(self, x):
        return *x[:2], self.side, self.side


class Flatten(Module):
    def forward(self, x):
        return x[0], int(np.prod(x[1:]))


class Sequence(Module):
    def __init__(self, parts):
        super().__init__()
        self.parts = list(parts)

    def __getitem__(self, i):
        return self.parts[i]

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x

    def count(self):
        return sum(part.count() for part in self.parts)


LAYERS = SimpleNamespace(
    Module=Module,
    Identity=Module,
    ReLU=Module,
    Conv2d=Conv2d,
    BatchNorm2d=BatchNorm2d,
    Linear=Linear,
    AdaptiveAvgPool2d=Pool,
    Flatten=Flatten,
    ModuleList=Sequence,
    Sequential=lambda *parts: Sequence(parts),
    functional=SimpleNamespace(relu=lambda x: x),
)
SHAPES = SimpleNamespace(nn=LAYERS)
