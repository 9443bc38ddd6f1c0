"""What the service decides for its callers: levels, keys, seeds and members, and when a key is named.

- **Levels.** A caller may ask for a stricter level than the service's own, or one up to ``max_fpr``; public
  tokens get ``public_fpr`` and choose nothing.
- **Keys.** A request names tenants of its token, or has all of them; retired keys belong to their tenant.
  Everything that a caller could have asked for is paid for. The demonstration key is for trying the service
  out: it is looked for when it is named and nothing is signed under it.
- **Members.** The member of a ring that marks a text follows from the seed. Whoever chose it could collect
  texts of one member, so the seed of a text is a keyed hash of everything that was asked for.
- **Payloads** are the caller's, within the bits of the key (`dewmark.core.keys.check_use`).
- **Attribution.** A key is named if its mark was found, or if no other could have been: `names_the_key`.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dewmark.scheme import check_test
from dewmark_desk.api_tokens import Caller
from dewmark_desk.http_errors import ApiError
from dewmark_desk.settings import DEMONSTRATION, Settings
from dewmark_desk.verdicts import Examination

if TYPE_CHECKING:
    from dewmark_desk.service import Service
    from dewmark_desk.tenants import Tenant


def level(settings: Settings, caller: Caller, asked: float | None) -> float:
    """The level of a caller's verdicts."""
    if not caller.sees_all:
        return min(settings.fpr, settings.public_fpr)
    most = max(settings.fpr, settings.max_fpr)
    if asked is not None and asked > most:
        raise ApiError(422, "invalid_request", f"fpr: this service's verdicts have levels up to {most:g}")
    return asked or settings.fpr


def chosen_keys(service: Service, caller: Caller, ids: Sequence[str] | None) -> list[Tenant]:
    """The keys that a request names, or all that the caller may use."""
    if ids is None:
        found = service.may_use(caller)
        if not found:
            raise ApiError(404, "not_found", "this token may not use any tenant")
        return found
    return list({key.id: key for id_ in ids for key in service.keys_of(id_, caller)}.values())


def examination(
    service: Service,
    caller: Caller,
    ids: Sequence[str] | None,
    *,
    fpr: float | None,
    test: str | None = None,
    passages: bool = False,
    read: bool = True,
    demonstration: bool = False,
) -> Examination:
    """How a caller's texts are examined; ``demonstration`` lets it name that key."""
    if demonstration and ids == [DEMONSTRATION]:
        tenants, keys = [service.demonstration], 1
    else:
        tenants, keys = chosen_keys(service, caller, ids), len(service.may_use(caller))
    for tenant in tenants:
        check_test(test, tenant.bound.tests)
    roots = service.settings.roots and Path(service.settings.roots)
    return Examination(
        tenants, keys, level(service.settings, caller, fpr), test, read, passages, roots=roots or None
    )


def seed_of(secret: bytes, asked: Mapping[str, Any], index: int) -> int:
    """The seed of a text: it can be repeated by asking for the same again, and is not the caller's choice."""
    said = json.dumps([asked, index], sort_keys=True, ensure_ascii=True).encode()
    return int.from_bytes(hmac.new(secret, said, hashlib.sha256).digest()[:7], "big")
