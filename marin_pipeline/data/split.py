"""One sequence of turns split among sources in fixed proportions, exactly and evenly.

The turns go down a binary tree whose leaves are the sources: of the first m turns that reach a node of weight T, the
child of weight L gets floor(m * L / T + 1/2) and the other one the rest. So each turn goes to one source, counts never
fall and sum to the number of turns, and any turn is found from its position alone, in whole numbers of any size.

The tree is that of Huffman (1952): the two lightest nodes are joined until one is left. From a leaf's parent on, every
node weighs at most 2/3 of its parent, since the node that is joined to it is not lighter than either of its children.
A node's count is off by at most 1/2, and by its share of what its parent's is off; so that of a source of weight w is
less than (1 + 1 + 2/3 + 4/9 + ...) / 2 = 2 turns away from w times the turns, at every position and for any number of
sources. (Merging the evenly spaced turns of all sources by time, as Sainte-Lague's divisors do, is as simple, but there
one source of weight 1/2 gets the first 250 turns where 499 sources share the other half.)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import gcd


class Split:
    """The turns of sources with whole weights; it never changes."""

    NAME = "huffman1"
    """Names the order of the turns: another order would be another name."""

    def __init__(self, weights: Sequence[int]) -> None:
        """Make the tree.

        Args:
            weights: of the sources, at least one, each at least 1. Of nodes of equal weight the one made first counts
                as lighter, and sources are made in the order given. A node's heavier child stands left, of two equal
                ones the one made first.
        """
        leaves = len(weights)
        self.sources = leaves
        weight = list(weights)
        self._left, self._right = [0] * leaves, [0] * leaves
        # Node k of the first `leaves` is source k; the others follow in the order in which they were made, root last.
        self._gain, self._whole = [0] * leaves, [0] * leaves
        heap = [(each, node) for node, each in enumerate(weight)]
        heapq.heapify(heap)
        while len(heap) > 1:
            lighter, heavier = heapq.heappop(heap), heapq.heappop(heap)
            left, right = (lighter[1], heavier[1]) if lighter[0] == heavier[0] else (heavier[1], lighter[1])
            together = lighter[0] + heavier[0]
            heapq.heappush(heap, (together, len(weight)))
            weight.append(together)
            self._left.append(left)
            self._right.append(right)
            common = gcd(weight[left], together)
            self._gain.append(2 * weight[left] // common)
            self._whole.append(2 * together // common)

    def _reached(self, position: int) -> tuple[list[int], list[int]]:
        """By node: turns that reached it before `position`, and the remainder of its division."""
        reached, rest = [0] * len(self._whole), [0] * len(self._whole)
        reached[-1] = position
        for node in range(len(reached) - 1, self.sources - 1, -1):
            turns, whole = reached[node], self._whole[node]
            left, rest[node] = divmod(turns * self._gain[node] + whole // 2, whole)
            reached[self._left[node]] = left
            reached[self._right[node]] = turns - left
        return reached, rest

    def counts(self, position: int) -> list[int]:
        """Turns of each source before `position`; they sum to it."""
        return self._reached(position)[0][: self.sources]

    def turns(self, position: int, length: int) -> tuple[list[int], list[int]]:
        """The source of each turn in `[position, position + length)`, and how many turns that source had before it."""
        reached, rest = self._reached(position)
        left, right, gain, whole = self._left, self._right, self._gain, self._whole
        leaves, root = self.sources, len(whole) - 1
        sources, numbers = [0] * length, [0] * length
        for turn in range(length):
            node = root
            while node >= leaves:
                # The left child's count grows by one where the remainder passes the divisor.
                now = rest[node] + gain[node]
                if now >= whole[node]:
                    rest[node] = now - whole[node]
                    node = left[node]
                else:
                    rest[node] = now
                    node = right[node]
            sources[turn] = node
            numbers[turn] = reached[node]
            reached[node] += 1
        return sources, numbers
