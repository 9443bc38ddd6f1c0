"""What a scheme of one's own can build on, if it looks at a token's id and the h ids before it.

The schemes of this package are built from the same parts; docs/add-a-scheme.md shows how.
"""

from __future__ import annotations

from dewmark.baselines._prf import VocabularyHash
from dewmark.baselines._session import TokenSession
from dewmark.baselines._tokens import TokenBound, TokenScheme

__all__ = ["TokenBound", "TokenScheme", "TokenSession", "VocabularyHash"]
