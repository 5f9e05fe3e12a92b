"""Names for sizes: a dimension is a number or a symbol, and equal symbols are equal sizes in every run.

A symbol made here is the formula of the size, so that two sizes computed alike get one name.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

Dim = int | str
Dims = tuple[Dim, ...]

MAX_NAME = 48
"""Formulas longer than this are known by a hash."""


class Names:
    """Makes symbols."""

    def __init__(self) -> None:
        self._bounds: dict[str, tuple[Dim, int]] = {}
        self._products: dict[str, tuple[int, tuple[str, ...]]] = {}

    def formula(self, text: str) -> str:
        """The symbol of a formula; the same for the same text, in later sweeps too."""
        return text if len(text) <= MAX_NAME else f"dim_{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    def add(self, a: Dim, b: Dim) -> Dim:
        """a + b."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if 0 in (a, b):
            return b if a == 0 else a
        return self.formula("({}+{})".format(*sorted((str(a), str(b)))))

    def subtract(self, a: Dim, b: Dim) -> Dim:
        """a - b."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        if b == 0 or a == b:
            return a if b == 0 else 0
        return self.formula(f"({a}-{b})")

    def multiply(self, factors: Sequence[Dim]) -> Dim:
        """The product; products among the factors are taken apart, so that grouping does not matter."""
        number, symbols = self._factors(factors)
        if not symbols or number == 0:
            return number
        texts = sorted(symbols) if number == 1 else [str(number), *sorted(symbols)]
        if len(texts) == 1:
            return symbols[0]
        name = self.formula(f"({'*'.join(texts)})")
        self._products[name] = (number, tuple(symbols))
        return name

    def _factors(self, dims: Sequence[Dim]) -> tuple[int, list[str]]:
        """The number and the symbols whose product `dims` multiply to."""
        number = 1
        symbols: list[str] = []
        for dim in dims:
            factor, parts = (dim, ()) if isinstance(dim, int) else self._products.get(dim, (1, (dim,)))
            number *= factor
            symbols.extend(parts)
        return number, symbols

    def divide(self, a: Dim, b: Dim) -> Dim:
        """a / b, truncated; b is positive."""
        if b == 1 or a == b:
            return a if b == 1 else 1
        if isinstance(a, int) and isinstance(b, int) and a >= 0 and b > 0:
            return a // b
        number, symbols = self._factors([a])
        if isinstance(b, int) and b > 0 and number % b == 0:
            return self.multiply([number // b, *symbols])
        return self.formula(f"({a}/{b})")

    def minimum(self, a: Dim, limit: int) -> Dim:
        """min(a, limit): the size of `x[:a]` where x has `limit` elements."""
        if isinstance(a, int):
            return min(a, limit)
        name = self.formula(f"min({a},{limit})")
        self._bounds[name] = (a, limit)
        return name

    def broadcast(self, a: Dim, b: Dim) -> Dim:
        """The size of two broadcast dimensions, given that the model runs at all."""
        if a == b or b == 1:
            return a
        if a == 1:
            return b
        if isinstance(a, int) or isinstance(b, int):
            return a if isinstance(a, int) else b
        for x, y in ((a, b), (b, a)):
            bound = self._bounds.get(x)
            # min(y, c) and y broadcast, with c > 1, only where they are equal: min(y, c) is 1 just when y is.
            if bound is not None and bound[0] == y and bound[1] > 1:
                return y
        return self.formula("broadcast({},{})".format(*sorted((a, b))))

    def broadcast_all(self, shapes: Sequence[Dims]) -> Dims:
        """The broadcast of several shapes."""
        rank = max(len(s) for s in shapes)
        result: list[Dim] = [1] * rank
        for dims in shapes:
            for axis, dim in enumerate(dims, rank - len(dims)):
                result[axis] = self.broadcast(result[axis], dim)
        return tuple(result)

    def window(self, size: Dim, kernel: int, stride: int, pad: int, dilation: int, ceil: bool = False) -> Dim:
        """The number of positions of a sliding window."""
        span = dilation * (kernel - 1)
        if stride == 1 and pad == span:
            return size
        if isinstance(size, int) and not ceil:
            return (size + pad - span - 1) // stride + 1
        return self.formula(f"{'ceil' if ceil else 'window'}({size},{pad - span},{stride},{pad if ceil else 0})")

    def remainder(self, whole: Dims, parts: Sequence[Dim]) -> Dim:
        """What -1 stands for in a reshape of `whole` to `parts` and -1."""
        number, symbols = self._factors(whole)
        divisor, below = self._factors(parts)
        top, bottom = Counter(symbols), Counter(below)
        common = top & bottom
        top, bottom = top - common, bottom - common
        if not bottom and divisor > 0 and number % divisor == 0:
            return self.multiply([number // divisor, *top.elements()])
        left = self.multiply([number, *top.elements()])
        return self.formula(f"({left}/{self.multiply([divisor, *bottom.elements()])})")
